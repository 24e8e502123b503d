//! What the derivation promises: without what the feature `rocm` adds, this crate is upstream's with the patches, no
//! more.

#[path = "../recipe.rs"]
mod recipe;

use recipe::RECIPE;

/// What our manifest says otherwise than upstream's.
const MANIFEST: &[&str] = &[
    "build-dependency candle-derive: only here",
    "dependency candle-core: upstream ^0.11.1 [] as candle, here =0.11.1 [] as candle",
    "dependency candle-nn: upstream ^0.11.1 [], here =0.11.1 []",
    "dependency candle-rocm-flash-attn: only here",
    "dev-dependency candle-derive: only here",
    "feature rocm: only here",
    "feature rocm-flash-attn: only here",
];

candle_derive::fork_tests!(RECIPE, MANIFEST);
