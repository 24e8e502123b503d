//! Rows: softmax, norms and rotary embeddings, with rows for a wave and for a block each.

use super::{split_dtype, unknown};
use crate::ops::group_norm::GroupNorm;
use crate::ops::{self};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, spoil_memory, Tensor};
use crate::{DType, DeclaredKernel, Device, View};

/// Rows and columns: a wave has a short row, a block a long one, which is longer than what its threads keep.
const SHORT: [usize; 2] = [21, 45];
const LONG: [usize; 2] = [3, 17_003];

const EPS: f64 = 1e-5;

fn shape(name: &str) -> [usize; 2] {
    match name.contains("_wave") {
        true => SHORT,
        false => LONG,
    }
}

fn bytes(dims: [usize; 2], dtype: DType) -> usize {
    dims[0] * dims[1] * dtype.size_in_bytes()
}

pub(super) fn softmax(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let dims = shape(head);
    let x = Tensor::random(device, dtype, &dims, (-6.0, 6.0))?;
    spoil_memory(device, bytes(dims, dtype))?;
    let out = ops::softmax::softmax_last_dim(device, &x.view())?;
    let mut want = Vec::new();
    for row in x.values.chunks(dims[1]) {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        want.extend(row.iter().map(|x| x.exp() / sum));
    }
    compare(device, &out, dtype, &want)
}

/// The norm of each row: RMS, or with mean and bias.
pub(super) fn normalized(x: &[f64], weight: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let columns = weight.len();
    let mut want = Vec::new();
    for row in x.chunks(columns) {
        let mean = match bias {
            Some(_) => row.iter().sum::<f64>() / columns as f64,
            None => 0.0,
        };
        let squares: f64 = row.iter().map(|x| (x - mean) * (x - mean)).sum();
        let scale = 1.0 / (squares / columns as f64 + EPS).sqrt();
        let elements = row.iter().enumerate();
        want.extend(
            elements
                .map(|(i, x)| (x - mean) * scale * weight[i] + bias.map_or(0.0, |bias| bias[i])),
        );
    }
    want
}

pub(super) fn norm(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let dims = shape(head);
    let x = Tensor::random(device, dtype, &dims, (-2.0, 3.0))?;
    let weight = Tensor::random(device, dtype, &dims[1..], (0.5, 1.5))?;
    let bias = Tensor::random(device, dtype, &dims[1..], (-1.0, 1.0))?;
    let residual = Tensor::random(device, dtype, &dims, (-2.0, 1.0))?;
    if head.starts_with("modulated_") {
        return modulated_norm(device, &x, dtype);
    }
    let (layer, adds) = (head.contains("layer_norm"), head.starts_with("add_"));
    for _ in 0..2 {
        spoil_memory(device, bytes(dims, dtype))?;
    }
    let (eps, w, b) = (EPS as f32, weight.view(), bias.view());
    let (sum, out) = match (layer, adds) {
        (false, false) => (None, ops::norm::rms_norm(device, &x.view(), &w, eps)?),
        (true, false) => (
            None,
            ops::norm::layer_norm(device, &x.view(), &w, Some(&b), eps)?,
        ),
        (false, true) => {
            let residual = residual.view();
            let (sum, out) = ops::norm::add_rms_norm(device, &x.view(), &residual, &w, eps)?;
            (Some(sum), out)
        }
        (true, true) => {
            let (x, r) = (x.view(), residual.view());
            let (sum, out) = ops::norm::add_layer_norm(device, &x, &r, &w, Some(&b), eps)?;
            (Some(sum), out)
        }
    };
    let mut values = x.values.clone();
    if let Some(sum) = &sum {
        let pairs = values.iter_mut().zip(&residual.values);
        pairs.for_each(|(x, r)| *x += r);
        if let Some(wrong) = compare(device, sum, dtype, &values)? {
            return Ok(Some(format!("the sum: {wrong}")));
        }
    }
    let bias = layer.then_some(&bias.values[..]);
    compare(
        device,
        &out,
        dtype,
        &normalized(&values, &weight.values, bias),
    )
}

