//! What the steps tell each other: where kernels are, how they are launched, and what they became.
//!
//! `scan` makes a [`Project`]; `port` makes [`PortedUnit`]s of its files; `check` and `repair` work on these alone, so
//! that units written by hand are checked in the same way.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A place in a file, as an editor counts: from 1, columns in characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Relative to the project's root, with `/`.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

/// A crate, or a folder, with CUDA in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Project {
    /// The folder that all paths are relative to.
    pub root: PathBuf,
    /// Name and version, if there is a Cargo.toml.
    pub package: Option<(String, String)>,
    /// Its `.cu` files, and headers with kernels that no `.cu` file includes.
    pub files: Vec<SourceFile>,
    /// Its build scripts that compile CUDA.
    pub builds: Vec<BuildScript>,
    /// Where its Rust speaks of CUDA.
    pub rust: Vec<RustUse>,
}

/// A `.cu` file, with what its headers brought in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SourceFile {
    /// Relative to the project's root, with `/`.
    pub path: String,
    /// The value of `__CUDA_ARCH__` that it was read with.
    pub cuda_arch: u32,
    /// Includes that are followed, of headers too.
    pub includes: Vec<Include>,
    /// Its kernels, with those of its headers.
    pub kernels: Vec<Kernel>,
    /// Its launches, with those of its headers.
    pub launches: Vec<Launch>,
    /// Device functions, for what kernels reach, and host functions, for what launches.
    pub functions: Vec<Function>,
    /// Why a part of the file was not understood; the rest is there.
    pub problems: Vec<(Place, String)>,
}

/// An `#include`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Include {
    /// Where the line is.
    pub place: Place,
    /// As the line says it, without quotes or angle brackets.
    pub name: String,
    /// The file of the project that it means; a system header has none.
    pub file: Option<String>,
}

/// A `__global__` function.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// With its namespaces, such as `vllm::rotary_embedding_kernel`.
    pub name: String,
    /// Where its name is; for a kernel that a macro makes, where the macro is defined, if that is known.
    pub place: Place,
    /// The last line of its body, in the file of `place`; the same line for what a macro makes.
    pub last_line: usize,
    /// Where the macro that makes it is used, for kernels that no text names.
    pub expansion: Option<Place>,
    /// Whether it has C linkage.
    pub extern_c: bool,
    /// Its own template parameters, in order; empty for a plain kernel.
    pub template: Vec<TemplateParameter>,
    /// Its parameters, in order.
    pub parameters: Vec<Parameter>,
    /// The arguments of `__launch_bounds__`, as text.
    pub launch_bounds: Option<String>,
    /// Template arguments with which host code launches or instantiates it; one empty list for a plain kernel. Names
    /// that mean something only inside of the host function are replaced by what they mean there.
    pub instances: Vec<Vec<String>>,
    /// Names of the device functions that it reaches, directly and through others.
    pub reaches: Vec<String>,
}

/// A parameter of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateParameter {
    /// `typename`, `int`, `bool`, …
    pub kind: String,
    /// Its name; empty if it has none.
    pub name: String,
    /// Its default, as text.
    pub default: Option<String>,
}

/// A parameter of a function, as its text says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameter {
    /// The type with its pointers and references, such as `const float *__restrict__`.
    pub kind: String,
    /// Its name; empty if it has none.
    pub name: String,
}

/// A device function, or a host function of a `.cu` file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Function {
    /// With its namespaces and classes.
    pub name: String,
    /// Where its name is, or where the macro is used that makes it.
    pub place: Place,
    /// The last line of its body.
    pub last_line: usize,
    /// `__device__`, alone or beside `__host__`, or reached by a kernel (`constexpr` functions may say nothing).
    pub device: bool,
    /// Whether it has C linkage.
    pub extern_c: bool,
    /// Its template parameters.
    pub template: Vec<TemplateParameter>,
    /// Its parameters, in order.
    pub parameters: Vec<Parameter>,
    /// Names of what it calls, as the text says them without template arguments.
    pub calls: Vec<String>,
}

