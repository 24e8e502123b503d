//! HIP's and hiprtc's C ABI over the kernel driver alone: `candle-kfd` behind the functions that candle-rocm calls.
//!
//! Nothing here is exported under a C name: the crate `hip-on-kfd` makes a shared library of it, which programs load in
//! place of ROCm, and a program that links this crate hands [`symbol`] to candle-rocm. There is no rocBLAS, no hipBLASLt
//! and no MIOpen; candle-rocm's own kernels multiply and convolve.
//!
//! | Module | Holds |
//! |---|---|
//! | [`hip`] | the HIP runtime's functions |
//! | [`hiprtc`] | the run-time compiler's, by clang |
//! | `runtime`, `device` | GPUs, objects behind handles, what is lost |
//! | `stream`, `lane`, `point` | order: streams on shared queues, signals between these |
//! | `work`, `graph`, `event`, `module` | what is enqueued, recorded, timed, loaded |
//! | `memory`, `staging`, `across` | memory by address; copies by way of pinned memory |
//!
//! Environment: `HIP_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES` choose GPUs by index, `CANDLE_KFD_DISPLAY=1` allows one
//! that drives a display, `CANDLE_KFD_YES=1` leaves the warning out, `CANDLE_KFD_TIMEOUT` is how many seconds a GPU may
//! take for what was enqueued.

mod across;
mod clock;
mod device;
mod event;
mod functions;
mod graph;
mod image;
mod lane;
mod memory;
mod module;
mod point;
mod runtime;
mod staging;
mod status;
mod stream;
mod sync;
mod visible;
mod wait;
mod work;

pub mod hip;
pub mod hiprtc;

pub use functions::symbol;
#[doc(hidden)]
pub use runtime::start_with;
