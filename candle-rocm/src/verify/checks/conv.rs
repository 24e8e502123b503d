//! Convolutions by own kernels.

use super::{split_dtype, unknown};
use crate::ops::conv::{conv2d, conv_transpose2d, Conv, ConvTranspose, Method};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, spoil_memory, Tensor};
use crate::{DType, DeclaredKernel, Device};

/// `[batch, c_in, height, width]` and `[c_out, k_height, k_width]`.
const INPUT: [usize; 4] = [2, 5, 13, 11];
const KERNEL: [usize; 3] = [6, 3, 2];
const PADDING: usize = 1;

pub(super) fn own(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let columns = Some(Method::Columns {
        workspace_bytes: 1 << 20,
    });
    let (transposed, method) = match head {
        "conv_direct" => (false, Some(Method::Direct)),
        "conv_transpose_direct" => (true, Some(Method::Direct)),
        "im2col" => (false, columns),
        "col2im" => (true, columns),
        _ => return unknown(kernel),
    };
    // Whole numbers, so that sums of every dtype are exact.
    let [c_out, k_height, k_width] = KERNEL;
    let kernel_dims = match transposed {
        true => [INPUT[1], c_out, k_height, k_width],
        false => [c_out, INPUT[1], k_height, k_width],
    };
    let whole = |dims: &[usize], most: usize| -> Vec<f64> {
        let count: usize = dims.iter().product();
        (0..count).map(|i| (i * 7 % 11 % most) as f64).collect()
    };
    let limit = if dtype == DType::F8E4M3 { 2 } else { 3 };
    let x = Tensor::new(device, dtype, &INPUT, &whole(&INPUT, limit))?;
    let w = Tensor::new(device, dtype, &kernel_dims, &whole(&kernel_dims, 2))?;
    let taps = [k_height, k_width];
    let output: [usize; 2] = std::array::from_fn(|d| match transposed {
        true => INPUT[d + 2] + taps[d] - 1 - 2 * PADDING,
        false => INPUT[d + 2] + 2 * PADDING + 1 - taps[d],
    });
    let count = INPUT[0] * c_out * output[0] * output[1];
    spoil_memory(device, count * dtype.size_in_bytes())?;
    let (xs, ws) = (x.view(), w.view());
    let out = if transposed {
        let options = ConvTranspose {
            padding: PADDING,
            method,
            ..ConvTranspose::default()
        };
        conv_transpose2d(device, &xs, &ws, options)?
    } else {
        let options = Conv {
            padding: PADDING,
            method,
            ..Conv::default()
        };
        conv2d(device, &xs, &ws, options)?
    };
    let want = textbook(&x.values, &w.values, transposed, output);
    compare(device, &out, dtype, &want)
}

fn textbook(x: &[f64], w: &[f64], transposed: bool, output: [usize; 2]) -> Vec<f64> {
    let ([batch, c_in, height, width], [c_out, k_height, k_width]) = (INPUT, KERNEL);
    let mut out = vec![0.0; batch * c_out * output[0] * output[1]];
    for (b, ci, y, col) in places([batch, c_in, height, width]) {
        let value = x[((b * c_in + ci) * height + y) * width + col];
        for (co, ky, kx, _) in places([c_out, k_height, k_width, 1]) {
            // Where this input and tap go in the output.
            let place = |at: usize, tap: usize| match transposed {
                true => (at + tap).checked_sub(PADDING),
                false => (at + PADDING).checked_sub(tap),
            };
            let (Some(oy), Some(ox)) = (place(y, ky), place(col, kx)) else {
                continue;
            };
            if oy >= output[0] || ox >= output[1] {
                continue;
            }
            let tap = match transposed {
                true => ((ci * c_out + co) * k_height + ky) * k_width + kx,
                false => ((co * c_in + ci) * k_height + ky) * k_width + kx,
            };
            out[((b * c_out + co) * output[0] + oy) * output[1] + ox] += value * w[tap];
        }
    }
    out
}

fn places([a, b, c, d]: [usize; 4]) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..a * b * c * d).map(move |i| (i / d / c / b, i / d / c % b, i / d % c, i % d))
}
