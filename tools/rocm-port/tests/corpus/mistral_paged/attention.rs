//! Attention as the textbook has it, in f64: over paged caches, over plain ones with a causal window, and over
//! compressed ones (MLA).

/// Where keys and values lie in paged caches: keys `[blocks, heads, head_size / x, block_size, x]`, values
/// `[blocks, heads, head_size, block_size]`.
#[derive(Clone, Copy)]
pub struct Pages {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_size: usize,
    pub block_size: usize,
    /// Elements of a cache in 16 bytes.
    pub x: usize,
    /// Entries of a sequence in the table of blocks.
    pub max_blocks: usize,
}

impl Pages {
    /// The place of a key's element; `block` is a physical one.
    pub fn key(&self, block: usize, head: usize, d: usize, slot: usize) -> usize {
        let rows = self.head_size / self.x;
        (((block * self.kv_heads + head) * rows + d / self.x) * self.block_size + slot) * self.x
            + d % self.x
    }

    /// The place of a value's element.
    pub fn value(&self, block: usize, head: usize, d: usize, slot: usize) -> usize {
        ((block * self.kv_heads + head) * self.head_size + d) * self.block_size + slot
    }

    /// Elements of one block of either cache.
    pub fn block(&self) -> usize {
        self.kv_heads * self.head_size * self.block_size
    }
}

/// How scores become weights.
#[derive(Clone, Copy)]
pub struct Scores<'a> {
    pub scale: f64,
    /// 1 for none, as the kernels have it.
    pub softcap: f64,
    /// One slope for a head.
    pub alibi: Option<&'a [f64]>,
    /// One score for a head that takes weight and gives nothing.
    pub sinks: Option<&'a [f64]>,
}

/// A softmax that is not divided yet: the largest score, the sum, and the weighted sum of values.
pub struct Softmax {
    pub max: f64,
    pub sum: f64,
    pub values: Vec<f64>,
}

/// The softmax of `scores`, and `value(i, d)` of each weighed by it.
pub fn softmax(
    scores: &[f64],
    sink: Option<f64>,
    width: usize,
    value: impl Fn(usize, usize) -> f64,
) -> Softmax {
    let max = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
    let values = (0..width)
        .map(|d| {
            weights
                .iter()
                .enumerate()
                .map(|(i, w)| w * value(i, d))
                .sum()
        })
        .collect();
    Softmax { max, sum, values }
}

/// A query `q` of one sequence and head over the tokens `range` of its context of `context` tokens, `table` being the
/// sequence's blocks.
#[allow(clippy::too_many_arguments)]
pub fn paged(
    pages: &Pages,
    scores: &Scores,
    q: &[f64],
    (keys, values): (&[f64], &[f64]),
    table: &[i64],
    head: usize,
    range: std::ops::Range<usize>,
    context: usize,
    sink: Option<f64>,
) -> Softmax {
    let kv_head = head / (pages.heads / pages.kv_heads);
    let at = |token: usize| {
        (
            table[token / pages.block_size] as usize,
            token % pages.block_size,
        )
    };
    let logits: Vec<f64> = range
        .clone()
        .map(|token| {
            let (block, slot) = at(token);
            let dot: f64 = (0..pages.head_size)
                .map(|d| q[d] * keys[pages.key(block, kv_head, d, slot)])
                .sum();
            let mut score = scores.scale * dot;
            if scores.softcap != 1.0 {
                score = (score / scores.softcap).tanh() * scores.softcap;
            }
            score
                + scores.alibi.map_or(0.0, |slopes| {
                    slopes[head] * (token as f64 - context as f64 + 1.0)
                })
        })
        .collect();
    softmax(&logits, sink, pages.head_size, |i, d| {
        let (block, slot) = at(range.start + i);
        values[pages.value(block, kv_head, d, slot)]
    })
}

/// Attention of `queries` rows to `keys` of them, the last row seeing all: causal, with a window of `window` keys if it
/// is not 0. `q(row, d)`, `k(row, d)` and `v(row, d)` are one head's.
pub fn causal(
    (rows, keys, width): (usize, usize, usize),
    scale: f64,
    window: usize,
    sink: Option<f64>,
    q: impl Fn(usize, usize) -> f64,
    k: impl Fn(usize, usize) -> f64,
    v: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let mut out = Vec::with_capacity(rows * width);
    for row in 0..rows {
        let end = (row + keys + 1).saturating_sub(rows).min(keys);
        let start = if window > 0 {
            end.saturating_sub(window)
        } else {
            0
        };
        let scores: Vec<f64> = (start..end)
            .map(|j| scale * (0..width).map(|d| q(row, d) * k(j, d)).sum::<f64>())
            .collect();
        let all = softmax(&scores, sink, width, |i, d| v(start + i, d));
        out.extend(
            all.values
                .iter()
                .map(|x| if all.sum > 0.0 { x / all.sum } else { 0.0 }),
        );
    }
    out
}

/// The partitions of a context, each of `size` tokens, put together: what each of them gave before.
pub fn combine(parts: &[(f64, f64, &[f64])], sink: Option<f64>, width: usize) -> Vec<f64> {
    let max = parts
        .iter()
        .map(|part| part.0)
        .chain(sink)
        .fold(f64::MIN, f64::max);
    let sum: f64 = parts
        .iter()
        .map(|part| part.1 * (part.0 - max).exp())
        .sum::<f64>()
        + sink.map_or(0.0, |s| (s - max).exp());
    (0..width)
        .map(|d| {
            parts
                .iter()
                .map(|(m, s, values)| values[d] * s * (m - max).exp())
                .sum::<f64>()
                / (sum + 1e-6)
        })
        .collect()
}
