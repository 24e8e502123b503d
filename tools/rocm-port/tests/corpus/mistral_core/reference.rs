//! The operations of mistralrs-core in f64.

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

/// How tokens go to experts.
#[derive(Clone, Copy)]
pub struct Experts<'a> {
    pub topk: usize,
    pub n: usize,
    pub k: usize,
    /// The token of each row of work.
    pub tokens: &'a [i64],
    /// The expert of each row of work.
    pub experts: &'a [i64],
    /// A weight for each token; with them tokens are not repeated `topk` times in the input.
    pub weights: Option<&'a [f64]>,
    /// Weights of experts are `[k, n]` rather than `[n, k]`.
    pub transposed: bool,
}

/// A product with each token's expert; rows of `before` that no work names stay.
pub fn moe(work: &Experts, input: &[f64], weights: &[f64], before: Vec<f64>) -> Vec<f64> {
    let (n, k) = (work.n, work.k);
    let mut out = before;
    for (&token, &expert) in work.tokens.iter().zip(work.experts) {
        let (token, expert) = (token as usize, expert as usize);
        let row = token / if work.weights.is_some() { 1 } else { work.topk };
        for column in 0..n {
            let sum: f64 = (0..k)
                .map(|i| {
                    let at = if work.transposed {
                        i * n + column
                    } else {
                        column * k + i
                    };
                    input[row * k + i] * weights[expert * n * k + at]
                })
                .sum();
            out[token * n + column] = sum * work.weights.map_or(1.0, |weights| weights[token]);
        }
    }
    out
}

/// Sizes of the gated delta rule: heads of all batches, steps, and widths of keys and values.
#[derive(Clone, Copy)]
pub struct Delta {
    pub heads: usize,
    pub steps: usize,
    pub k: usize,
    pub v: usize,
}

/// The gated delta rule step by step: the output and the last state.
pub fn delta_rule(
    s: Delta,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    g: &[f64],
    beta: &[f64],
    state: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let mut state = state.to_vec();
    let mut out = vec![0.0; s.heads * s.steps * s.v];
    for head in 0..s.heads {
        for step in 0..s.steps {
            let row = head * s.steps + step;
            let (q, k) = (&q[row * s.k..][..s.k], &k[row * s.k..][..s.k]);
            let decay = g[row].exp();
            for column in 0..s.v {
                let at = |i: usize| (head * s.k + i) * s.v + column;
                for i in 0..s.k {
                    state[at(i)] *= decay;
                }
                let memory: f64 = (0..s.k).map(|i| state[at(i)] * k[i]).sum();
                let delta = (v[row * s.v + column] - memory) * beta[row];
                for i in 0..s.k {
                    state[at(i)] += k[i] * delta;
                }
                out[row * s.v + column] = (0..s.k).map(|i| state[at(i)] * q[i]).sum();
            }
        }
    }
    (out, state)
}

/// A causal convolution of each channel by itself, with SiLU: `x` is `[rows, steps]`, `w` `[channels, taps]`.
pub fn conv(x: &[f64], w: &[f64], channels: usize, steps: usize, taps: usize) -> Vec<f64> {
    let rows = x.len() / steps;
    let mut out = Vec::with_capacity(x.len());
    for row in 0..rows {
        for step in 0..steps {
            let sum: f64 = (0..taps)
                .filter(|tap| step + tap + 1 >= taps)
                .map(|tap| x[row * steps + step + tap + 1 - taps] * w[row % channels * taps + tap])
                .sum();
            out.push(silu(sum));
        }
    }
    out
}

/// The last `taps` steps of each row, zeros before the first.
pub fn last_steps(x: &[f64], steps: usize, taps: usize) -> Vec<f64> {
    let before = taps.saturating_sub(steps);
    x.chunks(steps)
        .flat_map(|row| {
            std::iter::repeat_n(0.0, before)
                .chain(row[steps.saturating_sub(taps)..].iter().copied())
        })
        .collect()
}

