//! MIOpen's convolutions by the simulator. The C ABI with its descriptors and their checks is in `hip-abi`.
#![allow(clippy::missing_safety_doc)] // of C functions: as the documentation says

mod control;
mod convolve;
mod simulated;
mod solver;

pub(crate) use control::{count, reset};
pub use control::{hip_sim_miopen_calls, hip_sim_miopen_fail};
pub use hip_abi::miopen::*;
pub(crate) use simulated::Simulated;
