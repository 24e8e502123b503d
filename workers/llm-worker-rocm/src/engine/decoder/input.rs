//! What matrices multiply.

use candle_core::Tensor;
use candle_rocm_flash_attn::paged::QuantizedActivations;

/// What matrices multiply, `(rows, inputs)`.
pub(super) struct Input {
    pub floats: Tensor,
    /// The same in 8 bits, where the norm before gave both.
    pub quantized: Option<QuantizedActivations>,
}

impl From<Tensor> for Input {
    fn from(floats: Tensor) -> Self {
        Self {
            floats,
            quantized: None,
        }
    }
}
