//! A layer in 8-bit floats: weights in f8e4m3 with a scale for each row, as FP8 checkpoints hold them, times activations
//! that are quantized with a scale for each token.
//!
//!     cargo run -p examples --example 08_float8

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::float8::{quantize, scaled_matmul, Scaling};

struct Layer {
    /// `[out, in]`
    weight: Tensor,
    /// `[out, 1]`
    scale: Tensor,
    bias: Tensor,
}

impl Layer {
    fn new(weight: &Tensor, bias: Tensor) -> Result<Self> {
        let (weight, scale) = quantize(weight, Scaling::Row)?;
        Ok(Layer {
            weight,
            scale,
            bias,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (numbers, scale) = quantize(x, Scaling::Row)?;
        scaled_matmul(
            &numbers,
            &self.weight.t()?,
            &scale,
            &self.scale.t()?,
            Some(&self.bias),
            x.dtype(),
        )
    }
}

fn main() -> Result<()> {
    let device = Device::rocm_if_available(0)?;
    let weight = Tensor::randn(0f32, 0.05, (96, 256), &device)?;
    let bias = Tensor::randn(0f32, 1., 96, &device)?;
    let layer = Layer::new(&weight, bias.clone())?;
    println!(
        "{} bytes instead of {}",
        layer.weight.elem_count() + 4 * layer.scale.elem_count(),
        4 * weight.elem_count()
    );

    let x = Tensor::randn(0f32, 1., (2, 5, 256), &device)?;
    let exact = x.broadcast_matmul(&weight.t()?)?.broadcast_add(&bias)?;
    let difference = (layer.forward(&x)? - &exact)?;
    let length = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>();
    let error = (length(&difference)? / length(&exact)?).sqrt();
    println!("relative error {error:.3}");
    assert!(error < 0.05);

    // Two f8e4m3 tensors without scales: sums in f32, rounded once.
    let small = Tensor::new(&[[0.5f32, 1.], [2., -1.]], &device)?.to_dtype(DType::F8E4M3)?;
    println!("{}", small.matmul(&small)?.to_dtype(DType::F32)?);
    Ok(())
}
