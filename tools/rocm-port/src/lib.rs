//! Takes the CUDA kernels of a Rust crate to AMD GPUs, without CUDA and without hipcc.
//!
//! | Step | Module | What it does |
//! |---|---|---|
//! | `scan` | [`source`], [`parse`], [`rules`], [`report`] | finds kernels, launches and build scripts, and says what can go over, and how |
//! | `port` | [`port`] | units of device code on the shim headers, typed launchers in Rust, a feature `rocm` |
//! | `check` | [`check`] | every arch through the compiler, every kernel on the simulator, in both widths of waves |
//! | `repair` | [`repair`] | a bounded loop with a language model, whose answers may touch the kernel only |
//!
//! [`model`] holds what the steps tell each other, [`libraries`] what takes the place of CUDA's libraries.

pub mod check;
pub mod libraries;
pub mod model;
pub mod parse;
pub mod port;
pub mod ptx;
pub mod repair;
pub mod report;
pub mod rules;
pub mod source;
