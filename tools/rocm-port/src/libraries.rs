//! What takes the place of CUDA's libraries: a header of the shim, an operation of candle-rocm, or somebody's hands.
//!
//! docs/rocm-port/libraries.md has the same table.

/// What takes the place of a part of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A header of candle-rocm-kernels has it under CUDA's names.
    Shim(&'static str),
    /// Host code: operations of candle-rocm, and of candle on a device of its.
    Ours(&'static str),
    /// Nothing does; why, or what to write instead.
    ByHand(&'static str),
}

/// A part of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// How its names begin, as source says them.
    pub name: &'static str,
    /// What takes its place.
    pub place: Place,
}

use Place::{ByHand, Ours, Shim};

const fn part(name: &'static str, place: Place) -> Part {
    Part { name, place }
}

/// Parts of libraries, in the order of the page.
pub const PARTS: &[Part] = &[
    part("cub::Thread", Shim("port/cub.h")),
    part("cub::Warp", Shim("port/cub.h")),
    part("cub::Block", Shim("port/cub.h")),
    part(
        "cub::BlockRunLengthDecode",
        ByHand("BlockScan of the lengths, then a search"),
    ),
    part(
        "cub::DeviceReduce::Arg",
        Ours("ops::reduce with ArgMin or ArgMax; Tensor::argmin, argmax"),
    ),
    part(
        "cub::DeviceReduce",
        Ours("ops::reduce (Sum, Min, Max, ArgMin, ArgMax); Tensor::sum, min, max"),
    ),
    part(
        "cub::DeviceReduce::ReduceByKey",
        ByHand("ops::scatter_add if the keys are indices"),
    ),
    part(
        "cub::DeviceSegmentedReduce",
        Ours("ops::reduce over the last axis, for segments of one length"),
    ),
    part(
        "cub::DeviceScan",
        Ours("ops::cumsum for sums, inclusive; Tensor::cumsum. Other operators are by hand"),
    ),
    part(
        "cub::DeviceRadixSort",
        Ours("ops::argsort and ops::gather: stable, both orders; Tensor::sort_last_dim"),
    ),
    part(
        "cub::DeviceMergeSort",
        Ours("ops::argsort, for orders of numbers"),
    ),
    part(
        "cub::DeviceSegmentedSort",
        Ours("ops::argsort sorts every row, for segments of one length"),
    ),
    part(
        "cub::DeviceSegmentedRadixSort",
        Ours("ops::argsort sorts every row, for segments of one length"),
    ),
    part(
        "cub::DeviceSelect",
        ByHand("ops::cumsum of the flags, then a kernel that scatters"),
    ),
    part(
        "cub::DevicePartition",
        ByHand("ops::cumsum of the flags, then a kernel that scatters"),
    ),
    part(
        "cub::DeviceHistogram",
        ByHand("a kernel with cub::BlockHistogram, or ops::scatter_add of ones"),
    ),
    part(
        "cub::DeviceRunLengthEncode",
        ByHand("a kernel that marks heads, ops::cumsum, a kernel that scatters"),
    ),
    part("cub::DeviceFor", ByHand("a kernel")),
    part(
        "cub::DeviceMemcpy",
        Ours("ops::copy_strided for each of the copies"),
    ),
    part(
        "cub::CachingDeviceAllocator",
        Ours("candle-rocm's own pool, which every Device has"),
    ),
    part("cub::CountingInputIterator", Shim("port/cub.h")),
    part("cub::ConstantInputIterator", Shim("port/cub.h")),
    part("cub::TransformInputIterator", Shim("port/cub.h")),
    part("cooperative_groups::", Shim("port/cooperative_groups.h")),
    part(
        "cooperative_groups::grid_group::sync",
        ByHand("two kernels, of what is before it and what is behind it"),
    ),
    part(
        "cooperative_groups::multi_grid_group",
        ByHand("a kernel for each device, and candle-rocm-collective"),
    ),
    part(
        "cooperative_groups::cluster_group",
        ByHand("AMD GPUs have none: shared memory of a block, or global memory"),
    ),
    part(
        "cudaLaunchCooperativeKernel",
        ByHand("two kernels, of what is before the grid's barrier and what is behind it"),
    ),
    part("curand_", Shim("port/curand.h")),
    part("curandState_t", Shim("port/curand.h")),
    part("curandStateXORWOW", Shim("port/curand.h")),
    part("curandStatePhilox4_32_10", Shim("port/curand.h")),
    part(
        "curandStateMRG32k3a",
        ByHand("curandStatePhilox4_32_10_t, with other numbers"),
    ),
    part(
        "curandStateMtgp32",
        ByHand("curandStatePhilox4_32_10_t, with other numbers"),
    ),
    part(
        "curandStateSobol",
        ByHand("quasi-random numbers have no counterpart"),
    ),
    part(
        "curandStateScrambledSobol",
        ByHand("quasi-random numbers have no counterpart"),
    ),
    part(
        "curand_discrete",
        ByHand("a search in the cumulated weights"),
    ),
    part(
        "curandGenerateUniform",
        Ours("ops::uniform; Tensor::rand. Other numbers than cuRAND's"),
    ),
    part(
        "curandGenerateNormal",
        Ours("ops::normal; Tensor::randn. Other numbers than cuRAND's"),
    ),
    part("curandGenerate", Ours("ops::philox for words")),
    part("curandCreateGenerator", Ours("Device::set_seed")),
    part("__pipeline_", Shim("port/pipeline.h")),
    part("cuda::pipeline", Shim("port/pipeline.h")),
    part("cuda::barrier", Shim("port/pipeline.h")),
    part("cuda::memcpy_async", Shim("port/pipeline.h")),
    part("cuda::make_pipeline", Shim("port/pipeline.h")),
    part("nvcuda::wmma::", Shim("port/wmma.h")),
    part(
        "nvcuda::wmma::experimental",
        ByHand("4-bit and 1-bit integers: bytes"),
    ),
    part(
        "nvcuda::wmma::bmma_sync",
        ByHand("4-bit and 1-bit integers: bytes"),
    ),
    part("thrust::seq", Shim("port/thrust.h")),
    part("thrust::plus", Shim("port/thrust.h")),
    part("thrust::maximum", Shim("port/thrust.h")),
    part("thrust::minimum", Shim("port/thrust.h")),
    part("thrust::pair", Shim("port/thrust.h")),
    part("thrust::tuple", Shim("port/thrust.h")),
    part("thrust::make_", Shim("port/thrust.h")),
    part("thrust::counting_iterator", Shim("port/thrust.h")),
    part("thrust::transform_iterator", Shim("port/thrust.h")),
    part("thrust::device_ptr", Shim("port/thrust.h")),
    part("thrust::device_vector", Ours("Device::alloc, or a tensor")),
    part("thrust::reduce", Ours("ops::reduce")),
    part("thrust::sort", Ours("ops::argsort and ops::gather")),
    part("thrust::stable_sort", Ours("ops::argsort and ops::gather")),
    part("thrust::inclusive_scan", Ours("ops::cumsum for sums")),
    part(
        "thrust::exclusive_scan",
        Ours("ops::cumsum for sums, less the elements themselves"),
    ),
    part("thrust::fill", Ours("ops::fill")),
    part("thrust::gather", Ours("ops::gather, ops::index_select")),
    part("thrust::scatter", Ours("ops::scatter_set")),
    part("thrust::", ByHand("a kernel, or operations of candle")),
];

/// What takes the place of a name as source says it, with its namespaces; the longest part that fits counts.
///
/// `thrust::sort` with `thrust::seq` inside of a kernel is of the shim, whatever stands here for the host.
pub fn place_of(name: &str) -> Option<&'static Part> {
    let fits = PARTS.iter().filter(|part| name.starts_with(part.name));
    fits.max_by_key(|part| part.name.len())
}

/// The table of docs/rocm-port/libraries.md.
pub fn table() -> String {
    let mut page = String::from("| Name | What takes its place |\n|---|---|\n");
    for part in PARTS {
        let place = match part.place {
            Shim(header) => format!("`{header}`"),
            Ours(what) => format!("ours: {what}"),
            ByHand(why) => format!("**by hand**: {why}"),
        };
        page.push_str(&format!("| `{}` | {place} |\n", part.name));
    }
    page
}