/// One step of the convolution: the new state, and the output.
pub fn conv_step(
    x: &[f64],
    w: &[f64],
    state: &[f64],
    channels: usize,
    taps: usize,
) -> (Vec<f64>, Vec<f64>) {
    let state: Vec<f64> = state
        .chunks(taps)
        .zip(x)
        .flat_map(|(row, &x)| row[1..].iter().copied().chain([x]))
        .collect();
    let out = state
        .chunks(taps)
        .enumerate()
        .map(|(row, window)| {
            silu(
                window
                    .iter()
                    .zip(&w[row % channels * taps..])
                    .map(|(s, w)| s * w)
                    .sum(),
            )
        })
        .collect();
    (state, out)
}

/// The gates of the delta rule: `sigmoid(b)`, and `-exp(a_log) softplus(a + bias)`.
pub fn gates(b: &[f64], a: &[f64], a_log: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let heads = a_log.len();
    let beta = b.iter().map(|b| 1.0 / (1.0 + (-b).exp())).collect();
    let g = a
        .iter()
        .enumerate()
        .map(|(i, a)| -a_log[i % heads].exp() * softplus(a + bias[i % heads]))
        .collect();
    (beta, g)
}

/// Sizes of the selective scan.
#[derive(Clone, Copy)]
pub struct Scan {
    pub batch: usize,
    pub steps: usize,
    pub heads: usize,
    pub width: usize,
    pub state: usize,
    pub dt_min: f64,
    pub dt_max: f64,
}

/// What the selective scan reads.
pub struct ScanInputs<'a> {
    pub x: &'a [f64],
    pub dt: &'a [f64],
    pub a: &'a [f64],
    pub b: &'a [f64],
    pub c: &'a [f64],
    pub d: &'a [f64],
    pub bias: &'a [f64],
}

/// The selective scan of Mamba-2: the output and the last state.
pub fn scan(s: Scan, i: &ScanInputs, state: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut state = state.to_vec();
    let mut out = vec![0.0; s.batch * s.steps * s.heads * s.width];
    for batch in 0..s.batch {
        for step in 0..s.steps {
            for head in 0..s.heads {
                let row = (batch * s.steps + step) * s.heads + head;
                let dt = softplus(i.dt[row] + i.bias[head]).clamp(s.dt_min, s.dt_max);
                for column in 0..s.width {
                    let at = ((batch * s.heads + head) * s.width + column) * s.state;
                    let x = i.x[row * s.width + column];
                    let mut sum = 0.0;
                    for n in 0..s.state {
                        let value = state[at + n] * (dt * i.a[head]).exp()
                            + i.b[row * s.state + n] * x * dt;
                        state[at + n] = value;
                        sum += value * i.c[row * s.state + n];
                    }
                    out[row * s.width + column] = sum + i.d[head] * x;
                }
            }
        }
    }
    (out, state)
}

/// One exchange of a bitonic sort, in the distance `j` within runs of `k`.
pub fn bitonic_step(ascending: bool, j: usize, k: usize, values: &mut [f64], indices: &mut [i64]) {
    for i in 0..values.len() {
        let other = i ^ j;
        if other <= i {
            continue;
        }
        let up = ((i & k) == 0) == ascending;
        let (low, high) = (values[i], values[other]);
        if if up { low > high } else { low < high } {
            values.swap(i, other);
            indices.swap(i, other);
        }
    }
}

/// The `k` largest of each row, in descending order, and where they were; of equal ones the first.
pub fn top(x: &[f64], columns: usize, k: usize) -> (Vec<f64>, Vec<i64>) {
    let (mut values, mut indices) = (Vec::new(), Vec::new());
    for row in x.chunks(columns) {
        let mut order: Vec<usize> = (0..columns).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        values.extend(order[..k].iter().map(|&i| row[i]));
        indices.extend(order[..k].iter().map(|&i| i as i64));
    }
    (values, indices)
}

/// The softmax of each row of `k`.
pub fn softmax(x: &[f64], k: usize) -> Vec<f64> {
    x.chunks(k)
        .flat_map(|row| {
            let max = row.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
            row.iter()
                .map(move |x| (x - max).exp() / sum)
                .collect::<Vec<_>>()
        })
        .collect()
}
