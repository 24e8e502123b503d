//! How this crate follows from the published one.

use candle_derive::{Exception, Recipe};

/// A piece of text for each type of GGUF files that upstream lacks (`overlay/quantized/formats/` has them): literals,
/// and `name` where the type's name goes.
macro_rules! for_each_type {
    ($($part:tt)*) => {
        ggml_formats::formats!(for_types [$($part)*])
    };
}
macro_rules! for_types {
    ($text:tt $($encoding:ident { $($(#[$doc:meta])* $name:ident $row:tt)* })*) => {
        concat!($($(for_type!($encoding $name $text)),*),*)
    };
}
macro_rules! for_type {
    // Upstream has these.
    (Plain $name:ident $text:tt) => {
        ""
    };
    (Small $name:ident $text:tt) => {
        ""
    };
    (K $name:ident $text:tt) => {
        ""
    };
    ($encoding:ident $name:ident [$before:literal name $after:literal]) => {
        concat!($before, stringify!($name), $after)
    };
    ($encoding:ident $name:ident [$before:literal name $between:literal name $after:literal]) => {
        concat!(
            $before,
            stringify!($name),
            $between,
            stringify!($name),
            $after
        )
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
        // Written out in overlay/device_rocm.rs, part of it without the feature.
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
    // The rest of the types of GGUF files that upstream lacks: `departures/0006-further-gguf-types.patch`.
    exceptions: &[
        Exception {
            file: "src/quantized/mod.rs",
            name: "further GGUF types",
            find: "    Q6K,\n    Q8K,\n",
            replace: concat!("    Q6K,\n    Q8K,\n", for_each_type!("    " name ",\n")),
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
    ],
    exported_macros: &[("src/error.rs", "bail")],
};
