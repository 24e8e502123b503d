//! HIP, hiprtc, rocBLAS, MIOpen and RCCL over the CUDA driver, nvrtc, cuBLAS, cuDNN and NCCL: a shared library with AMD's
//! C ABI, which programs load in place of ROCm to measure their kernels and host code on NVIDIA GPUs.
//!
//! The device is called as CUDA calls it, `sm_90`: waves of 32, byte dot products, mma.sync as matrix instructions.
//! Without cuDNN, MIOpen has no handle to give. HIP took over CUDA's handles, flags and error numbers; what differs is
//! translated. Functions that candle-rocm does not call answer `hipErrorNotSupported`.
//!
//! CUDA's libraries are looked for under `CUDA_PATH`, then where the dynamic loader looks, then in `/usr/local/cuda`.
//! Without the driver there is no device, and the reason is on stderr.
//!
//! | Module | Over | Holds |
//! |---|---|---|
//! | [`hip`] | the driver | devices, memory, streams, events, modules, graphs |
//! | [`hiprtc`] | nvrtc | options translated, a prelude in front of the source |
//! | [`rocblas`] | cuBLAS | handles; products, whose entry points are in `hip-abi` |
//! | [`rccl`] | NCCL | calls handed on: the two have one ABI |
//! | `convolution` | cuDNN | MIOpen's solutions; descriptors are in `hip-abi` |
//! | [`install`] | | laying the library out as a ROCm folder |

mod convolution;
mod cuda;
mod cudnn;
mod driver;
mod library;
mod table;

pub mod hip;
pub mod hiprtc;
pub mod install;
pub mod rccl;
pub mod rocblas;

pub use hip_abi::{error, miopen};