/// With a scale for all rows, and a shift for each.
fn modulated_norm(device: &Device, x: &Tensor, dtype: DType) -> Finding {
    let view = x.view();
    let (rows, columns) = (view.dims[0], view.dims[1]);
    let scale = Tensor::random(device, dtype, &[columns], (-0.5, 0.5))?;
    let shift = Tensor::random(device, dtype, view.dims, (-1.0, 1.0))?;
    spoil_memory(device, rows * columns * dtype.size_in_bytes())?;
    let shared = View {
        dims: view.dims,
        strides: &[0, 1],
        ..scale.view()
    };
    let norm = ops::modulated_norm::modulated_norm;
    let out = norm(device, &view, &shared, Some(&shift.view()), EPS as f32)?;
    let above: Vec<f64> = scale.values.iter().map(|scale| 1.0 + scale).collect();
    let mut want = normalized(&x.values, &above, Some(&vec![0.0; columns]));
    let pairs = want.iter_mut().zip(&shift.values);
    pairs.for_each(|(x, shift)| *x += shift);
    compare(device, &out, dtype, &want)
}

pub(super) fn group_norm(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    // Few long rows are cut into parts.
    let dims: [usize; 3] = match head {
        "group_norm" => [2, 6, 77],
        _ => [1, 4, 17_003],
    };
    let groups = dims[1] / 2;
    let x = Tensor::random(device, dtype, &dims, (-2.0, 3.0))?;
    let weight = Tensor::random(device, dtype, &dims[1..2], (0.5, 1.5))?;
    let bias = Tensor::random(device, dtype, &dims[1..2], (-1.0, 1.0))?;
    let norm = GroupNorm {
        groups,
        eps: EPS as f32,
        silu: true,
    };
    spoil_memory(device, x.values.len() * dtype.size_in_bytes())?;
    let out = ops::group_norm::group_norm(device, &x.view(), &weight.view(), &bias.view(), norm)?;
    let (channels, pixels) = (dims[1], dims[2]);
    let group = channels / groups * pixels;
    let ones = vec![1.0; group];
    let mut want = normalized(&x.values, &ones, Some(&vec![0.0; group]));
    for (i, value) in want.iter_mut().enumerate() {
        let channel = i / pixels % channels;
        let y = *value * weight.values[channel] + bias.values[channel];
        *value = y / (1.0 + (-y).exp());
    }
    compare(device, &out, dtype, &want)
}

pub(super) fn rope(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((_, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    // Pairs in packs, and one by one.
    for half in [48, 9] {
        let dims = [2, 5, 27, 2 * half];
        let (heads, time) = (dims[1], dims[2]);
        let x = Tensor::random(device, dtype, &dims, (-2.0, 2.0))?;
        let cos = Tensor::random(device, dtype, &[time, half], (-1.0, 1.0))?;
        let sin = Tensor::random(device, dtype, &[time, half], (-1.0, 0.9))?;
        for interleaved in [false, true] {
            spoil_memory(device, x.values.len() * dtype.size_in_bytes())?;
            let run = if interleaved {
                ops::rope::rope_i
            } else {
                ops::rope::rope
            };
            let out = run(device, &x.view(), &cos.view(), &sin.view())?;
            let mut want = x.values.clone();
            for row in 0..2 * heads * time {
                for i in 0..half {
                    let (first, second) = match interleaved {
                        true => (2 * i, 2 * i + 1),
                        false => (i, i + half),
                    };
                    let (a, b) = (row * 2 * half + first, row * 2 * half + second);
                    let angle = row % time * half + i;
                    let (c, s) = (cos.values[angle], sin.values[angle]);
                    let (x, y) = (x.values[a], x.values[b]);
                    want[a] = x * c - y * s;
                    want[b] = x * s + y * c;
                }
            }
            if let Some(wrong) = compare(device, &out, dtype, &want)? {
                return Ok(Some(wrong));
            }
        }
    }
    Ok(None)
}
