//! What models use of the kernels, foreseen so that it can be compiled before the first request.
//!
//! What is not foreseen is compiled when it is used: a file too many costs a second of a first start, a file too few
//! one of a first request.

use crate::engine::api::{KvDType, KvTypes};
use candle_core::rocm_backend::candle_rocm::ops::quantized::Format;
use candle_core::rocm_backend::candle_rocm::{CodeObject, Family};
use std::collections::HashSet;
use worker::gguf::Gguf;

/// What every decoder launches in a step of one token, beside attention.
const STEP: &[Family] = &[
    Family::Instructions,
    Family::Indexing,
    Family::Norm,
    Family::KvCache,
    Family::Gated,
    Family::Binary,
    Family::Sampling,
];
/// The same of quantized matrices, whatever their format.
const BLOCKS: &[Family] = &[
    Family::QuantizedEmbedding,
    // Products are verified by what it gives.
    Family::Dequantize,
];
/// The same of those that are multiplied as integers.
const QUANTIZED_STEP: &[Family] = &[
    Family::QuantizeActivations,
    Family::MatvecK,
    Family::MatvecSmall,
    Family::MatvecLevels,
    Family::MatvecCodebook,
];
/// What longer prompts need of quantized matrices.
const QUANTIZED_PROMPT: &[Family] = &[
    Family::MatmulK,
    Family::MatmulHalves,
    Family::MatmulSmall,
    Family::MatmulLevels,
    Family::MatmulCodebook,
];
/// What models in 8-bit floats need, by dtypes of activations.
const FLOATS: &[Family] = &[Family::MatvecF8, Family::MatmulF8];
/// What some architectures do besides: scales, caps, rotations of their own.
const EXTRAS: &[Family] = &[
    Family::AttentionTiled,
    Family::Affine,
    Family::Copy,
    Family::Rope,
    Family::Unary,
];
/// What experts need beyond that.
const EXPERTS: &[Family] = &[
    Family::MoeRouter,
    Family::Sort,
    Family::MoeRows,
    Family::MoeGate,
];

/// What recurrences need.
const RECURRENT: &[Family] = &[Family::CausalConv, Family::StateSpace];

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

/// What the engine's decoder uses for a model; `kv` is how keys and values are to be stored.
pub fn of_decoder(header: &Gguf, kv: Option<KvTypes>) -> Vec<CodeObject> {
    let formats: HashSet<Format> = header.tensors().map(|(_, info)| info.format).collect();
    let has = |part: &str| header.tensors().any(|(name, _)| name.contains(part));
    let parts = Parts {
        experts: has("_exps."),
        latent: has(".attn_kv_a_mqa."),
    };
    let mut objects = of_formats(&formats, kv, parts);
    let is_lightning = has(".attn_norm_2.") && has(".attn_gate.");
    if has(".ssm_") || has(".time_mix_") || is_lightning {
        // Some scans are of f32 whatever activations are.
        let mut parts: HashSet<String> = ["f32".to_string()].into();
        let halves = [Format::F16, Format::BF16].into_iter();
        parts.extend(
            halves
                .filter(|f| formats.contains(f))
                .map(|f| f.to_string()),
        );
        objects.extend(CodeObject::select(RECURRENT, &parts));
    }
    let parts = activations(&formats);
    let convolves = has(".ssm_conv1d.") || has(".shortconv.");
    if convolves {
        objects.extend(CodeObject::select(&[Family::CausalConv], &parts));
    }
    if convolves && (has(".ssm_ba.") || has(".ssm_beta.")) {
        objects.extend(CodeObject::select(&[Family::DeltaRule], &parts));
    }
    objects
}

/// What models usually use.
pub fn usual() -> Vec<CodeObject> {
    of_formats(&USUAL_FORMATS.into_iter().collect(), None, Parts::default())
}

/// What only some models have.
#[derive(Clone, Copy, Default)]
struct Parts {
    experts: bool,
    /// Latent vectors in place of keys and values.
    latent: bool,
}

/// What activations may be in.
fn activations(formats: &HashSet<Format>) -> HashSet<String> {
    let halves = [Format::F16, Format::BF16].into_iter();
    let halves = halves.filter(|f| formats.contains(f));
    let all = [Format::F32].into_iter().chain(halves);
    all.map(|f| f.to_string()).collect()
}

fn of_formats(formats: &HashSet<Format>, kv: Option<KvTypes>, parts: Parts) -> Vec<CodeObject> {
    let named =
        |names: &[&str]| -> HashSet<String> { names.iter().map(|name| name.to_string()).collect() };
    let has_blocks = formats.iter().any(|format| format.block_size() > 1);
    let is_quantized = formats.iter().any(|format| format.has_integers());
    let has_floats = formats.contains(&Format::F8E4M3);
    let weights: HashSet<String> = formats.iter().map(Format::to_string).collect();
    let activations = activations(formats);
    let kept = match kv {
        Some(types) if types.is_packed() => "packed",
        Some(types) => match types.keys {
            KvDType::F32 => "f32",
            KvDType::Bf16 => "bf16",
            KvDType::Q8_0 => "u8",
            _ => "f16",
        },
        None if formats.contains(&Format::BF16) => "bf16",
        None => "f16",
    };
    let (matrix_attention, half) = match kept {
        "bf16" => (Family::AttentionMatrixBf16, "bf16"),
        _ => (Family::AttentionMatrixF16, "f16"),
    };
    let mut objects = CodeObject::select(STEP, &activations);
    let mut add = |families: &[Family], parts: &HashSet<String>| {
        objects.extend(CodeObject::select(families, parts));
    };
    // The form for f32 verifies the others.
    add(&[Family::AttentionDecode], &named(&[kept, "f32"]));
    if parts.latent {
        add(&[Family::AttentionLatent], &named(&[kept, "f32"]));
    }
    if has_blocks {
        add(BLOCKS, &weights);
    }
    if is_quantized {
        add(QUANTIZED_STEP, &weights);
    }
    if has_floats {
        add(FLOATS, &activations);
    }
    // Formats that are not called Q: IQ, ternary ones, 4-bit floats.
    let mut blocks = formats.iter().filter(|format| format.has_integers());
    if blocks.any(|format| !format.to_string().starts_with('q')) {
        add(&[Family::DequantizeIq], &weights);
    }
    let mut cast = activations.clone();
    cast.insert(half.to_string());
    add(&[Family::Cast, matrix_attention], &cast);
    if is_quantized {
        add(QUANTIZED_PROMPT, &weights);
    }
    if parts.experts {
        add(EXPERTS, &activations);
        add(&[Family::MoeQuantized], &weights);
        if has_floats {
            add(&[Family::MoeF8], &activations);
        }
    }
    add(EXTRAS, &activations);
    objects
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
