//! What libraries with the C ABI of HIP, hiprtc, rocBLAS, MIOpen and RCCL have in common, whatever computes behind it:
//! `hip-sim` on the CPU, `hip-on-cuda` on an NVIDIA GPU, `hip-on-kfd` on an AMD GPU by its kernel driver.
//!
//! Here are the functions that do not depend on it (names of statuses, versions) and the halves of those that depend on
//! it little: rocBLAS's products and MIOpen's descriptors and convolutions are taken from C, checked, and handed to the
//! [`Library`]. A library that this crate is linked into exports them all and names itself by [`provide!`].
#![allow(clippy::missing_safety_doc)] // of C functions: as their documentation by AMD says

pub mod error;
pub mod hiprtc;
pub mod install;
mod library;
pub mod miopen;
pub mod rccl;
mod registry;
pub mod rocblas;

pub use library::Library;
pub use registry::Registry;
