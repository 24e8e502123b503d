//! The kernels of mistral.rs.

use crate::run::{run, File};
use crate::{mistral_core, mistral_paged, mistral_quant};

const PAGED: &str = "mistralrs-paged-attn@0.8.1";
const CORE: &str = "mistralrs-core@0.8.1";
const QUANT: &str = "mistralrs-quant@0.8.1";

/// A file of one of the crates, ported, compiled, run and compared.
fn file(package: &str, path: &'static str) {
    let (files, defines): (_, &'static [&'static str]) = match package {
        // As its build script has it for GPUs that have 8-bit floats.
        PAGED => (mistral_paged::files(), &["ENABLE_FP8"]),
        CORE => (mistral_core::files(), &[]),
        _ => (mistral_quant::files(), &[]),
    };
    let rows = files
        .into_iter()
        .find(|(known, _)| *known == path)
        .expect("a file of the table")
        .1;
    run(
        package,
        &File {
            arch: 800,
            defines,
            ..File::new(path, rows)
        },
    );
}

/// A test for each file.
macro_rules! files {
    ($(#[$attribute:meta])? $($name:ident: $package:expr, $path:literal;)*) => {
        files!(@ [$(#[$attribute])?] $($name: $package, $path;)*);
    };
    (@ $attributes:tt $($name:ident: $package:expr, $path:literal;)*) => {
        $(files!(@one $attributes $name $package, $path);)*
    };
    (@one [$($attributes:tt)*] $name:ident $package:expr, $path:literal) => {
        #[test]
        $($attributes)*
        fn $name() {
            file($package, $path);
        }
    };
}

// Of each kind of text one or two, which all together take a minute.
files! {
    reshape_and_cache: PAGED, "src/cuda/reshape_and_cache_kernel.cu";
    copy_blocks: PAGED, "src/cuda/copy_blocks_kernel.cu";
    update_kvscales: PAGED, "src/cuda/update_kvscales.cu";
    paged_attention_v1_f16: PAGED, "src/cuda/pagedattention_v1_f16.cu";
    ssm: CORE, "src/cuda/ssm.cu";
    sort: CORE, "src/cuda/sort.cu";
    moe_gemv: CORE, "src/cuda/moe_gemv.cu";
    moe_gemm: CORE, "src/cuda/moe_gemm.cu";
    hqq: QUANT, "kernels/hqq/hqq.cu";
    marlin_repack: QUANT, "kernels/marlin/marlin_repack.cu";
    scalar_fp8: QUANT, "kernels/scalar_fp8/scalar_fp8.cu";
    mxfp4_gemm_wmma: QUANT, "kernels/mxfp4/mxfp4_gemm_wmma.cu";
    rotary: QUANT, "kernels/rotary/rotary.cu";
    bitsandbytes: QUANT, "kernels/bitsandbytes/dequant.cu";
    indexed_moe: QUANT, "kernels/indexed_moe/indexed_moe.cu";
}

files! {
    #[ignore = "minutes of compiling: --include-ignored"]
    gather_kv_cache: PAGED, "src/cuda/gather_kv_cache_kernel.cu";
    concat_and_cache_mla: PAGED, "src/cuda/concat_and_cache_mla_kernel.cu";
    gather_mla_cache: PAGED, "src/cuda/gather_mla_cache_kernel.cu";
    paged_attention_v1_bf16: PAGED, "src/cuda/pagedattention_v1_bf16.cu";
    paged_attention_v1_f32: PAGED, "src/cuda/pagedattention_v1_f32.cu";
    paged_attention_v2_f16: PAGED, "src/cuda/pagedattention_v2_f16.cu";
    paged_attention_v2_bf16: PAGED, "src/cuda/pagedattention_v2_bf16.cu";
    paged_attention_v2_f32: PAGED, "src/cuda/pagedattention_v2_f32.cu";
    flash_attn_sinks: PAGED, "src/cuda/flash_attn_sinks.cu";
    flashinfer_mla_decode: PAGED, "src/cuda/flashinfer_mla_decode.cu";
    gdn: CORE, "src/cuda/gdn.cu";
    moe_gemm_wmma: CORE, "src/cuda/moe_gemm_wmma.cu";
    afq: QUANT, "kernels/afq/afq.cu";
    afq_gemm: QUANT, "kernels/afq/afq_gemm.cu";
    hqq_bitpack: QUANT, "kernels/hqq/hqq_bitpack.cu";
    gptq: QUANT, "kernels/gptq/q_gemm.cu";
    vector_fp8: QUANT, "kernels/vector_fp8/vector_fp8.cu";
    blockwise_fp8: QUANT, "kernels/blockwise_fp8/blockwise_fp8.cu";
    blockwise_fp8_gemm: QUANT, "kernels/blockwise_fp8/blockwise_fp8_gemm.cu";
    mxfp4_gemm: QUANT, "kernels/mxfp4/mxfp4_gemm.cu";
    ops: QUANT, "kernels/ops/ops.cu";
    gemv: QUANT, "kernels/gemv/gemv.cu";
}
