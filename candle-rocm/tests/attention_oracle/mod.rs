//! Attention as the textbook has it, in f64, problems to compare it on, and ways to lay them out on the device.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

pub mod layouts;

use crate::common::{assert_close, download, Element, HostTensor, Rng};
use candle_rocm::ops::attention::{Attended, Attention, Lengths, Order, Tier, Window};
use candle_rocm::{DType, Device, Error};

/// A problem: sequences, heads, and what else there is to attention.
#[derive(Clone, Debug)]
pub struct Case {
    /// Rows of each sequence.
    pub rows: Vec<usize>,
    /// Keys of each sequence.
    pub keys: Vec<usize>,
    pub heads: usize,
    pub kv_heads: usize,
    pub width: usize,
    pub v_width: usize,
    pub scale: f32,
    pub window: Window,
    pub chunk: Option<usize>,
    pub sinks: bool,
    pub softcap: Option<f32>,
    pub alibi: bool,
    pub mask: bool,
    /// The same for every sequence.
    pub prefix: Vec<[i32; 2]>,
    pub order: Order,
}

impl Case {
    /// Two sequences of these lengths, two heads, nothing hidden.
    pub fn new(rows: usize, keys: usize, width: usize) -> Self {
        Case {
            rows: vec![rows; 2],
            keys: vec![keys; 2],
            heads: 2,
            kv_heads: 2,
            width,
            v_width: width,
            scale: 1.0 / (width as f32).sqrt(),
            window: Window::default(),
            chunk: None,
            sinks: false,
            softcap: None,
            alibi: false,
            mask: false,
            prefix: Vec::new(),
            order: Order::RowsHeads,
        }
    }

    pub fn heads(self, heads: usize, kv_heads: usize) -> Self {
        Case {
            heads,
            kv_heads,
            ..self
        }
    }

    pub fn causal(self) -> Self {
        Case {
            window: Window::CAUSAL,
            ..self
        }
    }

    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Case {
            window: Window { left, right },
            ..self
        }
    }

    fn total_rows(&self) -> usize {
        self.rows.iter().sum()
    }

    fn total_keys(&self) -> usize {
        self.keys.iter().sum()
    }

    pub fn q_dims(&self) -> [usize; 3] {
        [self.total_rows(), self.heads, self.width]
    }

    pub fn k_dims(&self) -> [usize; 3] {
        [self.total_keys(), self.kv_heads, self.width]
    }

    pub fn v_dims(&self) -> [usize; 3] {
        [self.total_keys(), self.kv_heads, self.v_width]
    }

    /// Scores without keys: of the first head above what keys reach, so that softmax has its maximum there.
    pub fn sink_scores(&self) -> Vec<f32> {
        (0..self.heads).map(|h| 6.0 - 5.0 * h as f32).collect()
    }

    pub fn slopes(&self) -> Vec<f32> {
        (0..self.heads).map(|h| 0.5f32.powi(h as i32 + 1)).collect()
    }
}

/// Operands of a case: packed rows and keys, and a mask `[batch, heads, rows, keys]` for sequences of one length.
pub struct Values<T> {
    pub q: Vec<T>,
    pub k: Vec<T>,
    pub v: Vec<T>,
    pub mask: Vec<T>,
}

impl<T: Element> Values<T> {
    /// Random ones; a fourth of the mask hides, and of its last row everything.
    pub fn random(case: &Case, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let count = |dims: [usize; 3]| dims.iter().product();
        let q = rng.vec(count(case.q_dims()), -2.0, 2.0);
        let k = rng.vec(count(case.k_dims()), -2.0, 2.0);
        let v = rng.vec(count(case.v_dims()), -1.0, 1.0);
        let mut mask = Vec::new();
        if case.mask {
            let (rows, keys) = (case.rows[0], case.keys[0]);
            for i in 0..case.rows.len() * case.heads * rows * keys {
                let last = i / keys % rows == rows - 1 && rows > 1;
                let value = if last || rng.below(4) == 0 {
                    f64::NEG_INFINITY
                } else {
                    rng.uniform(-2.0, 1.0)
                };
                mask.push(T::from_f64(value));
            }
        }
        Values { q, k, v, mask }
    }
}

