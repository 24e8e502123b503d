//! How this crate follows from the published one.

use candle_derive::{Exception, Recipe};

pub const RECIPE: Recipe = Recipe {
    name: "candle-core",
    version: "0.11.1",
    untouched: &[
        "src/metal_backend/",
        "src/cuda_backend/",
        "src/dummy_cuda_backend.rs",
        "src/dummy_metal_backend.rs",
        "src/quantized/metal.rs",
        "src/quantized/dummy_metal.rs",
    ],
    without_twin: &[
        ("src/lib.rs", &["dummy_metal_backend"]),
        ("src/quantized/mod.rs", &["dummy_metal"]),
        // Without the feature there is no Rocm variant, so nothing can be "not compiled".
        ("src/error.rs", &["NotCompiledWithMetalSupport"]),
        // Written out in overlay/rocm_backend/device_ext.rs, part of it without the feature.
        (
            "src/device.rs",
            &["as_metal_device", "new_metal", "is_metal", "metal_if_available"],
        ),
        ("src/utils.rs", &["metal_is_available"]),
        ("src/storage.rs", &["is_metal"]),
        ("src/test_utils.rs", &["test_metal", "new_metal", "metal"]),
    ],
    arm_bodies: &[(
        "src/safetensors.rs",
        &[
            "Storage::Rocm(device.storage_from_bytes(data, dtype)?)",
            "Storage::Rocm(device.storage_from_bytes(data, dtype)?)",
        ],
    )],
    exceptions: &[
        Exception {
            file: "src/lib.rs",
            name: "Device's methods for ROCm",
            find: "mod device;\n",
            replace: "mod device;\nmod device_rocm;\n",
            count: 1,
        },
        Exception {
            file: "src/utils.rs",
            name: "utils::rocm_is_available",
            find: "pub fn metal_is_available() -> bool {",
            replace: "pub use crate::device_rocm::rocm_is_available;\n\npub fn metal_is_available() -> bool {",
            count: 1,
        },
        Exception {
            file: "src/device.rs",
            name: "a ROCm device is no Metal device",
            find: "Self::Cpu => crate::bail!(\"expected a metal device, got cpu\"),",
            replace: "Self::Cpu => crate::bail!(\"expected a metal device, got cpu\"),\n            #[cfg(feature = \"rocm\")]\n            Self::Rocm(_) => crate::bail!(\"expected a metal device, got rocm\"),",
            count: 1,
        },
        // Two devices on one GPU may have streams of their own: their tensors must not meet unsynchronised.
        Exception {
            file: "src/storage.rs",
            name: "same device means same stream",
            find: "if self.device().is_metal() {",
            replace: "if self.device().is_metal() || self.device().is_rocm() {",
            count: 1,
        },
        Exception {
            file: "src/tensor.rs",
            name: "copies from one ROCm device to another",
            find: "(Storage::Cpu(storage), Device::Cpu) => Storage::Cpu(storage.clone()),",
            replace: "#[cfg(feature = \"rocm\")]\n                (Storage::Rocm(storage), Device::Rocm(rocm)) => {\n                    Storage::Rocm(storage.transfer_to_device(rocm)?)\n                }\n                (Storage::Cpu(storage), Device::Cpu) => Storage::Cpu(storage.clone()),",
            count: 1,
        },
        Exception {
            file: "src/test_utils.rs",
            name: "test_device! runs on ROCm, in a module of the function's name so that call sites need no further argument",
            find: "        #[cfg(feature = \"metal\")]",
            replace: "        #[cfg(feature = \"rocm\")]\n        mod $fn_name {\n            use super::*;\n            #[test]\n            fn rocm() -> Result<()> {\n                super::$fn_name(&Device::new_rocm(0)?)\n            }\n        }\n\n        #[cfg(feature = \"metal\")]",
            count: 1,
        },
    ],
    exported_macros: &[("src/error.rs", "bail")],
};
