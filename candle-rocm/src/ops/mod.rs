//! The tensor operations: one file per kernel family, named as its device file.
//!
//! Inputs are [`View`](crate::View)s of any layout, outputs are new contiguous [`Buffer`](crate::Buffer)s unless said otherwise. Tensors
//! without elements give empty buffers and launch nothing. Functions return when the work is enqueued.

mod check;
mod dims;
mod elementwise;
mod images;
mod operand;

pub mod affine;
pub mod attention;
pub mod binary;
pub mod cast;
pub mod conv;
pub mod copy;
pub mod fill;
pub mod indexing;
pub mod moe;
pub mod nn;
pub mod pool;
pub mod quantized;
pub mod rand;
pub mod reduce;
pub mod sampling;
pub mod sort;
pub mod ternary;
pub mod unary;
pub mod upsample;

pub(crate) use dims::{collapse, Collapsed, Dims, Strides};