/// The result `[rows of all, heads, v_width]` and the log-sum-exp `[rows of all, heads]`.
pub fn textbook<T: Element>(case: &Case, values: &Values<T>) -> (Vec<f64>, Vec<f64>) {
    let (heads, group) = (case.heads, case.heads / case.kv_heads);
    let slopes = case.slopes();
    let sinks = case.sink_scores();
    let mut out = Vec::new();
    let mut lse = Vec::new();
    let (mut first_row, mut first_key) = (0, 0);
    for (b, (&rows, &keys)) in case.rows.iter().zip(&case.keys).enumerate() {
        for row in 0..rows {
            for (head, slope) in slopes.iter().enumerate() {
                let position = row as i64 + keys as i64 - rows as i64;
                let q = &values.q[((first_row + row) * heads + head) * case.width..][..case.width];
                let kv = |key: usize, width: usize| {
                    ((first_key + key) * case.kv_heads + head / group) * width
                };
                let mut scores = Vec::new();
                for key in 0..keys {
                    let k = &values.k[kv(key, case.width)..][..case.width];
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| a.to_f64() * b.to_f64()).sum();
                    let mut score = dot * f64::from(case.scale);
                    if let Some(cap) = case.softcap.map(f64::from) {
                        score = cap * (score / cap).tanh();
                    }
                    let j = key as i64;
                    if case.alibi {
                        score -= f64::from(*slope) * (position - j).abs() as f64;
                    }
                    let within = |[from, to]: &[i32; 2]| {
                        [position, j]
                            .iter()
                            .all(|&x| i64::from(*from) <= x && x < i64::from(*to))
                    };
                    let left = case
                        .window
                        .left
                        .is_none_or(|left| j >= position - left as i64);
                    let right = case
                        .window
                        .right
                        .is_none_or(|right| j <= position + right as i64);
                    let chunk = case
                        .chunk
                        .is_none_or(|chunk| j >= position / chunk as i64 * chunk as i64);
                    let mut visible = left && right && chunk || case.prefix.iter().any(within);
                    if case.mask {
                        let bias =
                            values.mask[((b * heads + head) * rows + row) * keys + key].to_f64();
                        visible &= bias != f64::NEG_INFINITY;
                        score += bias;
                    }
                    if visible {
                        scores.push((key, score));
                    }
                }
                let sink = match case.sinks {
                    true => f64::from(sinks[head]),
                    false => f64::NEG_INFINITY,
                };
                let max = scores.iter().map(|s| s.1).fold(sink, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s.1 - max).exp()).collect();
                let mut sum: f64 = weights.iter().sum();
                if case.sinks {
                    sum += (sink - max).exp();
                }
                lse.push(if scores.is_empty() && !case.sinks {
                    f64::NEG_INFINITY
                } else {
                    max + sum.ln()
                });
                for column in 0..case.v_width {
                    let weighted = scores.iter().zip(&weights).map(|((key, _), weight)| {
                        weight / sum * values.v[kv(*key, case.v_width) + column].to_f64()
                    });
                    out.push(weighted.sum());
                }
            }
        }
        first_row += rows;
        first_key += keys;
    }
    (out, lse)
}

/// Reorders a result `[batch, heads, rows, width]` of sequences of one length, or `[heads, rows of all, width]`, to
/// that of [`textbook`].
pub fn rows_first<T: Copy>(got: &[T], batch: usize, heads: usize, width: usize) -> Vec<T> {
    let rows = got.len() / (batch * heads * width).max(1);
    let mut ordered = Vec::with_capacity(got.len());
    for b in 0..batch {
        for row in 0..rows {
            for head in 0..heads {
                ordered.extend(&got[((b * heads + head) * rows + row) * width..][..width]);
            }
        }
    }
    ordered
}

