//! Gradients: those of rows, of gated activations and of attention, and attention with dropout.

use super::{split_dtype, unknown};
use crate::ops::attention::{self, Attention, Dropout, Window};
use crate::ops::gated::Gate;
use crate::ops::group_norm::GroupNorm;
use crate::ops::norm_backward::Wanted;
use crate::ops::{self};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, difference, read, spoil_memory, tolerance, Numbers, Tensor};
use crate::{Buffer, DType, DeclaredKernel, Device, Result};

/// Rows and columns: a wave has a short row, a block a long one.
const SHORT: [usize; 2] = [70, 45];
const LONG: [usize; 2] = [3, 5_003];

const EPS: f64 = 1e-5;

fn shape(name: &str) -> [usize; 2] {
    match name.contains("_wave") || name.starts_with("norm_column") {
        true => SHORT,
        false => LONG,
    }
}

/// Random numbers that are others for each seed.
fn random(
    device: &Device,
    dtype: DType,
    dims: &[usize],
    seed: u64,
    (low, high): (f64, f64),
) -> Result<Tensor> {
    let count = dims.iter().product();
    Tensor::new(
        device,
        dtype,
        dims,
        &Numbers::new(seed).vec(count, low, high),
    )
}

/// The first of these results that is wrong.
fn compare_all(device: &Device, dtype: DType, results: &[(&str, &Buffer, &[f64])]) -> Finding {
    for (what, buffer, want) in results {
        if let Some(wrong) = compare(device, buffer, dtype, want)? {
            return Ok(Some(format!("the gradient of {what}: {wrong}")));
        }
    }
    Ok(None)
}

pub(super) fn softmax(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let dims = shape(head);
    let y = random(device, dtype, &dims, 1, (0.0, 1.0))?;
    let grad = random(device, dtype, &dims, 2, (-1.0, 1.0))?;
    spoil_memory(device, y.values.len() * dtype.size_in_bytes())?;
    let backward = ops::softmax_backward::softmax_last_dim_backward;
    let out = backward(device, &y.view(), &grad.view())?;
    let mut want = Vec::new();
    for (y, g) in y.values.chunks(dims[1]).zip(grad.values.chunks(dims[1])) {
        let sum: f64 = y.iter().zip(g).map(|(y, g)| y * g).sum();
        want.extend(y.iter().zip(g).map(|(y, g)| y * (g - sum)));
    }
    compare(device, &out, dtype, &want)
}

/// The gradient of a row's norm, `scale (h - mean(h) - n mean(h n))`, and the normed row n; h is the gradient of the
/// normed row. RMS norm is not `centered`.
fn row(x: &[f64], h: &[f64], centered: bool) -> (Vec<f64>, Vec<f64>) {
    let count = x.len() as f64;
    let mean_of = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / count;
    let centre = |mean: f64| if centered { mean } else { 0.0 };
    let mean = centre(mean_of(&mut x.iter().copied()));
    let square = mean_of(&mut x.iter().map(|x| (x - mean) * (x - mean)));
    let scale = 1.0 / (square + EPS).sqrt();
    let normed: Vec<f64> = x.iter().map(|x| (x - mean) * scale).collect();
    let along = centre(mean_of(&mut h.iter().copied()));
    let across = mean_of(&mut h.iter().zip(&normed).map(|(h, n)| h * n));
    let gradient = h.iter().zip(&normed);
    let gradient = gradient.map(|(h, n)| scale * (h - along - n * across));
    (gradient.collect(), normed)
}

pub(super) fn norm(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let (dims, centered) = (shape(head), !head.starts_with("rms_norm"));
    let columns = dims[1];
    let x = random(device, dtype, &dims, 1, (-2.0, 3.0))?;
    let grad = random(device, dtype, &dims, 2, (-1.0, 1.5))?;
    let weight = random(device, dtype, &dims[1..], 3, (0.5, 1.5))?;
    spoil_memory(device, x.values.len() * dtype.size_in_bytes())?;
    let wanted = Wanted {
        weight: true,
        bias: centered,
    };
    let backward = match centered {
        true => ops::norm_backward::layer_norm_backward,
        false => ops::norm_backward::rms_norm_backward,
    };
    let (w, g) = (weight.view(), grad.view());
    let got = backward(device, &x.view(), &w, &g, EPS as f32, wanted)?;
    let mut want = Vec::new();
    let (mut weights, mut biases) = (vec![0.0; columns], vec![0.0; columns]);
    let rows = x.values.chunks(columns).zip(grad.values.chunks(columns));
    for (x, g) in rows {
        let h: Vec<f64> = g.iter().zip(&weight.values).map(|(g, w)| g * w).collect();
        let (gradient, normed) = row(x, &h, centered);
        want.extend(gradient);
        for i in 0..columns {
            weights[i] += g[i] * normed[i];
            biases[i] += g[i];
        }
    }
    let mut results = vec![("x", &got.x, &want[..])];
    if let Some(weight) = &got.weight {
        results.push(("the weight", weight, &weights));
    }
    if let Some(bias) = &got.bias {
        results.push(("the bias", bias, &biases));
    }
    compare_all(device, dtype, &results)
}

