//! mistralrs-quant: what packs, unpacks and multiplies quantized weights, and small operations beside.

mod afq_rows;
mod bits;
mod dot_rows;
mod fp8_rows;
mod gptq_rows;
mod hqq_rows;
mod marlin_rows;
mod mxfp4_rows;
mod ops_rows;
mod small_rows;

use crate::data::{Type, Type::*};
use crate::run::Rows;

/// Types of most kernels, as the text calls them, and differences that rounding a result makes.
const KINDS: [(Type, &str, f64); 3] = [
    (F32, "float", 3e-6),
    (F16, "__half", 1e-3),
    (BF16, "__nv_bfloat16", 5e-3),
];

/// The crate's files and their launches.
pub fn files() -> Vec<Rows> {
    vec![
        ("kernels/afq/afq.cu", afq_rows::weights),
        ("kernels/afq/afq_gemm.cu", afq_rows::products),
        ("kernels/hqq/hqq.cu", hqq_rows::dequantize),
        ("kernels/hqq/hqq_bitpack.cu", hqq_rows::pack),
        ("kernels/gptq/q_gemm.cu", gptq_rows::all),
        ("kernels/marlin/marlin_repack.cu", marlin_rows::all),
        ("kernels/scalar_fp8/scalar_fp8.cu", fp8_rows::scalar),
        ("kernels/vector_fp8/vector_fp8.cu", fp8_rows::vector),
        ("kernels/blockwise_fp8/blockwise_fp8.cu", fp8_rows::blocks),
        (
            "kernels/blockwise_fp8/blockwise_fp8_gemm.cu",
            fp8_rows::products,
        ),
        ("kernels/mxfp4/mxfp4_gemm.cu", mxfp4_rows::plain),
        ("kernels/mxfp4/mxfp4_gemm_wmma.cu", mxfp4_rows::matrices),
        ("kernels/ops/ops.cu", ops_rows::all),
        ("kernels/rotary/rotary.cu", small_rows::rotary),
        ("kernels/gemv/gemv.cu", small_rows::gemv),
        ("kernels/bitsandbytes/dequant.cu", small_rows::bitsandbytes),
        ("kernels/indexed_moe/indexed_moe.cu", dot_rows::all),
    ]
}
