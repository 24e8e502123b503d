//! Attention: scores of few rows and some hundred keys at a time, whose softmax goes on from block to block (Milakov and
//! Gimelshein, Online normalizer calculation for softmax, 2018).

use crate::lanes::{exp, for_each_level, Lanes, Level};
use crate::linear::turn;
use crate::parallel::{written, On, Shared, Threads};
use crate::product::split;
use crate::tile::{lanes, most_vectors, multiply, Product, Start};
use std::sync::OnceLock;

/// Rows whose scores are held at a time, and keys.
const BLOCK: (usize, usize) = (12, 512);

/// The sizes of an attention.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Queries of each.
    pub rows: usize,
    /// Keys and values of each.
    pub keys: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`: neighbouring heads of queries share one.
    pub kv_heads: usize,
    /// Numbers of a head.
    pub size: usize,
    /// By what products of queries and keys are multiplied.
    pub scale: f32,
    /// The last row sees all keys, each before it one less.
    pub causal: bool,
}

impl Attention {
    /// How many keys a row sees.
    fn seen(&self, row: usize) -> usize {
        match self.causal {
            true => (row + 1 + self.keys)
                .saturating_sub(self.rows)
                .min(self.keys),
            false => self.keys,
        }
    }
}

/// Keys and values of a head as products want them.
struct Packed {
    /// Panels of keys, each with a line for each number of the head.
    keys: Vec<f32>,
    /// Values, lines that end with whole vectors.
    values: Vec<f32>,
}

/// `softmax(q k^T scale) v` for each head: `q` and the result are `(batch, rows, heads, size)`, `k` and `v`
/// `(batch, keys, kv_heads, size)`. A row that sees no key is 0.
pub fn attention(
    threads: &dyn Threads,
    a: &Attention,
    q: &[f32],
    k: &[f32],
    v: &[f32],
) -> Vec<f32> {
    attention_at(On::best(threads), a, q, k, v)
}

pub(crate) fn attention_at(on: On, a: &Attention, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
    assert!(a.kv_heads > 0 && a.heads.is_multiple_of(a.kv_heads));
    assert!(q.len() == a.batch * a.rows * a.heads * a.size);
    assert!(k.len() == a.batch * a.keys * a.kv_heads * a.size && v.len() == k.len());
    if a.size == 0 || a.keys == 0 {
        return vec![0.0; q.len()];
    }
    let packed: Vec<_> = std::iter::repeat_with(OnceLock::new)
        .take(a.batch * a.kv_heads)
        .collect();
    on.for_each(packed.len(), usize::MAX, |i| {
        let from = (i / a.kv_heads * a.keys * a.kv_heads + i % a.kv_heads) * a.size;
        packed[i].get_or_init(|| pack(on.level, a, &k[from..], &v[from..]));
    });
    let packed: Vec<Packed> = packed
        .into_iter()
        .filter_map(OnceLock::into_inner)
        .collect();
    // A task for some blocks of rows of a head.
    let blocks = a.rows.div_ceil(BLOCK.0);
    let wanted = (8 * on.threads.count()).div_ceil((a.batch * a.heads).max(1));
    let parts = wanted.clamp(1, blocks.max(1));
    let elements = a.batch * a.heads * a.rows * a.keys * a.size;
    let one = |task: usize, out: Shared| {
        let (head, part) = (task / parts, task % parts);
        let (batch, head) = (head / a.heads, head % a.heads);
        let packed = &packed[batch * a.kv_heads + head / (a.heads / a.kv_heads)];
        let mut scratch = Scratch::new(on.level, a);
        for block in blocks * part / parts..blocks * (part + 1) / parts {
            let first = block * BLOCK.0;
            let at = ((batch * a.rows + first) * a.heads + head) * a.size;
            let count = BLOCK.0.min(a.rows - first);
            // SAFETY: the slices are as long as checked above, and these rows of this head are this task's.
            unsafe {
                let (q, out) = (q.as_ptr().add(at), out.pointer().add(at));
                some_rows(on.level, a, packed, (first, count), q, out, &mut scratch);
            }
        }
    };
    // SAFETY: the tasks are all rows of all heads.
    unsafe {
        written(q.len(), |out| {
            on.for_each(a.batch * a.heads * parts, elements, |task| one(task, out));
        })
    }
}

fn pack(level: Level, a: &Attention, k: &[f32], v: &[f32]) -> Packed {
    let (vector, stride) = (lanes(level), a.kv_heads * a.size);
    let wide = a.size.next_multiple_of(vector);
    // Blocks are whole panels, so only the last one has vectors that are not full.
    let mut packed = Packed {
        keys: vec![0.0; a.keys.next_multiple_of(vector) * a.size],
        values: vec![0.0; a.keys * wide],
    };
    let panel = most_vectors(level) * vector;
    for first in (0..a.keys).step_by(panel) {
        let keys = first..(first + panel).min(a.keys);
        let width = keys.len().next_multiple_of(vector);
        let to = &mut packed.keys[first * a.size..][..width * a.size];
        // SAFETY: there are that many keys, and `to` has a line of `width` for each number of the head.
        unsafe { turn(k.as_ptr(), stride, 0..a.size, keys, width, to.as_mut_ptr()) }
    }
    for (key, to) in packed.values.chunks_exact_mut(wide).enumerate() {
        to[..a.size].copy_from_slice(&v[key * stride..][..a.size]);
    }
    packed
}

/// What rows are computed in.
struct Scratch {
    queries: Vec<f32>,
    scores: Vec<f32>,
    sums: Vec<f32>,
}

impl Scratch {
    fn new(level: Level, a: &Attention) -> Self {
        let vector = lanes(level);
        Self {
            queries: vec![0.0; BLOCK.0 * a.size],
            scores: vec![0.0; BLOCK.0 * BLOCK.1],
            sums: vec![0.0; BLOCK.0 * a.size.next_multiple_of(vector)],
        }
    }
}

/// `count` rows from `first` on, whose first number of this head is at `q` and `out`.
unsafe fn some_rows(
    level: Level,
    a: &Attention,
    packed: &Packed,
    (first, count): (usize, usize),
    q: *const f32,
    out: *mut f32,
    scratch: &mut Scratch,
) {
    let (vector, stride) = (lanes(level), a.heads * a.size);
    let wide = a.size.next_multiple_of(vector);
    for row in 0..count {
        let from = std::slice::from_raw_parts(q.add(row * stride), a.size);
        let to = &mut scratch.queries[row * a.size..(row + 1) * a.size];
        to.iter_mut()
            .zip(from)
            .for_each(|(to, from)| *to = from * a.scale);
    }
    let panel = most_vectors(level) * vector;
    let mut state = [(f32::NEG_INFINITY, 0f32); BLOCK.0];
    let seen = a.seen(first + count - 1);
    for begin in (0..seen).step_by(BLOCK.1) {
        let end = (begin + BLOCK.1).min(seen);
        for key in (begin..end).step_by(panel) {
            // A panel's lines are as long as the panel, also where fewer of its keys are seen.
            let width = panel.min(a.keys.next_multiple_of(vector) - key);
            let product = Product {
                depth: a.size,
                left: (scratch.queries.as_ptr(), a.size),
                right: (packed.keys.as_ptr().add(key * a.size), width),
                out: (scratch.scores.as_mut_ptr().add(key - begin), BLOCK.1),
                rows: count,
                columns: panel.min(end - key),
                start: Start::Zero,
            };
            multiply(level, &product);
        }
        for (row, state) in state[..count].iter_mut().enumerate() {
            let scores = &mut scratch.scores[row * BLOCK.1..][..end - begin];
            // What the row does not see has no weight.
            let own = a.seen(first + row).clamp(begin, end) - begin;
            let (seen, hidden) = scores.split_at_mut(own);
            hidden.fill(0.0);
            let sums = &mut scratch.sums[row * wide..(row + 1) * wide];
            powers(level, seen, state, sums);
        }
        for columns in split(a.size, a.size.div_ceil(panel), vector) {
            let product = Product {
                depth: end - begin,
                left: (scratch.scores.as_ptr(), BLOCK.1),
                right: (
                    packed.values.as_ptr().add(begin * wide + columns.start),
                    wide,
                ),
                out: (scratch.sums.as_mut_ptr().add(columns.start), wide),
                rows: count,
                columns: columns.len(),
                start: match begin {
                    0 => Start::Zero,
                    _ => Start::Output,
                },
            };
            multiply(level, &product);
        }
    }
    for (row, (_, sum)) in state[..count].iter().enumerate() {
        let sees = a.seen(first + row) > 0;
        let factor = sum.recip();
        for (i, sum) in scratch.sums[row * wide..][..a.size].iter().enumerate() {
            *out.add(row * stride + i) = if sees { sum * factor } else { 0.0 };
        }
    }
}

for_each_level!(
    /// Makes scores powers, of which the greatest so far and the sum are the state; weighs the sums of values anew where
    /// a greater one comes.
    powers = powers_in(scores: &mut [f32], state: &mut (f32, f32), sums: &mut [f32]));

#[inline(always)]
unsafe fn powers_in<L: Lanes>(scores: &mut [f32], state: &mut (f32, f32), sums: &mut [f32]) {
    if scores.is_empty() {
        return;
    }
    let (count, at) = (scores.len(), scores.as_mut_ptr());
    let whole = count / L::N * L::N;
    // NaN is passed over: its power is NaN whatever the greatest is.
    let mut most = L::splat(state.0);
    let mut i = 0;
    while i < whole {
        most = L::max(L::load(at.add(i)), most);
        i += L::N;
    }
    let most = scores[whole..].iter().fold(
        L::greatest(most),
        |most, x| if *x > most { *x } else { most },
    );
    if most != state.0 && state.0 != f32::NEG_INFINITY {
        let factor = (state.0 - most).exp();
        state.1 *= factor;
        sums.iter_mut().for_each(|sum| *sum *= factor);
    }
    let shift = L::splat(most);
    let mut sum = L::splat(0.0);
    let mut i = 0;
    while i < whole {
        let power = exp::<L>(L::sub(L::load(at.add(i)), shift));
        L::store(at.add(i), power);
        sum = L::add(sum, power);
        i += L::N;
    }
    if whole < count {
        let power = exp::<L>(L::sub(L::load_part(at.add(whole), count - whole), shift));
        L::store_part(at.add(whole), power, count - whole);
        // Only what was stored counts.
        sum = L::add(sum, L::load_part(at.add(whole), count - whole));
    }
    *state = (most, state.1 + L::sum(sum));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{all, numbers};

    fn plain(a: &Attention, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f64> {
        let mut out = Vec::new();
        for at in 0..a.batch * a.rows * a.heads {
            let (batch, row, head) = (at / a.heads / a.rows, at / a.heads % a.rows, at % a.heads);
            let head = head / (a.heads / a.kv_heads);
            let place = |key: usize| ((batch * a.keys + key) * a.kv_heads + head) * a.size;
            let scores: Vec<f64> = (0..a.seen(row))
                .map(|key| {
                    let product =
                        |i: usize| f64::from(q[at * a.size + i]) * f64::from(k[place(key) + i]);
                    (0..a.size).map(product).sum::<f64>() * f64::from(a.scale)
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|x| (x - most).exp()).sum();
            for i in 0..a.size {
                let parts = scores.iter().enumerate();
                let value: f64 = parts
                    .map(|(key, x)| (x - most).exp() / sum * f64::from(v[place(key) + i]))
                    .sum();
                out.push(value);
            }
        }
        out
    }

    #[test]
    fn rows_are_means_of_values_by_their_weights() {
        let base = Attention {
            batch: 1,
            rows: 1,
            keys: 1,
            heads: 1,
            kv_heads: 1,
            size: 1,
            scale: 1.0,
            causal: false,
        };
        let cases = [
            base,
            Attention {
                batch: 2,
                rows: 13,
                keys: 77,
                heads: 4,
                kv_heads: 4,
                size: 24,
                scale: 3.0,
                ..base
            },
            Attention {
                rows: 30,
                keys: 1030,
                heads: 2,
                kv_heads: 2,
                size: 40,
                scale: 20.0,
                ..base
            },
            Attention {
                rows: 25,
                keys: 513,
                heads: 6,
                kv_heads: 2,
                size: 80,
                ..base
            },
            Attention {
                rows: 5,
                keys: 64,
                size: 160,
                ..base
            },
            Attention {
                rows: 77,
                keys: 77,
                heads: 3,
                kv_heads: 1,
                size: 7,
                scale: 2.0,
                causal: true,
                ..base
            },
            Attention {
                rows: 3,
                keys: 600,
                size: 8,
                causal: true,
                ..base
            },
            Attention {
                rows: 600,
                keys: 600,
                size: 8,
                causal: true,
                ..base
            },
            Attention {
                rows: 9,
                keys: 4,
                size: 5,
                causal: true,
                ..base
            },
        ];
        for a in cases {
            let q = numbers(a.batch * a.rows * a.heads * a.size, 1);
            let count = a.batch * a.keys * a.kv_heads * a.size;
            let (k, v) = (numbers(count, 2), numbers(count, 3));
            let expected = plain(&a, &q, &k, &v);
            for on in all() {
                let level = on.level;
                let out = attention_at(on, &a, &q, &k, &v);
                for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
                    let apart = (f64::from(*found) - expected).abs();
                    assert!(
                        apart < 2e-5,
                        "{level:?}, {a:?}, {i}: {found} for {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_with_those_who_see_it() {
        let a = Attention {
            batch: 1,
            rows: 20,
            keys: 20,
            heads: 1,
            kv_heads: 1,
            size: 4,
            scale: 1.0,
            causal: true,
        };
        let (q, v) = (vec![1f32; 80], vec![1f32; 80]);
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut k = vec![1f32; 80];
            k[4 * 15] = wrong;
            for on in all() {
                let level = on.level;
                let out = attention_at(on, &a, &q, &k, &v);
                for (i, x) in out.iter().enumerate() {
                    assert_eq!(x.is_nan(), i / 4 >= 15, "{level:?}, {i}: {x}");
                    assert!(x.is_nan() || (x - 1.0).abs() < 1e-6);
                }
            }
        }
    }
}
