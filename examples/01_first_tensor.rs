//! A first tensor: choose a device, compute on it, bring the result back.
//!
//!     cargo run -p examples --example 01_first_tensor

use candle_core::{DType, Device, Result, Tensor};

fn main() -> Result<()> {
    // The first AMD GPU, or the CPU where there is none. `Device::new_rocm(0)` is an error there instead, and says what
    // is missing.
    let device = Device::rocm_if_available(0)?;
    println!("computing on {:?}", device.location());

    let a = Tensor::arange(0f32, 6., &device)?.reshape((2, 3))?;
    let b = Tensor::ones((3, 4), DType::F32, &device)?;
    let product = a.matmul(&b)?;
    println!("{product}");

    // Work on a GPU is enqueued and goes on by itself; reading a value waits for it.
    let sums = product.sum(1)?.to_vec1::<f32>()?;
    assert_eq!(sums, [12., 48.]);
    Ok(())
}
