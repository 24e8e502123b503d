//! A product of matrices, one of them transposed by its strides alone, and the time that the device took.
//!
//!     cargo run --release -p candle-rocm --example 02_matmul

use candle_rocm::ops::rand::uniform;
use candle_rocm::{blas, DType, Device, Event, View};

const EDGE: usize = 1024;

fn main() -> candle_rocm::Result<()> {
    let device = Device::new(0)?;
    let lhs = uniform(&device, DType::F32, EDGE * EDGE, -1.0, 1.0)?;
    let rhs = uniform(&device, DType::F32, EDGE * EDGE, -1.0, 1.0)?;
    let dims = [EDGE, EDGE];
    let lhs = View::contiguous(&lhs, DType::F32, &dims, &[EDGE, 1]);
    let rhs = View::contiguous(&rhs, DType::F32, &dims, &[1, EDGE]);
    let product = || blas::matmul(&device, DType::F32, (1, EDGE, EDGE, EDGE), &lhs, &rhs);

    product()?; // loads rocBLAS and its kernels
    let (start, stop) = (Event::new(&device)?, Event::new(&device)?);
    start.record(device.stream())?;
    product()?;
    stop.record(device.stream())?;
    stop.synchronize()?;
    let elapsed = stop.elapsed_since(&start)?;
    let operations = 2.0 * (EDGE as f64).powi(3);
    println!(
        "{EDGE} x {EDGE} x {EDGE}: {elapsed:?}, {:.1} GFLOP/s",
        operations / elapsed.as_secs_f64() / 1e9
    );
    println!("{:?}", device.memory_stats());
    Ok(())
}
