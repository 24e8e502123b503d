//! Derives this crate's source from the published crate; see `recipe.rs`, `patches/` and `departures/` for what differs
//! and why.

mod recipe;

fn main() {
    recipe::RECIPE.build();
}
