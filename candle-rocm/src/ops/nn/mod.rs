//! Softmax, norms, rotary embeddings and gated activations, fused.

mod gated;
mod group_norm;
mod norm;
mod rope;
mod rows;
mod softmax;

pub use gated::{gate_mul, Gate};
pub use group_norm::{group_norm, GroupNorm};
pub use norm::{
    add_layer_norm, add_rms_norm, add_rms_norm_quantize, layer_norm, rms_norm, rms_norm_quantize,
    Normed,
};
pub use rope::{rope, rope_i, rope_thd};
pub use softmax::softmax_last_dim;
