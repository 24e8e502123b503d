//! Copies and matrix products: the ceilings, and sizes below them.

use crate::measure::{Bench, Work};
use candle_rocm::{blas, DType, Result};

/// A copy and a product large enough to fill the device: what the other numbers are compared with.
pub fn ceilings(bench: &Bench) -> Result<()> {
    let device = bench.device;
    let bytes = bench.size(1 << 30);
    let from = bench.random(DType::F32, &[bytes / 4])?;
    let to = device.alloc(bytes)?;
    bench.time("copy", bytes, Work::Bytes(2.0 * bytes as f64), |_| {
        device.copy(&from.buffer, 0, &to, 0, bytes)
    });
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        product(bench, dtype, (1, 8192, 8192, 8192))?;
    }
    Ok(())
}

pub fn run(bench: &Bench) -> Result<()> {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for shape in [
            (1, 512, 512, 512),
            (1, 4096, 4096, 4096),
            (1, 1, 4096, 4096),
            (1, 1, 14336, 4096),
            (1, 512, 14336, 4096),
            (32, 512, 512, 256),
        ] {
            product(bench, dtype, shape)?;
        }
    }
    Ok(())
}

/// `b` products of `m x k` by `k x n`, the second operand stored transposed as weights are.
fn product(bench: &Bench, dtype: DType, (b, m, n, k): (usize, usize, usize, usize)) -> Result<()> {
    let [m, n, k] = [m, n, k].map(|size| if size > 1 { bench.size(size) } else { size });
    let x = bench.random(dtype, &[b, m, k])?;
    let w = bench.random(dtype, &[b, n, k])?;
    let strides = [n * k, 1, k];
    let dims = [b, k, n];
    let work = match m {
        1 => Work::Bytes((b * n * k * dtype.size_in_bytes()) as f64),
        _ => Work::Flops(2.0 * (b * m * n * k) as f64),
    };
    bench.time(
        format_args!("matmul {dtype}"),
        format_args!("{b}x{m}x{n}x{k}"),
        work,
        |_| {
            let mut right = w.view();
            right.dims = &dims;
            right.strides = &strides;
            blas::matmul(bench.device, dtype, (b, m, n, k), &x.view(), &right).map(drop)
        },
    );
    Ok(())
}
