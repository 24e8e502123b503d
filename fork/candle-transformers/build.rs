//! Derives this crate's source from the published crate; see `recipe.rs`, `patches/` and `departures/` for what differs
//! and why.

mod recipe;

fn main() {
    recipe::RECIPE.build();
    // Upstream's calls of `candle_flash_attn` are compiled in; `src/lib.rs` says which crate bears that name.
    if std::env::var_os("CARGO_FEATURE_ROCM_FLASH_ATTN").is_some() {
        println!("cargo:rustc-cfg=feature=\"flash-attn\"");
    }
}
