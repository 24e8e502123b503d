//! HIP, hiprtc, rocBLAS and hipBLASLt on the CPU: a test instrument for machines without an AMD GPU.
//!
//! The crate is built as a shared library with AMD's C ABI ([`hip`], [`hiprtc`], [`rocblas`], [`hipblaslt`], [`miopen`], [`rccl`]),
//! which programs load in place of ROCm, and as a Rust library: [`client`] for tests of such programs, [`install`] to lay the
//! shared library out as a ROCm folder.
//!
//! | Module | Holds |
//! |---|---|
//! | [`hip`] | the HIP runtime: devices, memory, streams, events, modules, graphs |
//! | [`hiprtc`] | HIP source to a shared object: prelude, translation, host compiler |
//! | `exec` | modules and launches: blocks on cores, threads on coroutines, barriers, wave exchange |
//! | `memory`, `shadow` | the reserved address range: heaps, guard zones, poison, what kernels may access |
//! | `peers` | links between devices |
//! | [`rocblas`] | handles and matrix products |
//! | [`hipblaslt`] | products of 8-bit floats with scales |
//! | [`rccl`] | communicators whose ranks are threads or processes |
//! | [`control`] | counters, injected failures, wrong results and findings |
//!
//! What does not depend on the simulator (names of statuses, MIOpen's descriptors, arguments of products) is in
//! `hip-abi`, which is exported with it and calls back through `library`.
//!
//! The README lists the environment variables and what device code sees.

mod arch;
mod config;
mod exec;
mod inject;
mod memory;
mod peers;
mod report;
mod shadow;
mod sim;
mod wrong;

pub mod client;
pub mod control;
pub mod hip;
pub mod hipblaslt;
pub mod hiprtc;
pub mod install;
pub mod miopen;
pub mod rccl;
pub mod rocblas;

pub use hip_abi::error;

mod library;
