//! Convolutions of the sizes that Stable Diffusion 1.5 has.

use crate::measure::{Bench, Work};
use candle_rocm::ops::conv::{conv2d, Conv};
use candle_rocm::{DType, Result};

/// Batch, channels in and out, side of the image, side of the kernel.
const SHAPES: [(usize, usize, usize, usize, usize); 5] = [
    (2, 320, 320, 64, 3),
    (2, 640, 640, 32, 3),
    (2, 1280, 1280, 16, 3),
    (2, 320, 320, 64, 1),
    (1, 128, 128, 512, 3),
];

pub fn run(bench: &Bench) -> Result<()> {
    for dtype in [DType::F16, DType::F32] {
        for (batch, c_in, c_out, side, kernel) in SHAPES {
            let x = bench.random(dtype, &[batch, c_in, side, side])?;
            let w = bench.random(dtype, &[c_out, c_in, kernel, kernel])?;
            let options = Conv {
                padding: kernel / 2,
                ..Conv::default()
            };
            let flops = 2.0 * (batch * c_out * c_in * side * side * kernel * kernel) as f64;
            let size = format_args!("{batch}x{c_in}x{side}x{side} to {c_out}, {kernel}x{kernel}")
                .to_string();
            bench.time(
                format_args!("conv2d {dtype}"),
                size,
                Work::Flops(flops),
                |_| conv2d(bench.device, &x.view(), &w.view(), options).map(drop),
            );
        }
    }
    Ok(())
}
