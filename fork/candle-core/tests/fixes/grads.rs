//! Gradients that the published crate leaves out without a word.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{Device, Module, Result, Tensor, Var};

/// The gradient of the input of a product with a quantized matrix: that of the product with the matrix's numbers.
#[test]
fn quantized_products_have_a_gradient() -> Result<()> {
    let device = Device::Cpu;
    for (format, columns) in [
        (GgmlDType::Q8_0, 64),
        (GgmlDType::Q4K, 256),
        (GgmlDType::F16, 32),
    ] {
        let numbers = (Tensor::arange(0f32, 3. * columns as f32, &device)? * 0.37)?.sin()?;
        let matrix = QTensor::quantize(&numbers.reshape((3, columns))?, format)?;
        let weights = matrix.dequantize(&device)?;
        for shape in [vec![5, columns], vec![2, 3, columns]] {
            let count = shape.iter().product::<usize>();
            let x = (Tensor::arange(0f32, count as f32, &device)? * 0.21)?.cos()?;
            let x = Var::from_tensor(&x.reshape(shape)?)?;
            let gradient = |y: Tensor| -> Result<Vec<f32>> {
                let scale = (Tensor::arange(0f32, y.elem_count() as f32, &device)? * 0.1)?;
                let y = y.mul(&scale.reshape(y.shape())?)?.sum_all()?;
                match y.backward()?.get(&x) {
                    Some(gradient) => gradient.flatten_all()?.to_vec1(),
                    None => candle_core::bail!("{format:?}: the input has no gradient"),
                }
            };
            let matrix = QTensor::quantize(&numbers.reshape((3, columns))?, format)?;
            let got = gradient(QMatMul::from_qtensor(matrix)?.forward(&x)?)?;
            let want = gradient(x.broadcast_matmul(&weights.t()?)?)?;
            for (got, want) in got.iter().zip(&want) {
                assert!(
                    (got - want).abs() < 1e-4,
                    "{format:?}: {got} instead of {want}"
                );
            }
        }
    }
    Ok(())
}
