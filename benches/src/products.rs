//! Copies and matrix products: the ceilings, and sizes below them.

use crate::measure::{Bench, Work};
use candle_rocm::config::{Config, Multiplier};
use candle_rocm::{blas, DType, Device, Result};

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

/// Batches, rows, columns and inner dimension.
type Sizes = (usize, usize, usize, usize);

const SIZES: [Sizes; 8] = [
    (1, 512, 512, 512),
    (1, 4096, 4096, 4096),
    (1, 1, 4096, 4096),
    (1, 1, 14336, 4096),
    (1, 8, 4096, 4096),
    (1, 64, 4096, 4096),
    (1, 512, 14336, 4096),
    (32, 512, 512, 256),
];

pub fn run(bench: &Bench) -> Result<()> {
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for sizes in SIZES {
            product(bench, dtype, sizes)?;
        }
    }
    Ok(())
}

/// The same products by rocBLAS and by our own kernels, with the right operand stored either way.
pub fn by_whom(bench: &Bench) -> Result<()> {
    let device = |who| {
        let config = Config {
            matmul: Some(who),
            ..*bench.device.config()
        };
        Device::with_config(bench.device.ordinal(), config)
    };
    let devices = [device(Multiplier::Rocblas)?, device(Multiplier::Own)?];
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        for sizes in SIZES {
            for transposed in [true, false] {
                for device in &devices {
                    let who = device.config().matmul.map_or("auto", Multiplier::as_str);
                    let name = format!(
                        "matmul {dtype} n{} {who}",
                        if transposed { 't' } else { 'n' }
                    );
                    product_stored(&bench.on(device), &name, dtype, sizes, transposed)?;
                }
            }
        }
    }
    Ok(())
}

/// `b` products of `m x k` by `k x n`, the second operand stored transposed as weights are.
fn product(bench: &Bench, dtype: DType, sizes: Sizes) -> Result<()> {
    product_stored(bench, &format!("matmul {dtype}"), dtype, sizes, true)
}

/// The same, the second operand stored transposed or not.
fn product_stored(
    bench: &Bench,
    name: &str,
    dtype: DType,
    (b, m, n, k): Sizes,
    transposed: bool,
) -> Result<()> {
    let m = if m < 256 { m } else { bench.size(m) };
    let [n, k] = [n, k].map(|size| bench.size(size));
    let x = bench.random(dtype, &[b, m, k])?;
    let w = bench.random(dtype, &[b, n, k])?;
    let strides = match transposed {
        true => [n * k, 1, k],
        false => [n * k, n, 1],
    };
    let dims = [b, k, n];
    let work = match m {
        1..=8 => Work::Bytes((b * n * k * dtype.size_in_bytes()) as f64),
        _ => Work::Flops(2.0 * (b * m * n * k) as f64),
    };
    bench.time(name, format_args!("{b}x{m}x{n}x{k}"), work, |_| {
        let mut right = w.view();
        right.dims = &dims;
        right.strides = &strides;
        blas::matmul(bench.device, dtype, (b, m, n, k), &x.view(), &right).map(drop)
    });
    Ok(())
}
