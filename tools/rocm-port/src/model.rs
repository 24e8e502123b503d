//! What the steps tell each other: where kernels are, how they are launched, and what they became.
//!
//! `scan` makes a [`Project`]; `port` makes [`PortedUnit`]s of its files; `check` and `repair` work on these alone, so
//! that units written by hand are checked in the same way.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A place in a file, as an editor counts: from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Relative to the project's root, with `/`.
    pub file: String,
    pub line: usize,
    pub column: usize,
}

/// A crate, or a folder, with CUDA in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Project {
    /// The folder that all paths are relative to.
    pub root: PathBuf,
    /// Name and version, if there is a Cargo.toml.
    pub package: Option<(String, String)>,
    pub files: Vec<SourceFile>,
    pub builds: Vec<BuildScript>,
    pub rust: Vec<RustUse>,
}

/// A `.cu` file, with what its headers brought in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceFile {
    pub path: String,
    pub includes: Vec<Include>,
    pub kernels: Vec<Kernel>,
    pub launches: Vec<Launch>,
    /// What a kernel reaches, for rules: device functions and their places.
    pub functions: Vec<Function>,
    /// Why a part of the file was not understood; the rest is there.
    pub problems: Vec<(Place, String)>,
}

/// An `#include`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Include {
    pub place: Place,
    pub name: String,
    /// The file of the project that it means; a system header has none.
    pub file: Option<String>,
}

/// A `__global__` function.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// With its namespaces, such as `vllm::rotary_embedding_kernel`.
    pub name: String,
    pub place: Place,
    /// Where the macro that makes it is used, for kernels that no text names.
    pub expansion: Option<Place>,
    pub extern_c: bool,
    pub template: Vec<TemplateParameter>,
    pub parameters: Vec<Parameter>,
    /// The arguments of `__launch_bounds__`, as text.
    pub launch_bounds: Option<String>,
    /// Template arguments with which host code launches or instantiates it; one empty list for a plain kernel.
    pub instances: Vec<Vec<String>>,
    /// Names of the device functions that it reaches, directly and through others.
    pub reaches: Vec<String>,
}

/// A parameter of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateParameter {
    /// `typename`, `int`, `bool`, …
    pub kind: String,
    pub name: String,
    pub default: Option<String>,
}

/// A parameter of a kernel, as its text says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    pub kind: String,
    pub name: String,
}

/// A device function, or a host function of a `.cu` file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Function {
    pub name: String,
    pub place: Place,
    /// `__device__`, alone or beside `__host__`.
    pub device: bool,
    pub calls: Vec<String>,
}

/// A `<<<…>>>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    pub place: Place,
    /// The host function that it is in.
    pub function: String,
    pub kernel: String,
    pub template: Vec<String>,
    pub grid: String,
    pub block: String,
    /// Bytes of dynamic shared memory, `0` if not said.
    pub shared: String,
    pub stream: Option<String>,
    pub arguments: Vec<String>,
}

/// What builds CUDA: `bindgen_cuda`, `cudaforge`, `cc`, or nvcc by hand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuildScript {
    pub place: Place,
    pub builder: String,
    /// Files that it names.
    pub inputs: Vec<String>,
    /// `-D`, `-I`, `-std=` and other options.
    pub options: Vec<String>,
}

/// A use of CUDA in Rust: `cudarc`, `CudaDevice`, `extern "C"` functions of `.cu` files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RustUse {
    pub place: Place,
    pub what: String,
}

/// Device code that stands alone: HIP on `port/cuda.h`, with entries that have C names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortedUnit {
    /// The `.cu` file's name without its ending.
    pub name: String,
    /// HIP; quoted includes are headers of candle-rocm-kernels.
    pub source: String,
    pub kernels: Vec<PortedKernel>,
}

/// An entry of a unit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortedKernel {
    /// The name in the code object, such as `rocm_rotary_embedding_kernel_f32_true`.
    pub entry: String,
    /// The kernel in the CUDA text, and its template arguments.
    pub kernel: String,
    pub template: Vec<String>,
    pub arguments: Vec<Argument>,
    /// The largest block, if the text says one.
    pub max_block: Option<u32>,
}

/// An argument of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argument {
    pub name: String,
    pub kind: ArgumentKind,
}

/// What is passed for an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentKind {
    /// An address in device memory; the element's type as the text names it (`float`, `__half`, `void`).
    Pointer { element: String, constant: bool },
    /// A number, by its Rust name: `i8` to `u64`, `f16`, `bf16`, `f32`, `f64`, `bool`.
    Scalar(String),
    /// A structure by value; its C++ name.
    Structure(String),
}
