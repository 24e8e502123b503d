//! How this crate follows from the published one.

use candle_derive::{Exception, Recipe};

#[path = "fixes.rs"]
mod fixes;

/// A piece of text for each type of GGUF files that upstream lacks (`overlay/quantized/formats/` has them): literals, and `name` where
/// the type's name goes.
macro_rules! for_each_type {
    ($($part:tt)*) => {
        concat!(
            for_type!("IQ2XXS", $($part)*),
            for_type!("IQ2XS", $($part)*),
            for_type!("IQ3XXS", $($part)*),
            for_type!("IQ1S", $($part)*),
            for_type!("IQ4NL", $($part)*),
            for_type!("IQ3S", $($part)*),
            for_type!("IQ2S", $($part)*),
            for_type!("IQ4XS", $($part)*),
            for_type!("IQ1M", $($part)*),
            for_type!("TQ1_0", $($part)*),
            for_type!("TQ2_0", $($part)*),
            for_type!("MXFP4", $($part)*),
            for_type!("NVFP4", $($part)*),
        )
    };
}
macro_rules! for_type {
    ($name:literal, $before:literal name $after:literal) => {
        concat!($before, $name, $after)
    };
    ($name:literal, $before:literal name $between:literal name $after:literal) => {
        concat!($before, $name, $between, $name, $after)
    };
}

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
    fixes: fixes::FIXES,
    exceptions: &[
        Exception {
            file: "src/lib.rs",
            name: "Device's methods for ROCm, and what the fixes consist of",
            find: "mod device;\n",
            replace: "mod device;\nmod device_rocm;\nmod mended;\n",
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
            name: "indexed_moe_forward on the CPU and ROCm too, and an error, not a panic, elsewhere",
            find: "panic!(\"indexed_moe_forward is not implemented in this platform!\");",
            replace: "moe::indexed_moe_forward(self, x, ids)",
            count: 1,
        },
        // The types of GGUF files that upstream lacks, with the feature `rocm` or without: users' files contain them.
        Exception {
            file: "src/quantized/mod.rs",
            name: "module of the further GGUF types",
            find: "pub mod ggml_file;\n",
            replace: "mod formats;\npub mod ggml_file;\nmod moe;\n",
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "further GGUF types",
            find: "    Q6K,\n    Q8K,\n",
            replace: concat!("    Q6K,\n    Q8K,\n", for_each_type!("    " name ",\n")),
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "their numbers, read",
            find: "_ => crate::bail!(\"unknown dtype for tensor {u}\"),",
            replace: "_ => formats::with_number(u)?,",
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "their numbers, written",
            find: "            Self::BF16 => 30,\n",
            replace: concat!("            Self::BF16 => 30,\n", for_each_type!("            Self::" name " => formats::" name ".number,\n")),
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "zeros of them",
            find: "            Self::BF16 => Box::new(vec![bf16::zeros(); elem_count]),\n",
            replace: concat!("            Self::BF16 => Box::new(vec![bf16::zeros(); elem_count]),\n", for_each_type!("            Self::" name " => formats::" name ".zeros(elem_count),\n")),
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "their blocks from a file",
            find: "            Self::BF16 => Box::new(as_t_slice::<bf16>(data).to_vec()),\n",
            replace: concat!("            Self::BF16 => Box::new(as_t_slice::<bf16>(data).to_vec()),\n", for_each_type!("            Self::" name " => formats::" name ".from_data(data),\n")),
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "bytes of their blocks",
            find: "            Self::Q8K => std::mem::size_of::<BlockQ8K>(),\n",
            replace: concat!("            Self::Q8K => std::mem::size_of::<BlockQ8K>(),\n", for_each_type!("            Self::" name " => formats::" name ".bytes,\n")),
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "elements of their blocks",
            find: "            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Q8K => k_quants::QK_K,\n",
            replace: concat!("            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Q8K => k_quants::QK_K,\n", for_each_type!("            Self::" name " => formats::" name ".elements,\n")),
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "their blocks on ROCm",
            find: "GgmlDType::BF16 => rocm::load_quantized(d, as_t_slice::<bf16>(data)),\n",
            replace: "GgmlDType::BF16 => rocm::load_quantized(d, as_t_slice::<bf16>(data)),\n                _ => rocm::load_blocks(d, data, dtype),\n",
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "their blocks on Metal",
            find: "GgmlDType::BF16 => metal::load_quantized(d, as_t_slice::<bf16>(data)),\n",
            replace: "GgmlDType::BF16 => metal::load_quantized(d, as_t_slice::<bf16>(data)),\n                _ => crate::bail!(\"Metal has no kernels for {dtype:?} tensors; use them on the CPU\"),\n",
            count: 1,
        },
        Exception {
            file: "src/quantized/mod.rs",
            name: "their blocks on CUDA",
            find: "GgmlDType::BF16 => cuda::load_quantized(d, as_t_slice::<bf16>(data)),\n",
            replace: "GgmlDType::BF16 => cuda::load_quantized(d, as_t_slice::<bf16>(data)),\n                _ => crate::bail!(\"CUDA has no kernels for {dtype:?} tensors; use them on the CPU\"),\n",
            count: 1,
        },
        Exception {
            file: "src/quantized/ggml_file.rs",
            name: "tensors of them",
            find: "        _ => crate::bail!(\"quantized type {ggml_dtype:?} is not supported yet\"),",
            replace: "        _ if super::formats::has(ggml_dtype) => {\n            let blocks = raw_data[..size_in_bytes].into();\n            super::QTensor::new(QStorage::from_data(blocks, device, ggml_dtype)?, dims)\n        }\n        _ => crate::bail!(\"quantized type {ggml_dtype:?} is not supported yet\"),",
            count: 1,
        },
        Exception {
            file: "src/quantized/cuda.rs",
            name: "no CUDA kernels for them",
            find: "            GgmlDType::Q8K => deq::<crate::quantized::BlockQ8K>(&buffer, block_len, &mut out),\n",
            replace: "            GgmlDType::Q8K => deq::<crate::quantized::BlockQ8K>(&buffer, block_len, &mut out),\n            dtype => crate::bail!(\"CUDA has no kernels for {dtype:?} tensors; use them on the CPU\"),\n",
            count: 1,
        },
        Exception {
            file: "src/quantized/metal.rs",
            name: "no Metal kernels for them",
            find: "pub fn zeros(device: &MetalDevice, elem_count: usize, dtype: GgmlDType) -> Result<Self> {\n",
            replace: "pub fn zeros(device: &MetalDevice, elem_count: usize, dtype: GgmlDType) -> Result<Self> {\n        if super::formats::has(dtype) {\n            crate::bail!(\"Metal has no kernels for {dtype:?} tensors; use them on the CPU\")\n        }\n",
            count: 1,
        },
        Exception {
            file: "src/quantized/metal.rs",
            name: "no Metal storage of them to dequantize",
            find: "                crate::quantized::BlockQ8K::to_float(&vec, &mut out);\n            }\n",
            replace: "                crate::quantized::BlockQ8K::to_float(&vec, &mut out);\n            }\n            dtype => crate::bail!(\"Metal has no kernels for {dtype:?} tensors; use them on the CPU\"),\n",
            count: 1,
        },
        Exception {
            file: "src/quantized/metal.rs",
            name: "no Metal storage of them to name",
            find: "            GgmlDType::BF16 => candle_metal_kernels::GgmlDType::BF16,\n",
            replace: "            GgmlDType::BF16 => candle_metal_kernels::GgmlDType::BF16,\n            _ => unreachable!(\"QMetalStorage::zeros refuses {value:?}\"),\n",
            count: 1,
        },
        // Every back end has numbers of its own here; ours are those of activations in 8 bits.
        Exception {
            file: "tests/quantized_tests.rs",
            name: "rounded results of quantized_matmul on ROCm",
            find: "Device::Rocm(_) => assert_eq!(\n            to_vec2_round(&res, 0)?,\n            &[\n                [84946.0, 214126.0, 344757.0, 473798.0],\n                [213458.0, 604350.0, 1000469.0, 1387990.0],\n                [341970.0, 994574.0, 1656181.0, 2302182.0]",
            replace: "Device::Rocm(_) => assert_eq!(\n            to_vec2_round(&res, 0)?,\n            &[\n                [85114.0, 214543.0, 345424.0, 474705.0],\n                [213474.0, 604461.0, 1000679.0, 1388307.0],\n                [341882.0, 994300.0, 1655737.0, 2301558.0]",
            count: 1,
        },
        Exception {
            file: "tests/quantized_tests.rs",
            name: "rounded results of quantized_matmul_neg on ROCm",
            find: "Device::Rocm(_) => assert_eq!(\n            to_vec2_round(&res, 0)?,\n            &[\n                [243659.0, -19716.0, -285444.0, -550439.0],\n                [23779.0, 21653.0, 19404.0, 18349.0],\n                [-196101.0, 63021.0, 324252.0, 587137.0]",
            replace: "Device::Rocm(_) => assert_eq!(\n            to_vec2_round(&res, 0)?,\n            &[\n                [243539.0, -19598.0, -285069.0, -549849.0],\n                [23782.0, 21648.0, 19387.0, 18348.0],\n                [-196464.0, 63011.0, 324574.0, 587882.0]",
            count: 1,
        },
        Exception {
            file: "tests/quantized_tests.rs",
            name: "the further types have no published error",
            find: "        GgmlDType::Q8K => 0.00065,\n",
            replace: "        GgmlDType::Q8K => 0.00065,\n        other => bail!(\"no error is published for {other:?}\"),\n",
            count: 1,
        },
        Exception {
            file: "tests/quantized_tests.rs",
            name: "where another kernel takes over depends on the GPU",
            find: "    if dev.is_cuda() {",
            replace: "    if dev.is_rocm() {\n        assert!(diff4 < 0.01)\n    } else if dev.is_cuda() {",
            count: 1,
        },
        Exception {
            file: "tests/quantized_tests.rs",
            name: "where another kernel takes over depends on the GPU, below 8 rows too",
            find: "    assert_eq!(diff3, 0.0);",
            replace: "    assert!(diff3 == 0.0 || dev.is_rocm() && diff3 < 0.01);",
            count: 2,
        },
    ],
    exported_macros: &[("src/error.rs", "bail")],
};
