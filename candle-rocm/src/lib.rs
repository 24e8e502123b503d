//! A safe layer over AMD's HIP runtime, found at run time, and the tensor operations built on it.
//!
//! # A short tour
//!
//! | On the CPU | On the GPU | Here |
//! |---|---|---|
//! | the machine | a GPU and a queue of work on it | [`Device`] |
//! | `Vec<u8>` | device memory | [`Buffer`], from [`Device::alloc`] or [`Device::upload`] |
//! | a strided slice of a type | the same over a buffer | [`View`] |
//! | calling a function on all elements | launching a kernel | [`Kernel::launch`], or a ready operation in [`ops`] |
//! | returning | the host has waited for the queue | [`Device::synchronize`], [`Device::download`] |
//! | `Instant` | marks in the queue | [`Event`] |
//!
//! Calls return as soon as their work is enqueued; a [`Device`]'s work is carried out in order. Dropping a
//! [`Buffer`] whose work is still queued is fine.
//!
//! ```no_run
//! use candle_rocm::{Args, Device, LaunchConfig};
//!
//! # fn main() -> candle_rocm::Result<()> {
//! let device = Device::new(0)?;
//! println!("{} ({})", device.properties().name, device.properties().arch);
//!
//! let source = r#"
//!     extern "C" __global__ void twice(float* x, unsigned n) {
//!         unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
//!         if (i < n) x[i] *= 2.0f;
//!     }
//! "#;
//! let buffer = device.upload(&1.5f32.to_le_bytes())?;
//! let config = LaunchConfig { grid: 1, block: 64, shared_bytes: 0 };
//! let twice = device.custom_kernel(source, "twice")?;
//! // SAFETY: these are the arguments of the kernel, and the buffer has one float.
//! unsafe { twice.launch(config, &Args::new().ptr(&buffer, 0).u32(1))? };
//!
//! let mut bytes = [0; 4];
//! device.download(&buffer, 0, &mut bytes)?;
//! assert_eq!(f32::from_le_bytes(bytes), 3.0);
//! # Ok(())
//! # }
//! ```
//!
//! ROCm is looked for when it is first needed ([`sys`]); nothing of it is needed to build. Without it,
//! [`topology`] still tells which GPUs the machine has and why they cannot be used.
//!
//! # Environment
//!
//! | Variable | Values | Default | Meaning |
//! |---|---|---|---|
//! | `ROCM_PATH`, `HIP_PATH` | FOLDER | the loader's path, `/opt/rocm*` | where ROCm is |
//! | `CANDLE_ROCM_CACHE_DIR` | FOLDER | `$XDG_CACHE_HOME/candle-rocm`, else `~/.cache/candle-rocm` | where compiled kernels are kept, an absolute path; not used if it belongs to another user or others may write there |
//! | `CANDLE_ROCM_CLANG` | PROGRAM | `clang++-22`, `clang++` or `amdclang++` on `PATH` | at build time: the clang that compiles embedded kernels |
//! | `CANDLE_ROCM_ARCHS` | ARCH,ARCH,… | none | at build time: embed kernels for these archs, such as `gfx942,gfx1100`, or for the `common` ones (needs clang 22) |
//! | `CK_DIR` | FOLDER | none | at build time, feature `ck`: a ROCm installation or Composable Kernel's sources |
//! | `CANDLE_ROCM_CK_ARCHS` | ARCH,ARCH,… | those of `CANDLE_ROCM_ARCHS` that have it | at build time, feature `ck`: the archs to compile Composable Kernel's attention for |
//! | `CANDLE_ROCM_CK_FLAGS` | FLAGS | none | at build time, feature `ck`: further arguments for clang |
//! | `CANDLE_ROCM_RUNTIME` | hip, kfd | hip | who drives the GPU: AMD's HIP runtime, or the one of a program built with the feature `kfd`, over the kernel driver alone |
//! | `CANDLE_ROCM_MATMUL` | auto, rocblas, own | auto | who multiplies matrices of floats; auto is rocBLAS where it can work, unless `tune` found our own kernels faster |
//! | `CANDLE_ROCM_FP8_GEMM` | auto, hipblaslt, own | auto | who multiplies f8e4m3 with scales of tensors or rows; auto is our own kernels, unless `tune_scaled` found hipBLASLt faster |
//! | `CANDLE_ROCM_QMATMUL` | auto, matvec, few, halves, matmul, float8, dequantize, bf16 | auto | the path of quantized products |
//! | `CANDLE_ROCM_ATTENTION` | auto, ck, matrix, tiled, naive | auto | the tier of attention; what it cannot compute is an error that says why |
//! | `CANDLE_ROCM_MIOPEN` | off, fast, tune | fast | convolutions by MIOpen: never, by its estimates, or by what it measures once and remembers |
//! | `CANDLE_ROCM_SYNC` | 0, 1 | 0 | 1 waits after every launch, so that an error names its kernel |
//! | `CANDLE_ROCM_ALLOC` | cached, direct | cached | `direct` makes every buffer an allocation of its own, for hunting memory errors |
//! | `CANDLE_ROCM_VERIFY` | off, first, always | first | kernels and libraries are compared with what they should compute: never, at the first use ever, or in each process |
//!
//! A value that is not in the list is an error that names what is; [`config`] has the table.

pub mod blas;
mod buffer;
mod caches;
mod captures;
mod code_object;
pub mod compile;
pub mod config;
mod declared;
mod device;
mod dtype;
mod error;
mod error_word;
mod event;
mod gpu;
mod graph;
mod host_buffer;
pub mod host_memory;
mod kernels;
pub mod known_issues;
mod launch;
mod launch_count;
mod lookup;
mod measure;
pub mod miopen;
mod module;
mod open;
pub mod ops;
mod peer;
mod pinned;
mod pool;
pub mod precompile;
mod properties;
mod remembered;
mod shared;
mod signatures;
mod slots;
mod stream;
mod sync;
pub mod sys;
mod transfer;
mod upload_stream;
pub mod verify;
mod view;

pub use buffer::Buffer;
pub use candle_rocm_kernels::{CacheStats, Family};
pub use code_object::CodeObject;
pub use declared::{ArgumentType, DeclaredKernel, Only};
pub use device::Device;
pub use dtype::{DType, Scalar};
pub use error::{Error, Result};
pub use error_word::IndexOp;
pub use event::Event;
pub use gpu_topology as topology;
pub use gpu_topology::{Arch, Generation, Matrix};
pub use graph::{Capture, Graph};
pub use host_buffer::HostBuffer;
pub use launch::{Args, Kernel, LaunchConfig};
pub use peer::{HostWords, PeerAccess, PeerBuffer};
pub use pool::MemoryStats;
pub use properties::DeviceProperties;
pub use stream::Stream;
pub use upload_stream::UploadStream;
pub use view::{contiguous_strides, View};
