//! Weights in ggml's block-quantized formats.

mod dequantize;
mod format;
mod matvec;

pub use dequantize::dequantize;
pub use format::GgmlType;
pub use matvec::{matvec, MATVEC_MAX_COLUMNS};