/// What a device computes, through [`attention_on`](candle_rocm::ops::attention::attention_on).
pub type Outcome = Result<Attended, Error>;

/// Vectors on the device that a case needs besides queries, keys and values.
pub struct Extras {
    pub slopes: HostTensor<f32>,
    pub sinks: HostTensor<f32>,
    pub prefix: HostTensor<i32>,
    pub cu_rows: HostTensor<u32>,
    pub cu_keys: HostTensor<u32>,
}

impl Extras {
    pub fn new(case: &Case) -> Self {
        let batch = case.rows.len();
        let sums = |lengths: &[usize]| {
            let mut sums = vec![0u32];
            for &length in lengths {
                sums.push(sums[sums.len() - 1] + length as u32);
            }
            HostTensor::contiguous(sums, &[batch + 1])
        };
        let ranges: Vec<i32> = case.prefix.iter().flatten().copied().collect();
        Extras {
            slopes: HostTensor::contiguous(case.slopes(), &[case.heads]),
            sinks: HostTensor::contiguous(case.sink_scores(), &[case.heads]),
            prefix: HostTensor::contiguous(ranges.repeat(batch), &[batch, case.prefix.len(), 2]),
            cu_rows: sums(&case.rows),
            cu_keys: sums(&case.keys),
        }
    }
}

/// Runs on a tier after `change` had its way with the problem; `q`, `k` and `v` are views of what the case says.
pub fn run<'a>(
    device: &Device,
    case: &Case,
    tier: Tier,
    score_bytes: usize,
    mut attention: Attention<'a>,
    lengths: Lengths<'a>,
) -> Outcome {
    attention.scale = case.scale;
    attention.window = case.window;
    attention.chunk = case.chunk;
    attention.softcap = case.softcap;
    attention.order = case.order;
    attention.lengths = lengths;
    // Composable Kernel's instances do not have it.
    attention.log_sum_exp = tier != Tier::Ck;
    candle_rocm::ops::attention::attention_on(device, &attention, tier, score_bytes)
}

/// Largest tolerated normalised mean squared error.
pub const NMSE_LIMIT: f64 = 5e-4;

/// Compares result and log-sum-exp with the textbook; `batch` is the first dimension of the result, 1 of packed
/// sequences.
pub fn compare<T: Element>(
    device: &Device,
    case: &Case,
    values: &Values<T>,
    batch: usize,
    got: Outcome,
    what: &str,
) {
    let what = format!("{} {case:?} {what}", T::DTYPE);
    let got = got.unwrap_or_else(|error| panic!("{what}: {error}"));
    let (want, want_lse) = textbook(case, values);
    let mut out = download::<T>(device, &got.out);
    if case.order == Order::HeadsRows {
        out = rows_first(&out, batch, case.heads, case.v_width);
    }
    assert_close(&out, &want, NMSE_LIMIT, &what);
    if let Some(lse) = got.log_sum_exp {
        let lse = rows_first(&download::<f32>(device, &lse), batch, case.heads, 1);
        assert_close(&lse, &want_lse, 1e-5, &what);
    }
}

/// Whether the matrix tier has to compute a case of `T`; what else it has to refuse.
pub fn is_for_matrix<T: Element>(device: &Device, case: &Case) -> bool {
    let arch = device.properties().arch.as_str();
    let has_instructions = matches!(arch, "gfx90a" | "gfx942" | "gfx950" | "gfx9-4-generic")
        || ["gfx11", "gfx12", "sm_"]
            .iter()
            .any(|family| arch.starts_with(family));
    let widths = [case.width, case.v_width];
    let fits = |width: &usize| width.is_multiple_of(8) && *width <= WIDEST_OF_MATRIX;
    has_instructions
        && matches!(T::DTYPE, DType::F16 | DType::BF16)
        && widths.iter().all(fits)
        && case.prefix.is_empty()
}

/// The largest head size of the matrix tier.
pub const WIDEST_OF_MATRIX: usize = 256;
