//! What takes the place of a system header of CUDA or of C++.

/// What an include of a system header becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    /// Its names are in `port/cuda.h`, or only host code needs them.
    Nothing,
    /// A header of candle-rocm-kernels.
    Shim(&'static str),
    /// Nothing does; what it belongs to.
    Missing(&'static str),
}

/// Headers that `port/cuda.h` stands for: the runtime's and the driver's, numbers, intrinsics.
const CUDA: &[&str] = &[
    "assert.h",
    "builtin_types.h",
    "channel_descriptor.h",
    "crt/",
    "cublas",
    "cuda.h",
    "cuda/atomic",
    "cuda/cmath",
    "cuda/functional",
    "cuda/std/",
    "cuda_",
    "cudnn",
    "cusparse",
    "device_",
    "driver_",
    "host_",
    "library_types.h",
    "math_constants.h",
    "math_functions.h",
    "nccl.h",
    "nvToolsExt.h",
    "sm_",
    "surface_",
    "texture_",
    "vector_",
    "vector_types.h",
];

/// Headers with a shim of their own; the longest beginning that fits counts.
const SHIMS: &[(&str, &str)] = &[
    ("cub/", "port/cub.h"),
    ("cooperative_groups", "port/cooperative_groups.h"),
    ("curand", "port/curand.h"),
    ("cuda/functional", "port/functional.h"),
    ("cuda/std/functional", "port/functional.h"),
    ("cuda_pipeline", "port/pipeline.h"),
    ("cuda/pipeline", "port/pipeline.h"),
    ("cuda/barrier", "port/pipeline.h"),
    ("mma.h", "port/wmma.h"),
    ("thrust/", "port/thrust.h"),
];

/// Libraries that have no counterpart here.
const MISSING: &[(&str, &str)] = &[
    ("cutlass/", "CUTLASS"),
    ("cute/", "CUTLASS"),
    ("torch/", "PyTorch"),
    ("ATen/", "PyTorch"),
    ("c10/", "PyTorch"),
    ("pybind11/", "pybind11"),
    ("cuda_ptx", "libcu++'s PTX"),
    ("cuda/ptx", "libcu++'s PTX"),
];

/// Headers of C whose names have a dot and a slash.
const HOST: &[&str] = &["sys/", "unistd.h", "pthread.h", "dlfcn.h", "omp.h"];

/// What an include of `name` becomes; none if nobody knows it.
pub(crate) fn system(name: &str) -> Option<System> {
    let longest = |table: &[(&str, &'static str)]| {
        let fits = table.iter().filter(|(start, _)| name.starts_with(start));
        fits.max_by_key(|(start, _)| start.len())
            .map(|found| found.1)
    };
    if let Some(library) = longest(MISSING) {
        return Some(System::Missing(library));
    }
    if let Some(header) = longest(SHIMS) {
        return Some(System::Shim(header));
    }
    let standard = !name.contains(['.', '/', '\\']) && !name.is_empty();
    let of_c = name.ends_with(".h") && C.contains(&name.trim_end_matches(".h"));
    let known = |table: &[&str]| table.iter().any(|start| name.starts_with(start));
    (standard || of_c || known(CUDA) || known(HOST)).then_some(System::Nothing)
}

const C: &[&str] = &[
    "assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "limits", "locale", "math",
    "memory", "setjmp", "signal", "stdalign", "stdarg", "stdbool", "stddef", "stdint", "stdio",
    "stdlib", "string", "time", "wchar",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_header() {
        for (name, expected) in [
            ("cuda_fp16.h", Some(System::Nothing)),
            ("cuda/std/limits", Some(System::Nothing)),
            ("cuda_pipeline.h", Some(System::Shim("port/pipeline.h"))),
            ("cub/cub.cuh", Some(System::Shim("port/cub.h"))),
            ("curand_kernel.h", Some(System::Shim("port/curand.h"))),
            ("mma.h", Some(System::Shim("port/wmma.h"))),
            ("vector", Some(System::Nothing)),
            ("stdint.h", Some(System::Nothing)),
            ("cutlass/numeric_types.h", Some(System::Missing("CUTLASS"))),
            ("mine/own.cuh", None),
            ("own.h", None),
            ("", None),
        ] {
            assert_eq!(system(name), expected, "{name}");
        }
    }
}
