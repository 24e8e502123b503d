//! The tensor operations: one file per kernel family, named as its device file. `exchange` is none: it moves words of the
//! host by kernels of `copy`.
//!
//! Inputs are [`View`](crate::View)s of any layout, outputs are new contiguous [`Buffer`](crate::Buffer)s unless said
//! otherwise. Tensors without elements give empty buffers and launch nothing. Functions return when the work is
//! enqueued.

mod check;
mod dims;
mod elementwise;
mod images;
mod operand;
mod rows;
mod sequences;

pub mod affine;
pub mod attention;
pub mod binary;
pub mod cast;
pub mod causal_conv;
pub mod collective;
pub mod conv;
pub mod copy;
pub mod delta_rule;
pub mod epilogue;
pub mod exchange;
pub mod fill;
pub mod gated;
pub mod gated_backward;
pub mod group_norm;
pub mod group_norm_backward;
pub mod indexing;
pub(crate) mod instructions;
pub(crate) mod matmul;
pub mod modulated_norm;
pub mod moe;
pub mod norm;
pub mod norm_backward;
pub mod pool;
pub mod quantized;
pub mod rand;
pub mod reduce;
pub mod rope;
pub mod sampling;
pub mod scaled;
pub mod scan;
pub mod softmax;
pub mod softmax_backward;
pub mod sort;
pub mod state_space;
pub mod ternary;
pub mod unary;
pub mod upsample;

use crate::DeclaredKernel;
pub(crate) use dims::{collapse, Collapsed, Dims, Strides};
pub use sequences::Sequences;

/// Every kernel that the operations launch.
pub fn kernels() -> Vec<DeclaredKernel> {
    [
        affine::declared(),
        attention::declared(),
        binary::declared(),
        cast::declared(),
        causal_conv::declared(),
        collective::declared(),
        conv::declared(),
        copy::declared(),
        delta_rule::declared(),
        fill::declared(),
        epilogue::declared(),
        gated::declared(),
        gated_backward::declared(),
        group_norm::declared(),
        group_norm_backward::declared(),
        indexing::declared(),
        instructions::declared(),
        matmul::declared(),
        moe::declared(),
        modulated_norm::declared(),
        norm::declared(),
        norm_backward::declared(),
        pool::declared(),
        quantized::declared(),
        rand::declared(),
        reduce::declared(),
        rope::declared(),
        sampling::declared(),
        scaled::declared(),
        scan::declared(),
        softmax::declared(),
        softmax_backward::declared(),
        sort::declared(),
        state_space::declared(),
        ternary::declared(),
        unary::declared(),
        upsample::declared(),
    ]
    .concat()
}
