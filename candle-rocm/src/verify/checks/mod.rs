//! The checks of kernels: each has an operation compute something small with the kernel, and compares it with the host.
//!
//! To add one: a function that takes the kernel's declaration, finds by its name what it is for, and runs the operation
//! on sizes that lead to it; and its family's row in [`of_kernel`]. A test has every kernel that has a check verified,
//! and fails if the check does not launch it.

mod attention;
mod backward;
mod conv;
mod elementwise;
mod experts;
mod float8;
mod floats;
mod indexing;
mod latent;
mod libraries;
mod order;
mod packed_cache;
mod products;
mod quantized;
mod recurrent;
mod reduce;
mod rows;
mod state_space;

use super::admit::{Check, Checks, Finding};
use super::instructions;
use crate::{DType, DeclaredKernel, Device, Family};

/// All checks.
pub(crate) static CHECKS: Checks = Checks {
    instruction: instructions::check,
    of_kernel,
    product: libraries::product,
    composable: libraries::composable,
};

/// The check of a kernel. The families without one are the plainest form of their operation: a thread for each element,
/// and nothing between threads. Collectives need several GPUs; who makes a group checks its sums.
fn of_kernel(kernel: &DeclaredKernel) -> Option<Check> {
    let (run, instead): (fn(&Device, &DeclaredKernel) -> Finding, _) = match kernel.family {
        Family::Affine => (elementwise::affine, ""),
        Family::Unary => (elementwise::unary, ""),
        Family::Binary => (elementwise::binary, ""),
        Family::Cast => (elementwise::cast, ""),
        Family::Gated => (elementwise::gated, ""),
        Family::Epilogue => (elementwise::epilogue, ""),
        Family::Softmax => (rows::softmax, ""),
        Family::Norm => (rows::norm, ""),
        Family::GroupNorm => (rows::group_norm, ""),
        Family::Rope => (rows::rope, ""),
        Family::SoftmaxBackward => (backward::softmax, ""),
        Family::NormBackward => (backward::norm, ""),
        Family::GroupNormBackward => (backward::group_norm, ""),
        Family::GatedBackward => (backward::gated, ""),
        Family::AttentionBackward => (backward::attention, ""),
        Family::QuantizeActivations => (quantized::activations, ""),
        Family::QuantizeFloats => (float8::activations, ""),
        Family::MatmulFloat8 => (float8::matmul, "the product of other floats"),
        Family::MatmulMx => (float8::matmul, "the product by integers"),
        Family::Scaled => (float8::scaled, "the product without matrix instructions"),
        Family::Reduce => (reduce::strided, ""),
        Family::ReducePacks => (reduce::packs, "the reduction of any layout"),
        Family::Scan => (reduce::scan, ""),
        Family::Sort => (order::sort, ""),
        Family::Sampling => (order::sampling, ""),
        Family::StateSpace => (state_space::scan, ""),
        Family::IndexingRows => (indexing::rows, "indexing by places"),
        Family::Conv => (conv::own, ""),
        Family::CausalConv => (recurrent::convolution, ""),
        Family::DeltaRule => (recurrent::delta, ""),
        Family::AttentionMatrixF16 | Family::AttentionMatrixBf16 => {
            (attention::matrix, "attention by tiles")
        }
        Family::AttentionTiled => (attention::tiled, "attention as it is written"),
        Family::AttentionDecode if kernel.name.starts_with("attention_split_packed_") => {
            (packed_cache::split, "attention by tiles")
        }
        Family::AttentionDecode => (attention::split, "attention by tiles"),
        Family::AttentionLatent => (latent::attention, "attention by tiles"),
        Family::KvCache => match kernel.name.as_str() {
            "kv_cache_write" => (attention::kv_cache, ""),
            "kv_cache_write_packed" | "kv_cache_rotate" => (packed_cache::cache, ""),
            _ => return None,
        },
        Family::MatvecSmall | Family::MatvecK | Family::MatvecCodebook | Family::MatvecLevels => {
            (quantized::matvec, "the product by tiles, or of floats")
        }
        Family::MatmulSmall | Family::MatmulK | Family::MatmulCodebook | Family::MatmulLevels => {
            (quantized::matmul, "the product of floats")
        }
        Family::MatvecF8 => (
            floats::products,
            "the product by tiles, or of dequantized floats",
        ),
        Family::MatmulF8 => (floats::products, "the product of dequantized floats"),
        Family::MoeF8 => (floats::experts, "the other product of experts"),
        Family::MatmulHalves => (quantized::halves, "the product by integers, or of floats"),
        Family::Gemm => (products::tiles, ""),
        Family::Gemv => (products::vectors, "the product in tiles"),
        Family::MoeQuantized => (experts::quantized, "the other product of experts"),
        Family::MoeRouter => (latent::router, ""),
        Family::MoeRows => (experts::rows, "the other product of experts"),
        Family::MoeGate => (experts::gates, ""),
        Family::Instructions
        | Family::Fill
        | Family::Ternary
        | Family::Indexing
        | Family::Copy
        | Family::Rand
        | Family::AttentionScores
        | Family::Pool
        | Family::Upsample
        | Family::Collective
        | Family::Dequantize
        | Family::DequantizeIq
        | Family::QuantizedEmbedding => return None,
    };
    Some(Check { run, instead })
}

/// What a kernel's name is but for its last word, and the dtype that this is.
fn split_dtype(name: &str) -> Option<(&str, DType)> {
    let (head, word) = name.rsplit_once('_')?;
    let dtype = DType::ALL.into_iter().find(|d| d.as_str() == word)?;
    Some((head, dtype))
}

/// What a check says of a kernel that it does not know.
fn unknown(kernel: &DeclaredKernel) -> Finding {
    Ok(Some(format!("no check knows {}", kernel.name)))
}
