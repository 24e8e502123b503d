//! What models use of the kernels, foreseen so that it can be compiled before the first picture.
//!
//! What is not foreseen is compiled when it is used: a file too many costs a second of a first start, a file too few
//! one of a first picture.

use crate::pipeline::Precision;
use candle_core::rocm_backend::candle_rocm::{CodeObject, Family};
use std::collections::HashSet;

/// Text encoders first, then the denoiser, then the VAE.
const FAMILIES: &[Family] = &[
    Family::Instructions,
    Family::Copy,
    Family::Fill,
    Family::Indexing,
    Family::IndexingRows,
    Family::Norm,
    Family::Binary,
    Family::Unary,
    Family::Affine,
    Family::Gated,
    Family::Epilogue,
    Family::Rope,
    Family::AttentionDecode,
    Family::AttentionMatrixF16,
    Family::AttentionMatrixBf16,
    Family::AttentionTiled,
    Family::AttentionScores,
    Family::Softmax,
    Family::GroupNorm,
    Family::Conv,
    Family::Upsample,
    Family::Reduce,
    Family::ReducePacks,
];

/// What a model uses in this precision. float32 is in each: time steps, noise, and VAEs that overflow otherwise.
pub fn of_precision(precision: Precision) -> Vec<CodeObject> {
    let own: &[&str] = match precision {
        Precision::Auto => &["f16", "bf16"],
        Precision::F32 => &[],
        Precision::F16 => &["f16"],
        Precision::Bf16 => &["bf16"],
    };
    let named = |more: &[&str]| -> HashSet<String> {
        let names = own.iter().chain(&["f32"]).chain(more);
        names.map(|name| name.to_string()).collect()
    };
    // Weights may lie as halves, whatever is computed with them.
    let mut objects = CodeObject::select(&[Family::Cast], &named(&["f16", "u32"]));
    objects.extend(CodeObject::select(FAMILIES, &named(&[])));
    objects
}

/// What models usually use.
pub fn usual() -> Vec<CodeObject> {
    of_precision(Precision::Auto)
}