/// A `<<<…>>>`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// Where the launch is, or where the macro is used that makes it.
    pub place: Place,
    /// The host function that it is in, with its namespaces and classes.
    pub function: String,
    /// The kernel, as [`Kernel::name`] says it if it is known; else as the launch says it.
    pub kernel: String,
    /// Its template arguments as the launch says them; empty if they are deduced.
    pub template: Vec<String>,
    /// The template arguments for every way in which this launch is reached, all of them said and deduced ones.
    pub instances: Vec<Vec<String>>,
    /// Blocks, as text.
    pub grid: String,
    /// Threads of a block, as text.
    pub block: String,
    /// Bytes of dynamic shared memory, `0` if not said.
    pub shared: String,
    /// The stream, as text.
    pub stream: Option<String>,
    /// What is passed, as text.
    pub arguments: Vec<String>,
}

/// What builds CUDA: `bindgen_cuda`, `cudaforge`, `cc`, or nvcc by hand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuildScript {
    /// Where it names the builder first.
    pub place: Place,
    /// The crate, or `nvcc`.
    pub builder: String,
    /// Files that it names.
    pub inputs: Vec<String>,
    /// `-D`, `-I`, `-std=` and other options.
    pub options: Vec<String>,
    /// Options that are given under a condition only: the condition's text, and the option.
    #[serde(default)]
    pub conditional: Vec<(String, String)>,
}

/// A use of CUDA in Rust: `cudarc`, `CudaDevice`, `extern "C"` functions of `.cu` files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RustUse {
    /// Where it is.
    pub place: Place,
    /// A name of cudarc or candle, or `extern fn NAME`.
    pub what: String,
}

/// Device code that stands alone: HIP on `port/cuda.h`, with entries that have C names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortedUnit {
    /// The `.cu` file's name without its ending.
    pub name: String,
    /// HIP; quoted includes are headers of candle-rocm-kernels.
    pub source: String,
    /// Its entries.
    pub kernels: Vec<PortedKernel>,
}

/// An entry of a unit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortedKernel {
    /// The name in the code object, such as `rocm_rotary_embedding_kernel_f32_true`.
    pub entry: String,
    /// The kernel in the CUDA text, and its template arguments.
    pub kernel: String,
    /// The template arguments of the kernel; empty for a plain one.
    pub template: Vec<String>,
    /// What a launch passes, in order.
    pub arguments: Vec<Argument>,
    /// The largest block, if the text says one.
    pub max_block: Option<u32>,
}

/// An argument of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Argument {
    /// As the kernel's text names it.
    pub name: String,
    /// What it is.
    pub kind: ArgumentKind,
}

/// What is passed for an argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentKind {
    /// An address in device memory; the element's type as the text names it (`float`, `__half`, `void`).
    Pointer {
        /// The element's type.
        element: String,
        /// Whether the kernel may not write to it.
        constant: bool,
    },
    /// A number, by its Rust name: `i8` to `u64`, `f16`, `bf16`, `f32`, `f64`, `bool`.
    Scalar(String),
    /// A structure by value; its C++ name.
    Structure(String),
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing to do.
    Note,
    /// May be wrong, or concerns the host.
    Warning,
    /// `port` changes the text here.
    Edit,
    /// Somebody has to write something.
    Error,
}

/// A place where a rule applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// The rule's id, such as `W3`.
    pub rule: String,
    /// How bad.
    pub severity: Severity,
    /// What was found, with its name.
    pub message: String,
    /// The function that it is in, with its namespaces; empty outside of functions.
    pub function: String,
}

/// Whether a kernel goes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Runs on the shim with its text unchanged.
    Portable,
    /// Runs after edits that `port` makes.
    WithEdits,
    /// A kernel of ours takes its place.
    Mapped {
        /// What it is.
        to: String,
    },
    /// Somebody has to write something.
    ByHand,
}

/// What is to be said about one kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelVerdict {
    /// The `.cu` file that brings it in.
    pub file: String,
    /// With its namespaces.
    pub kernel: String,
    /// Where it is.
    pub place: Place,
    /// Whether it is a plain function, or a template that something instantiates.
    pub used: bool,
    /// How many instances there are; 1 for a plain function.
    pub instances: usize,
    /// The verdict on its text and on all that it reaches.
    pub verdict: Verdict,
    /// Numbers of the findings that lead to it, in [`Scan::findings`].
    pub findings: Vec<usize>,
}

/// What `scan` answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scan {
    /// What is there.
    pub project: Project,
    /// All findings, in the order of places.
    pub findings: Vec<Finding>,
    /// All kernels, in the order of files.
    pub kernels: Vec<KernelVerdict>,
}
