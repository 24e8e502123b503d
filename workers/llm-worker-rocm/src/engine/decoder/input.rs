//! What matrices multiply.

use candle_core::rocm_backend::candle_rocm::ops::quantized::FloatActivations;
use candle_core::Tensor;
use candle_rocm_flash_attn::paged::QuantizedActivations;

/// What matrices multiply, `(rows, inputs)`.
pub(super) struct Input {
    pub floats: Tensor,
    /// The same in 8 bits, where the norm before gave both.
    pub quantized: Option<Quantized>,
}

/// Activations in 8 bits.
pub(super) enum Quantized {
    Integers(QuantizedActivations),
    Floats(FloatActivations),
}

/// The 8 bits that matrices take their input in, where it can come so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Nothing,
    Integers,
    Floats,
}

impl Wanted {
    /// Integers, if those are taken.
    pub(super) fn integers(taken: bool) -> Self {
        match taken {
            true => Self::Integers,
            false => Self::Nothing,
        }
    }
}

impl From<Tensor> for Input {
    fn from(floats: Tensor) -> Self {
        Self {
            floats,
            quantized: None,
        }
    }
}
