//! How this crate follows from the published one.

#[path = "fixes.rs"]
mod fixes;

use candle_derive::{Exception, Recipe};

pub const RECIPE: Recipe = Recipe {
    name: "candle-transformers",
    version: "0.11.1",
    untouched: &[],
    without_twin: &[
        // One row on Metal is copied to stay clear of a fault of its kernels.
        ("src/models/quantized_llama.rs", &["is_metal"]),
        // The other devices take the branch of plain tensor operations.
        (
            "src/models/z_image/transformer.rs",
            &["is_metal", "attention_metal"],
        ),
    ],
    arm_bodies: &[],
    fixes: fixes::FIXES,
    exceptions: &[
        Exception {
            file: "src/models/qwen3_moe.rs",
            name: "one product for all experts, as with CUDA",
            find: "if cfg!(feature = \"cuda\") {",
            replace: "if cfg!(feature = \"cuda\") || vb.device().is_rocm() {",
            count: 1,
        },
        Exception {
            file: "src/models/z_image/transformer.rs",
            name: "flash attention where there is no mask, as with CUDA",
            find: "if device.is_cuda() {",
            replace: "if device.is_cuda() || device.is_rocm() {",
            count: 1,
        },
    ],
    exported_macros: &[("src/models/deepseek2.rs", "serde_default_fn")],
};
