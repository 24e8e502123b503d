//! What models use of the kernels, foreseen so that it can be compiled before the first request.
//!
//! What is not foreseen is compiled when it is used: a file too many costs a second of a first start, a file too few
//! one of a first request.

use crate::engine::api::KvDType;
use candle_core::rocm_backend::candle_rocm::ops::quantized::Format;
use candle_core::rocm_backend::candle_rocm::{CodeObject, Family};
use std::collections::HashSet;
use worker::gguf::Gguf;

/// A decoder's first step, of one token, in the order of its launches.
const STEP: &[Family] = &[
    Family::Instructions,
    Family::Cast,
    Family::Copy,
    Family::Fill,
    Family::Indexing,
    Family::IndexingRows,
    Family::Norm,
    Family::Rope,
    Family::KvCache,
    Family::AttentionDecode,
    Family::Gated,
    Family::Binary,
    Family::Unary,
    Family::Affine,
    Family::Sampling,
];
/// The same of quantized matrices.
const QUANTIZED_STEP: &[Family] = &[
    Family::QuantizedEmbedding,
    // Products are verified by what it gives.
    Family::Dequantize,
    Family::QuantizeActivations,
    Family::MatvecK,
    Family::MatvecSmall,
    Family::MatvecLevels,
    Family::MatvecCodebook,
];
/// What long prompts need beyond that.
const PROMPT: &[Family] = &[Family::AttentionTiled, Family::AttentionScores];
/// The same of quantized matrices.
const QUANTIZED_PROMPT: &[Family] = &[
    Family::MatmulK,
    Family::MatmulSmall,
    Family::MatmulLevels,
    Family::MatmulCodebook,
];
/// What experts need beyond that.
const EXPERTS: &[Family] = &[Family::Softmax, Family::Sort, Family::MoeRows];

/// The operations of candle's own code.
const CANDLE: &[Family] = &[
    Family::Instructions,
    Family::Cast,
    Family::Copy,
    Family::Fill,
    Family::Indexing,
    Family::IndexingRows,
    Family::Norm,
    Family::Rope,
    Family::Binary,
    Family::Unary,
    Family::Affine,
    Family::Softmax,
    Family::Gated,
    Family::Reduce,
    Family::ReducePacks,
    Family::Ternary,
    Family::AttentionMatrixF16,
    Family::AttentionMatrixBf16,
    Family::AttentionTiled,
    Family::AttentionDecode,
    Family::AttentionScores,
];

/// The formats of the files that most models come in.
const USUAL_FORMATS: [Format; 8] = [
    Format::Q4K,
    Format::Q6K,
    Format::Q8_0,
    Format::Q5K,
    Format::Q4_0,
    Format::Q5_0,
    Format::F16,
    Format::F32,
];

/// What the engine's decoder uses for a model; `kv_dtype` is how keys and values are to be stored.
pub fn of_decoder(header: &Gguf, kv_dtype: Option<KvDType>) -> Vec<CodeObject> {
    let formats: HashSet<Format> = header.tensors().map(|(_, info)| info.format).collect();
    let has_experts = header.tensors().any(|(name, _)| name.contains("_exps."));
    of_formats(&formats, kv_dtype, has_experts)
}

/// What models usually use.
pub fn usual() -> Vec<CodeObject> {
    of_formats(&USUAL_FORMATS.into_iter().collect(), None, false)
}

fn of_formats(
    formats: &HashSet<Format>,
    kv_dtype: Option<KvDType>,
    has_experts: bool,
) -> Vec<CodeObject> {
    let is_quantized = formats.iter().any(|format| format.block_size() > 1);
    let is_bf16 = formats.contains(&Format::BF16);
    let mut parts: HashSet<String> = formats.iter().map(Format::to_string).collect();
    let kept = match kv_dtype {
        Some(KvDType::F32) => "f32",
        Some(KvDType::F16) => "f16",
        Some(KvDType::Bf16) => "bf16",
        Some(KvDType::Q8_0) => "u8",
        None if is_bf16 => "bf16",
        None => "f16",
    };
    parts.extend(["f32", "u32", kept].map(str::to_string));
    let mut families = STEP.to_vec();
    if is_quantized {
        families.extend(QUANTIZED_STEP);
    }
    families.extend(match kept {
        "bf16" => [Family::AttentionMatrixBf16],
        _ => [Family::AttentionMatrixF16],
    });
    families.extend(PROMPT);
    if is_quantized {
        families.extend(QUANTIZED_PROMPT);
    }
    if has_experts {
        families.extend(EXPERTS);
        if is_quantized {
            families.push(Family::MoeQuantized);
        }
    }
    CodeObject::select(&families, &parts)
}

/// What models of candle-transformers use.
pub fn of_sequential() -> Vec<CodeObject> {
    let mut families = CANDLE.to_vec();
    families.extend([Family::Sampling, Family::Conv]);
    CodeObject::select(&families, &floats())
}

/// What models use that give vectors.
pub fn of_encoder() -> Vec<CodeObject> {
    CodeObject::select(CANDLE, &floats())
}

/// The dtypes of numbers, and of tokens and masks.
fn floats() -> HashSet<String> {
    ["f32", "f16", "bf16", "u32", "u8"]
        .map(str::to_string)
        .into()
}
