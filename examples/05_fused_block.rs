//! The feed-forward half of a transformer block with fused operations: the same code on every device, one kernel for
//! each on AMD GPUs.
//!
//!     cargo run -p examples --example 05_fused_block

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{fused, ops, Activation};

const WIDTH: usize = 64;
const HIDDEN: usize = 176;

struct FeedForward {
    norm: Tensor,
    /// Gate and up projections, stacked, so that they are one product.
    gate_up: Tensor,
    down: Tensor,
}

impl FeedForward {
    /// Takes the attention's result and the residual stream; gives the new residual stream.
    fn forward(&self, attended: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let (sum, normed) = fused::add_rms_norm(attended, residual, &self.norm, 1e-6)?;
        let gate_up = normed.matmul(&self.gate_up)?;
        let hidden = fused::gate_mul_packed(Activation::Silu, &gate_up)?;
        sum + hidden.matmul(&self.down)?
    }

    /// The same from candle's plain operations.
    fn forward_plainly(&self, attended: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let sum = (attended + residual)?;
        let gate_up = ops::rms_norm(&sum, &self.norm, 1e-6)?.matmul(&self.gate_up)?;
        let gate = gate_up.narrow(1, 0, HIDDEN)?.silu()?;
        let hidden = (gate * gate_up.narrow(1, HIDDEN, HIDDEN)?)?;
        sum + hidden.matmul(&self.down)?
    }
}

fn main() -> Result<()> {
    let device = Device::rocm_if_available(0)?;
    let random = |shape: (usize, usize), size| Tensor::randn(0f32, size, shape, &device);
    let block = FeedForward {
        norm: Tensor::ones(WIDTH, DType::F32, &device)?,
        gate_up: random((WIDTH, 2 * HIDDEN), 0.1)?,
        down: random((HIDDEN, WIDTH), 0.1)?,
    };
    let (attended, residual) = (random((5, WIDTH), 1.)?, random((5, WIDTH), 1.)?);
    let fused = block.forward(&attended, &residual)?;
    let plain = block.forward_plainly(&attended, &residual)?;
    let distance = (&fused - &plain)?.abs()?.max_all()?.to_scalar::<f32>()?;
    println!("fused and plain differ by at most {distance:e}");
    assert!(distance < 1e-4);
    Ok(())
}
