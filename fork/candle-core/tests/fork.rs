//! What the derivation promises: without what the feature `rocm` adds, this crate is upstream's with the patches, no
//! more.

#[path = "../recipe.rs"]
mod recipe;

use recipe::RECIPE;

/// What our manifest says otherwise than upstream's (upstream's benches are not derived).
const MANIFEST: &[&str] = &[
    "build-dependency candle-derive: only here",
    "build-dependency ggml-formats: only here",
    "dependency candle-rocm: only here",
    "dependency cpu-kernels: only here",
    "dependency ggml-formats: only here",
    "dev-dependency candle-derive: only here",
    "dev-dependency criterion: upstream ^0.8 without default features [], missing here",
    "feature rocm: only here",
];

candle_derive::fork_tests!(RECIPE, MANIFEST);
