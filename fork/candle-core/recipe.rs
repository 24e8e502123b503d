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
        Exception {
            file: "src/quantized/mod.rs",
            name: "indexed_moe_forward elsewhere than on CUDA is an error, not a panic",
            find: "panic!(\"indexed_moe_forward is not implemented in this platform!\");",
            replace: "crate::bail!(\"indexed_moe_forward is not implemented on this device\")",
            count: 1,
        },
        // Every back end has numbers of its own here; ours are the product of the dequantized values in f32.
        Exception {
            file: "tests/quantized_tests.rs",
            name: "rounded results of quantized_matmul_neg on ROCm",
            find: "Device::Rocm(_) => assert_eq!(\n            to_vec2_round(&res, 0)?,\n            &[\n                [243659.0, -19716.0, -285444.0, -550439.0],\n                [23779.0, 21653.0, 19404.0, 18349.0],\n                [-196101.0, 63021.0, 324252.0, 587137.0]",
            replace: "Device::Rocm(_) => assert_eq!(\n            to_vec2_round(&res, 0)?,\n            &[\n                [243666.0, -19714.0, -285433.0, -550453.0],\n                [23782.0, 21654.0, 19400.0, 18369.0],\n                [-196102.0, 63022.0, 324233.0, 587191.0]",
            count: 1,
        },
        Exception {
            file: "tests/quantized_tests.rs",
            name: "as on CUDA, another kernel takes over above 8 rows",
            find: "    if dev.is_cuda() {",
            replace: "    if dev.is_cuda() || dev.is_rocm() {",
            count: 1,
        },
    ],
    exported_macros: &[("src/error.rs", "bail")],
};