pub(super) fn group_norm(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((_, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let dims @ [_, channels, pixels] = [2, 6, 277];
    let groups = 3;
    let x = random(device, dtype, &dims, 1, (-2.0, 3.0))?;
    let grad = random(device, dtype, &dims, 2, (-1.0, 1.5))?;
    let weight = random(device, dtype, &[channels], 3, (0.5, 1.5))?;
    let bias = random(device, dtype, &[channels], 4, (-1.0, 1.0))?;
    let norm = GroupNorm {
        groups,
        eps: EPS as f32,
        silu: true,
    };
    spoil_memory(device, x.values.len() * dtype.size_in_bytes())?;
    let (w, b, g) = (weight.view(), bias.view(), grad.view());
    let backward = ops::group_norm_backward::group_norm_backward;
    let got = backward(device, &x.view(), &w, &b, &g, norm)?;
    let columns = channels / groups * pixels;
    let mut want = Vec::new();
    let (mut weights, mut biases) = (vec![0.0; channels], vec![0.0; channels]);
    for (r, (x, g)) in (x.values.chunks(columns).zip(grad.values.chunks(columns))).enumerate() {
        let channel = |i: usize| r % groups * (channels / groups) + i / pixels;
        let (_, normed) = row(x, g, true);
        let mut h = Vec::new();
        for (i, (n, g)) in normed.iter().zip(g).enumerate() {
            let (w, b) = (weight.values[channel(i)], bias.values[channel(i)]);
            let y = n * w + b;
            let s = 1.0 / (1.0 + (-y).exp());
            let inner = g * s * (1.0 + y * (1.0 - s));
            weights[channel(i)] += inner * n;
            biases[channel(i)] += inner;
            h.push(inner * w);
        }
        want.extend(row(x, &h, true).0);
    }
    let results = [
        ("x", &got.x, &want[..]),
        ("the weight", &got.weight, &weights),
        ("the bias", &got.bias, &biases),
    ];
    compare_all(device, dtype, &results)
}

pub(super) fn gated(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let wanted = head.trim_end_matches("_mul_backward");
    let Some(gate) = Gate::ALL.into_iter().find(|gate| gate.as_str() == wanted) else {
        return unknown(kernel);
    };
    let dims = [5_003];
    let x = random(device, dtype, &dims, 1, (-4.0, 4.0))?;
    let y = random(device, dtype, &dims, 2, (-2.0, 2.5))?;
    let grad = random(device, dtype, &dims, 3, (-1.0, 1.5))?;
    spoil_memory(device, dims[0] * dtype.size_in_bytes())?;
    let backward = ops::gated_backward::gate_mul_backward;
    let (gates, ups) = backward(device, gate, &x.view(), &y.view(), &grad.view())?;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // Twice the argument of GELU's tanh.
    let twice = |x: f64| (8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    let value = |x: f64| match gate {
        Gate::Silu => x * sigmoid(x),
        Gate::Gelu => x * sigmoid(twice(x)),
        Gate::GeluErf => super::elementwise::function(ops::unary::UnaryOp::GeluErf, x),
        Gate::Relu => x.max(0.0),
    };
    // All but ReLU are smooth, and that one is straight away from 0.
    let slope = |x: f64| (value(x + 1e-4) - value(x - 1e-4)) / 2e-4;
    let (mut want_gates, mut want_ups) = (Vec::new(), Vec::new());
    for ((x, y), g) in x.values.iter().zip(&y.values).zip(&grad.values) {
        want_gates.push(match gate {
            Gate::Relu => g * y * f64::from(*x > 0.0),
            _ => g * y * slope(*x),
        });
        want_ups.push(g * value(*x));
    }
    let results = [
        ("the gate", &gates, &want_gates[..]),
        ("what it multiplies", &ups, &want_ups),
    ];
    compare_all(device, dtype, &results)
}

/// Rows, keys, heads and heads of keys of a small problem.
const ROWS: usize = 41;
const KEYS: usize = 75;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;

/// `attention_dropout_<chunks>`, `attention_backward_<rows or keys>_<chunks>`, and the sums before these.
pub(super) fn attention(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let last = kernel.name.rsplit('_').next();
    let chunks = last.and_then(|last| last.parse().ok()).unwrap_or(1);
    let (dtype, width) = (DType::F32, 64 * chunks);
    let dropout = Dropout {
        probability: 0.2,
        seed: 7,
    };
    let dims = |lines: usize, heads: usize| [1, lines, heads, width];
    let q = random(device, dtype, &dims(ROWS, HEADS), 1, (-1.0, 1.0))?;
    let k = random(device, dtype, &dims(KEYS, KV_HEADS), 2, (-1.0, 1.0))?;
    let v = random(device, dtype, &dims(KEYS, KV_HEADS), 3, (-1.0, 2.0))?;
    let grad = random(device, dtype, &dims(ROWS, HEADS), 4, (-1.0, 1.5))?;
    let a = Attention {
        window: Window::CAUSAL,
        dropout: Some(dropout),
        log_sum_exp: true,
        ..Attention::new(q.view(), k.view(), v.view(), 1.0 / (width as f32).sqrt())
    };
    let want = Textbook::new(
        width,
        &q.values,
        &k.values,
        &v.values,
        &grad.values,
        dropout,
    );
    let check = |what: &str, buffer: &Buffer, want: &[f64]| -> Finding {
        let got = read(device, buffer, dtype)?;
        let wrong = difference(&got, want, 2.0 * tolerance(dtype));
        Ok(wrong.map(|wrong| format!("{what}: {wrong}")))
    };
    if kernel.name.starts_with("attention_dropout") {
        spoil_memory(device, q.values.len() * dtype.size_in_bytes())?;
        let attended = attention::attention(device, &a)?;
        return check("the result", &attended.out, &want.out);
    }
    let out = Tensor::new(device, dtype, &dims(ROWS, HEADS), &want.out)?;
    let sums = Tensor::new(device, dtype, &[HEADS, ROWS], &want.log_sum_exp)?;
    spoil_memory(device, q.values.len() * dtype.size_in_bytes())?;
    let (out, grad) = (out.view(), grad.view());
    let got = attention::attention_backward(device, &a, &out, sums.buffer(), &grad)?;
    let results = [
        ("the gradient of queries", &got.q, &want.q),
        ("the gradient of keys", &got.k, &want.k),
        ("the gradient of values", &got.v, &want.v),
    ];
    for (what, buffer, want) in results {
        if let Some(wrong) = check(what, buffer, want)? {
            return Ok(Some(wrong));
        }
    }
    Ok(None)
}

/// Causal attention with dropout and its gradients, score by score.
struct Textbook {
    out: Vec<f64>,
    log_sum_exp: Vec<f64>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Textbook {
    fn new(width: usize, q: &[f64], k: &[f64], v: &[f64], grad: &[f64], dropout: Dropout) -> Self {
        let scale = 1.0 / (width as f64).sqrt();
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let add = |to: &mut [f64], factor: f64, x: &[f64]| {
            to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
        };
        let mut all = Textbook {
            out: vec![0.0; q.len()],
            log_sum_exp: vec![0.0; HEADS * ROWS],
            q: vec![0.0; q.len()],
            k: vec![0.0; k.len()],
            v: vec![0.0; v.len()],
        };
        for head in 0..HEADS {
            for row in 0..ROWS {
                let at = (row * HEADS + head) * width..(row * HEADS + head + 1) * width;
                let line = |key: usize| {
                    let start = (key * KV_HEADS + head / (HEADS / KV_HEADS)) * width;
                    start..start + width
                };
                let keys = 0..row + KEYS - ROWS + 1;
                let scores: Vec<f64> = keys
                    .clone()
                    .map(|key| scale * product(&q[at.clone()], &k[line(key)]))
                    .collect();
                let sum: f64 = scores.iter().map(|score| score.exp()).sum();
                all.log_sum_exp[head * ROWS + row] = sum.ln();
                let factor = |key: usize| {
                    let kept = dropout.keeps(head as u32, row as u32, key as u32);
                    f64::from(kept) * f64::from(dropout.scale())
                };
                for key in keys.clone() {
                    let weight = scores[key].exp() / sum * factor(key);
                    add(&mut all.out[at.clone()], weight, &v[line(key)]);
                    add(&mut all.v[line(key)], weight, &grad[at.clone()]);
                }
                let dot = product(&all.out[at.clone()], &grad[at.clone()]);
                for key in keys {
                    let slope = factor(key) * product(&grad[at.clone()], &v[line(key)]) - dot;
                    let slope = scores[key].exp() / sum * slope * scale;
                    add(&mut all.q[at.clone()], slope, &k[line(key)]);
                    add(&mut all.k[line(key)], slope, &q[at.clone()]);
                }
            }
        }
        all
    }
}
