//! How this crate follows from the published one.

use candle_derive::{Exception, Recipe};

#[path = "fixes.rs"]
mod fixes;

pub const RECIPE: Recipe = Recipe {
    name: "candle-nn",
    version: "0.11.1",
    untouched: &[],
    without_twin: &[],
    arm_bodies: &[],
    fixes: fixes::FIXES,
    exceptions: &[
        Exception {
            file: "src/lib.rs",
            name: "fused operations for models",
            find: "pub mod func;\n",
            replace: "pub mod func;\npub mod fused;\n",
            count: 1,
        },
        // Upstream's functions for builds without CUDA only refuse.
        Exception {
            file: "src/moe.rs",
            name: "only the functions for CUDA need these",
            find: "use candle::{Result, Tensor};\n",
            replace: "#[allow(unused_imports)]\nuse candle::{Result, Tensor};\n",
            count: 1,
        },
        Exception {
            file: "src/moe.rs",
            name: "moe_gemm on every device",
            find: "#[cfg(not(feature = \"cuda\"))]\npub fn moe_gemm(",
            replace: "#[cfg(not(feature = \"cuda\"))]\nmod grouped;\n#[cfg(not(feature = \"cuda\"))]\npub use grouped::{moe_gemm, moe_gemm_gguf};\n\n#[cfg(any())]\npub fn moe_gemm(",
            count: 1,
        },
        Exception {
            file: "src/moe.rs",
            name: "moe_gemm_gguf on every device",
            find: "#[cfg(not(feature = \"cuda\"))]\n#[allow(clippy::too_many_arguments)]\npub fn moe_gemm_gguf(",
            replace: "#[cfg(any())]\n#[allow(clippy::too_many_arguments)]\npub fn moe_gemm_gguf(",
            count: 1,
        },
    ],
    exported_macros: &[],
};
