//! Quantized weights: a matrix in GGUF's Q4_0, four and a half bits for each weight, times activations in f32.
//!
//!     cargo run -p examples --example 06_quantized

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor};

fn main() -> Result<()> {
    let device = Device::rocm_if_available(0)?;
    // Quantizing runs on the CPU; the weights stay quantized on the device, and the kernels unpack them as they
    // multiply.
    let weights = Tensor::randn(0f32, 1., (96, 256), &Device::Cpu)?;
    let quantized = QTensor::quantize_onto(&weights, GgmlDType::Q4_0, &device)?;
    println!(
        "{} bytes instead of {}",
        quantized.storage_size_in_bytes(),
        weights.elem_count() * 4
    );
    let layer = QMatMul::from_qtensor(quantized)?;

    let x = Tensor::randn(0f32, 1., (3, 256), &device)?;
    let exact = x.matmul(&weights.t()?.to_device(&device)?)?;
    let difference = (layer.forward(&x)? - &exact)?;
    let length = |t: &Tensor| t.sqr()?.sum_all()?.to_scalar::<f32>();
    let error = (length(&difference)? / length(&exact)?).sqrt();
    println!("relative error {error:.3}");
    assert!(error < 0.15);
    Ok(())
}
