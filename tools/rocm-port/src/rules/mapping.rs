//! Kernels of ours that take the place of those that cannot go over.

/// A kernel of ours and what it stands for.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// A part of the kernel's name, in lower case.
    pub kernel: &'static str,
    /// What takes its place: a function or type of the crates here.
    pub to: &'static str,
    /// How it is called, in Rust.
    pub example: &'static str,
}

/// The table, more particular parts of names first.
pub const REPLACEMENTS: &[Replacement] = &[
    Replacement {
        kernel: "flash_fwd_splitkv",
        to: "candle_flash_attn::flash_attn_varlen_paged_windowed",
        example: "flash_attn_varlen_paged_windowed(&q, &k_pool, &v_pool, …)?",
    },
    Replacement {
        kernel: "flash",
        to: "candle_flash_attn::flash_attn",
        example: "flash_attn(&q, &k, &v, scale, causal)?",
    },
    Replacement {
        kernel: "batchdecode",
        to: "candle_flash_attn::flash_attn_varlen_paged_windowed",
        example: "flash_attn_varlen_paged_windowed(&q, &k_pool, &v_pool, …)?",
    },
    Replacement {
        kernel: "paged_attention",
        to: "candle_flash_attn::flash_attn_varlen_paged_windowed",
        example: "flash_attn_varlen_paged_windowed(&q, &k_pool, &v_pool, …)?",
    },
    Replacement {
        kernel: "marlin",
        to: "candle_core::quantized::QMatMul",
        example: "QMatMul::from_qtensor(weights)?.forward(&x)?",
    },
    Replacement {
        kernel: "mul_mat_q",
        to: "candle_core::quantized::QMatMul",
        example: "QMatMul::from_qtensor(weights)?.forward(&x)?",
    },
    Replacement {
        kernel: "moe_gemm_gguf",
        to: "candle_nn::moe::moe_gemm_gguf",
        example: "moe_gemm_gguf(&x, &weights, &topk_weights, …)?",
    },
    Replacement {
        kernel: "moe_gemm",
        to: "candle_nn::moe::moe_gemm",
        example: "moe_gemm(&x, &weights, &topk_weights, …)?",
    },
    Replacement {
        kernel: "scaled_mm",
        to: "candle_nn::float8::scaled_matmul",
        example: "scaled_matmul(&a, &b, …)?",
    },
    Replacement {
        kernel: "layer_norm",
        to: "candle_nn::ops::layer_norm",
        example: "candle_nn::ops::layer_norm(&x, &alpha, &beta, 1e-5)?",
    },
    Replacement {
        kernel: "gemm",
        to: "candle_core::Tensor::matmul",
        example: "a.matmul(&b)?",
    },
];

/// What takes the place of a kernel, by its name.
pub fn replacement(kernel: &str) -> Option<&'static Replacement> {
    let kernel = kernel.to_ascii_lowercase();
    REPLACEMENTS
        .iter()
        .find(|entry| kernel.contains(entry.kernel))
}
