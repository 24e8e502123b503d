//! What the derivation promises: without what the feature `rocm` adds, this crate is upstream's.

#[path = "../recipe.rs"]
mod recipe;

use std::path::Path;

#[test]
fn without_rocm_the_derived_text_is_upstreams() {
    let derived = Path::new(env!("OUT_DIR"));
    let upstream = include_str!(concat!(env!("OUT_DIR"), "/upstream-path"));
    let differing = recipe::RECIPE
        .differences(Path::new(upstream), derived)
        .expect("both can be read");
    assert!(differing.is_empty(), "these files differ: {differing:?}");
}
