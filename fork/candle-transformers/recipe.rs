//! How this crate follows from the published one.

use candle_derive::Recipe;

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
    exceptions: &[],
    exported_macros: &[("src/models/deepseek2.rs", "serde_default_fn")],
};
