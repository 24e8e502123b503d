//! Derives this crate's source from the published crate; see `recipe.rs` for what differs and why.

mod recipe;

fn main() {
    recipe::RECIPE.build();
}
