//! Weights in ggml's block-quantized formats, and products with them.
//!
//! [`linear`] multiplies vectors of floats with a [`QuantizedMatrix`] by the path that the table in `select.rs` names, or that [`tune`] found to be the fastest on this GPU. Two of them work on integers:
//! the vectors become [`QuantizedActivations`] first, which several matrices can share.

mod activations;
mod crossovers;
mod dequantize;
mod embedding;
pub(super) mod format;
mod linear;
pub(super) mod matmul;
pub(super) mod matrix;
pub(super) mod matvec;
pub(super) mod select;
mod tune;

pub use activations::QuantizedActivations;
pub use dequantize::dequantize;
pub use embedding::embedding;
pub use ggml_formats::Format as GgmlType;
pub use linear::{gated, gated_quantized, linear, linear_quantized, multiplies_floats};
pub use matmul::matmul;
pub use matrix::{Activation, Epilogue, QuantizedMatrix};
pub use matvec::{gated_matvec, matvec};
pub use select::{Path, MATVEC_MAX_COLUMNS};
pub use tune::{forget, tune, Crossover, Timing};
