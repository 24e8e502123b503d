//! A matrix for each head.

use super::linear::{Linear, Weight};
use super::rocm;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Result, Tensor};

/// A matrix for each head, from what the head has.
pub(super) enum PerHead {
    /// Each on its own.
    Apart(Vec<Linear>),
    /// Those of all on an AMD GPU.
    Together {
        matrices: rocm::Stack,
        /// The heads' numbers, u32 `(1, heads)`.
        numbers: Tensor,
    },
}

impl PerHead {
    /// Takes matrices behind each other: `(heads, outputs, inputs)`.
    pub(super) fn new(
        bytes: &[u8],
        dtype: GgmlDType,
        (heads, outputs, inputs): (usize, usize, usize),
        device: &Device,
        activations: DType,
    ) -> Result<Self> {
        if device.is_rocm() {
            let shape = (heads, outputs, inputs);
            return Ok(Self::Together {
                matrices: rocm::Stack::new(bytes, dtype, shape, device, activations)?,
                numbers: Tensor::arange(0, heads as u32, device)?.unsqueeze(0)?,
            });
        }
        let matrix = |bytes: &[u8]| {
            let weight = Weight::new(bytes, dtype, (outputs, inputs), device, activations)?;
            Ok(Linear::new(weight, None))
        };
        let each = bytes.chunks_exact(bytes.len() / heads);
        Ok(Self::Apart(each.map(matrix).collect::<Result<_>>()?))
    }

    /// `(tokens, heads, inputs)` to `(tokens, heads, outputs)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Apart(matrices) => {
                let of_head = |(head, matrix): (usize, &Linear)| {
                    let x = x.narrow(1, head, 1)?.squeeze(1)?.contiguous()?;
                    matrix.forward(&x.into())
                };
                let each = matrices.iter().enumerate().map(of_head);
                Tensor::stack(&each.collect::<Result<Vec<_>>>()?, 1)?.contiguous()
            }
            Self::Together { matrices, numbers } => {
                if let rocm::Stack::Floats(matrices) = matrices {
                    let x = x.transpose(0, 1)?.contiguous()?;
                    let y = x.matmul(&matrices.transpose(1, 2)?)?;
                    return y.transpose(0, 1)?.contiguous();
                }
                let (tokens, heads, _) = x.dims3()?;
                let numbers = numbers.broadcast_as((tokens, heads))?.contiguous()?;
                matrices.forward(&x.contiguous()?, &numbers)
            }
        }
    }
}
