//! What is done to pictures besides convolutions, at sizes of Stable Diffusion's UNet and of its VAE.

use crate::measure::{Bench, Work};
use candle_rocm::ops::{pool, upsample};
use candle_rocm::{DType, Result};

/// Batch, channels and side of the picture.
const SHAPES: [(usize, usize, usize); 3] = [(2, 1280, 16), (2, 320, 64), (1, 256, 256)];

pub fn run(bench: &Bench) -> Result<()> {
    let device = bench.device;
    for dtype in [DType::F32, DType::F16] {
        for (batch, channels, side) in SHAPES {
            let x = bench.random(dtype, &[batch, channels, side, side])?;
            let size = format!("{batch}x{channels}x{side}x{side}");
            let bytes = (batch * channels * side * side * dtype.size_in_bytes()) as f64;
            let doubled = (2 * side, 2 * side);
            let (larger, smaller) = (Work::Bytes(5.0 * bytes), Work::Bytes(1.25 * bytes));
            bench.time(
                format_args!("upsample_nearest2d {dtype}"),
                &size,
                larger,
                |_| upsample::upsample_nearest2d(device, &x.view(), doubled).map(drop),
            );
            bench.time(
                format_args!("upsample_bilinear2d {dtype}"),
                &size,
                larger,
                |_| {
                    let factors = (None, None);
                    upsample::upsample_bilinear2d(device, &x.view(), doubled, false, factors)
                        .map(drop)
                },
            );
            bench.time(format_args!("avg_pool2d {dtype}"), &size, smaller, |_| {
                pool::avg_pool2d(device, &x.view(), (2, 2), (2, 2)).map(drop)
            });
            bench.time(format_args!("max_pool2d {dtype}"), &size, smaller, |_| {
                pool::max_pool2d(device, &x.view(), (2, 2), (2, 2)).map(drop)
            });
        }
    }
    Ok(())
}
