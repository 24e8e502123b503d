//! Attention to latent vectors, the choice of its keys and that of experts, against what they are written as in f64.

mod common;

use candle_rocm::ops::attention::latent::{attend, choose, Keys, NO_KEY};
use candle_rocm::ops::moe::{route, Route, Scores};
use candle_rocm::{contiguous_strides, Buffer, DType, Device, View};
use common::{device, download, upload, Element, Rng};
use half::{bf16, f16};

/// Sequences by their keys and rows; the last one only fills the batch up.
const SEQUENCES: [(usize, usize); 4] = [(37, 5), (300, 1), (70, 70), (0, 1)];
const BLOCK: usize = 16;

struct Case {
    heads: usize,
    turning: usize,
    rank: usize,
}

/// A batch's numbers, and a cache of random keys.
struct Cache {
    keys: Buffer,
    scales: Option<Buffer>,
    dtype: DType,
    dims: [usize; 4],
    /// The values of the keys of each sequence.
    values: Vec<Vec<f64>>,
    cu_rows: Buffer,
    cu_keys: Buffer,
    table: Buffer,
    width: usize,
}

fn blocks() -> usize {
    SEQUENCES.iter().map(|(keys, _)| keys.div_ceil(BLOCK)).sum()
}

impl Cache {
    fn new(device: &Device, dtype: DType, size: usize) -> Self {
        let blocks = blocks();
        let count = blocks * BLOCK * size;
        let mut rng = Rng::new(size as u64);
        let floats: Vec<f32> = rng.vec(count, -1.0, 1.0);
        let mut factors: Vec<f16> = Vec::new();
        let (keys, known): (Buffer, Vec<f64>) = match dtype {
            DType::F16 => stored::<f16>(device, &floats),
            DType::BF16 => stored::<bf16>(device, &floats),
            DType::F32 => stored::<f32>(device, &floats),
            _ => {
                factors = rng.vec(count / 32, 0.001, 0.02);
                let bytes: Vec<u8> = rng.vec(count, 0.0, 256.0);
                let of = |(i, b): (usize, &u8)| f64::from(*b as i8) * factors[i / 32].to_f64();
                let known = bytes.iter().enumerate().map(of).collect();
                (upload(device, &bytes), known)
            }
        };
        let width = SEQUENCES
            .iter()
            .map(|(keys, _)| keys.div_ceil(BLOCK))
            .max()
            .unwrap();
        let (mut table, mut values) = (Vec::new(), Vec::new());
        // Blocks of the sequences lie among each other.
        let mut next = 0;
        for (keys, _) in SEQUENCES {
            let own: Vec<usize> = (0..keys.div_ceil(BLOCK))
                .map(|i| (next + i) * 7 % blocks)
                .collect();
            next += own.len();
            let of_key = |key: usize| {
                let at = (own[key / BLOCK] * BLOCK + key % BLOCK) * size;
                known[at..at + size].to_vec()
            };
            values.push((0..keys).flat_map(of_key).collect());
            let mut row: Vec<u32> = own.iter().map(|block| *block as u32).collect();
            row.resize(width, 0);
            table.extend(row);
        }
        let sums = |of: fn(&(usize, usize)) -> usize| {
            let mut sum = 0;
            let mut sums = vec![0u32];
            for sequence in &SEQUENCES {
                sum += of(sequence) as u32;
                sums.push(sum);
            }
            upload(device, &sums)
        };
        Self {
            keys,
            scales: (dtype == DType::U8).then(|| upload(device, &factors)),
            dtype,
            dims: [blocks, BLOCK, 1, size],
            values,
            cu_rows: sums(|s| s.1),
            cu_keys: sums(|s| s.0),
            table: upload(device, &table),
            width,
        }
    }

    fn with<T>(&self, f: impl FnOnce(&Keys) -> T) -> T {
        let [blocks, block, heads, size] = self.dims;
        let strides = contiguous_strides(&self.dims);
        let scale_dims = [blocks, block, heads, size / 32];
        let scale_strides = contiguous_strides(&scale_dims);
        let (starts, table) = ([SEQUENCES.len() + 1], [SEQUENCES.len(), self.width]);
        let table_strides = contiguous_strides(&table);
        let keys = Keys {
            keys: View::contiguous(&self.keys, self.dtype, &self.dims, &strides),
            scales: self
                .scales
                .as_ref()
                .map(|s| View::contiguous(s, DType::F16, &scale_dims, &scale_strides)),
            cu_rows: View::contiguous(&self.cu_rows, DType::U32, &starts, &[1]),
            cu_keys: View::contiguous(&self.cu_keys, DType::U32, &starts, &[1]),
            blocks: View::contiguous(&self.table, DType::U32, &table, &table_strides),
            most: SEQUENCES.iter().map(|s| s.0).max().unwrap(),
        };
        f(&keys)
    }
}

fn stored<T: Element>(device: &Device, values: &[f32]) -> (Buffer, Vec<f64>) {
    let values: Vec<T> = values.iter().map(|v| T::from_f32(*v)).collect();
    let known = values.iter().map(|v| v.to_f64()).collect();
    (upload(device, &values), known)
}

/// Each token with its sequence and position.
fn tokens() -> Vec<(usize, Option<usize>)> {
    let of = |(i, (keys, rows)): (usize, &(usize, usize))| {
        let (keys, rows) = (*keys, *rows);
        (0..rows).map(move |row| (i, (keys + row).checked_sub(rows)))
    };
    SEQUENCES.iter().enumerate().flat_map(of).collect()
}

fn oracle(case: &Case, cache: &Cache, q: &[f64], chosen: Option<&[Vec<u32>]>) -> Vec<f64> {
    let size = case.turning + case.rank;
    let mut out = Vec::new();
    for (token, (sequence, position)) in tokens().into_iter().enumerate() {
        let keys: Vec<usize> = match (chosen, position) {
            (_, None) => Vec::new(),
            (Some(chosen), _) => chosen[token].iter().map(|key| *key as usize).collect(),
            (None, Some(position)) => (0..=position).collect(),
        };
        for head in 0..case.heads {
            let q = &q[(token * case.heads + head) * size..][..size];
            let key = |k: usize| &cache.values[sequence][k * size..][..size];
            let dot = |k: &usize| q.iter().zip(key(*k)).map(|(a, b)| a * b).sum::<f64>();
            let scores: Vec<f64> = keys.iter().map(|k| dot(k) * SCALE).collect();
            let max = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            out.extend((case.turning..size).map(|c| {
                let each = keys.iter().zip(&scores);
                let total: f64 = each.map(|(k, s)| key(*k)[c] * (s - max).exp()).sum();
                if keys.is_empty() {
                    0.0
                } else {
                    total / sum
                }
            }));
        }
    }
    out
}

const SCALE: f64 = 0.1875;

fn nmse(got: impl Iterator<Item = f64>, want: &[f64]) -> f64 {
    let error: f64 = got.zip(want).map(|(a, b)| (a - b).powi(2)).sum();
    error / want.iter().map(|b| b * b).sum::<f64>()
}

fn attends<T: Element>(case: &Case, dtype: DType, choice: bool, limit: f64) {
    let device = device();
    let size = case.turning + case.rank;
    let cache = Cache::new(&device, dtype, size);
    let count = tokens().len();
    let dims = [count, case.heads, size];
    let q: Vec<T> = Rng::new(5).vec(dims.iter().product(), -1.0, 1.0);
    let known: Vec<f64> = q.iter().map(|x| x.to_f64()).collect();
    let q = upload(&device, &q);
    let strides = contiguous_strides(&dims);
    let q = View::contiguous(&q, T::DTYPE, &dims, &strides);
    // Every third key, at most 20 of them.
    let chosen: Vec<Vec<u32>> = tokens()
        .iter()
        .map(|(_, position)| {
            let seen = position.map_or(0, |p| p + 1) as u32;
            match seen <= 20 {
                true => (0..seen).collect(),
                false => (0..seen).step_by(3).take(20).collect(),
            }
        })
        .collect();
    let mut listed = Vec::new();
    for keys in &chosen {
        let mut keys = keys.clone();
        keys.resize(20, NO_KEY);
        listed.extend(keys);
    }
    let list = upload(&device, &listed);
    let list_dims = [count, 20];
    let list = View::contiguous(&list, DType::U32, &list_dims, &[20, 1]);
    let list = choice.then_some(&list);
    let out = cache.with(|keys| attend(&device, &q, keys, case.turning, SCALE as f32, list));
    let got: Vec<T> = download(&device, &out.unwrap());
    let want = oracle(case, &cache, &known, choice.then_some(&chosen[..]));
    let error = nmse(got.iter().map(|x| x.to_f64()), &want);
    assert!(
        error <= limit,
        "{dtype} of {} heads, chosen {choice}: {error:e}",
        case.heads
    );
}

#[test]
fn every_format_of_keys_is_attended_to() {
    let case = Case {
        heads: 11,
        turning: 32,
        rank: 96,
    };
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::U8] {
        attends::<f32>(&case, dtype, false, 1e-10);
    }
    attends::<f32>(&case, DType::F16, true, 1e-10);
    attends::<f16>(&case, DType::F16, false, 1e-6);
    attends::<bf16>(&case, DType::BF16, false, 1e-4);
}

#[test]
fn sizes_from_a_few_elements_to_all_that_there_is_room_for() {
    for (heads, turning, rank) in [(1, 8, 16), (3, 64, 512), (16, 0, 256), (4, 24, 8)] {
        let case = Case {
            heads,
            turning,
            rank,
        };
        attends::<f32>(&case, DType::F32, false, 1e-10);
        attends::<f32>(&case, DType::F32, true, 1e-10);
    }
}

#[test]
fn keys_are_chosen_by_their_scores() {
    let device = device();
    let (heads, size) = (6, 32);
    let count = tokens().len();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::U8] {
        let cache = Cache::new(&device, dtype, size);
        let mut rng = Rng::new(9);
        let q: Vec<f32> = rng.vec(count * heads * size, -1.0, 1.0);
        // No weight, and scores that are the same, for some tokens.
        let mut weights: Vec<f32> = rng.vec(count * heads, -1.0, 1.0);
        weights[..2 * heads].fill(0.0);
        for most in [1, 20, 64] {
            let dims = [count, heads, size];
            let strides = contiguous_strides(&dims);
            let (q_buffer, w_buffer) = (upload(&device, &q), upload(&device, &weights));
            let view = View::contiguous(&q_buffer, DType::F32, &dims, &strides);
            let w_dims = [count, heads];
            let w_strides = [heads, 1];
            let w = View::contiguous(&w_buffer, DType::F32, &w_dims, &w_strides);
            let chosen = cache.with(|keys| choose(&device, &view, &w, keys, most).unwrap());
            let chosen: Vec<u32> = download(&device, &chosen);
            for (token, (sequence, position)) in tokens().into_iter().enumerate() {
                let seen = position.map_or(0, |position| position + 1);
                let score = |key: usize| -> f64 {
                    let key = &cache.values[sequence][key * size..][..size];
                    let of_head = |head: usize| {
                        let q = &q[(token * heads + head) * size..][..size];
                        let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * b).sum();
                        f64::from(weights[token * heads + head]) * dot.max(0.0)
                    };
                    (0..heads).map(of_head).sum()
                };
                let mut want: Vec<usize> = (0..seen).collect();
                want.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
                want.truncate(most);
                want.sort_unstable();
                let mut want: Vec<u32> = want.into_iter().map(|key| key as u32).collect();
                want.resize(most, NO_KEY);
                let got = &chosen[token * most..][..most];
                assert_eq!(got, want, "{dtype}, token {token}, {most} keys");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = device();
    let cache = Cache::new(&device, DType::F32, 40);
    let count = tokens().len();
    let q = upload(&device, &vec![0f32; count * 2 * 48]);
    for (size, turning) in [(48, 8), (40, 4), (40, 40)] {
        let dims = [count, 2, size];
        let strides = contiguous_strides(&dims);
        let q = View::contiguous(&q, DType::F32, &dims, &strides);
        let result = cache.with(|keys| attend(&device, &q, keys, turning, 1.0, None));
        assert!(result.is_err(), "{size} {turning}");
    }
}

/// The experts of one token and their weights, as they are written.
fn routed(logits: &[f32], bias: Option<&[f32]>, how: &Route) -> (Vec<u32>, Vec<f64>) {
    let x: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    let scores: Vec<f64> = match how.scores {
        Scores::Softmax => {
            let sum: f64 = x.iter().map(|x| x.exp()).sum();
            x.iter().map(|x| x.exp() / sum).collect()
        }
        Scores::Sigmoid => x.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Scores::Chosen => x,
    };
    let rank = |e: usize| scores[e] + bias.map_or(0.0, |b| f64::from(b[e]));
    let size = scores.len() / how.groups.0;
    let merit = |group: usize| -> f64 {
        let mut ranks: Vec<f64> = (group * size..(group + 1) * size).map(rank).collect();
        ranks.sort_by(|a, b| b.total_cmp(a));
        ranks.iter().take(how.best_of_group).sum()
    };
    let mut groups: Vec<usize> = (0..how.groups.0).collect();
    groups.sort_by(|a, b| merit(*b).total_cmp(&merit(*a)));
    let mut chosen: Vec<usize> = (0..scores.len())
        .filter(|e| groups[..how.groups.1].contains(&(e / size)))
        .collect();
    chosen.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)));
    chosen.truncate(how.used);
    let mut weights: Vec<f64> = chosen.iter().map(|e| scores[*e]).collect();
    if how.scores == Scores::Chosen {
        let sum: f64 = weights.iter().map(|w| w.exp()).sum();
        weights.iter_mut().for_each(|w| *w = w.exp() / sum);
    }
    let mut factor = f64::from(how.scale);
    if let Some(epsilon) = how.normalised {
        factor /= weights.iter().sum::<f64>() + f64::from(epsilon);
    }
    weights.iter_mut().for_each(|w| *w *= factor);
    (chosen.into_iter().map(|e| e as u32).collect(), weights)
}

#[test]
fn experts_are_chosen_and_weighed() {
    let device = device();
    let plain = Route {
        used: 8,
        scores: Scores::Softmax,
        groups: (1, 1),
        best_of_group: 1,
        normalised: None,
        scale: 1.0,
    };
    let ways = [
        plain,
        Route {
            normalised: Some(0.25),
            used: 2,
            ..plain
        },
        Route {
            groups: (8, 3),
            ..plain
        },
        Route {
            scores: Scores::Sigmoid,
            groups: (16, 4),
            best_of_group: 2,
            normalised: Some(1e-20),
            scale: 2.5,
            ..plain
        },
        Route {
            scores: Scores::Chosen,
            used: 40,
            ..plain
        },
    ];
    for experts in [64, 96, 512] {
        let tokens = 5;
        let mut rng = Rng::new(experts as u64);
        let logits: Vec<f32> = rng.vec(tokens * experts, -4.0, 4.0);
        let bias: Vec<f32> = rng.vec(experts, -0.5, 0.5);
        for how in &ways {
            for bias in [None, Some(&bias[..])] {
                let (x, dims) = (upload(&device, &logits), [tokens, experts]);
                let strides = [experts, 1];
                let x = View::contiguous(&x, DType::F32, &dims, &strides);
                let b = bias.map(|bias| upload(&device, bias));
                let b_dims = [experts];
                let b = b
                    .as_ref()
                    .map(|b| View::contiguous(b, DType::F32, &b_dims, &[1]));
                let (ids, weights) = route(&device, &x, b.as_ref(), how).unwrap();
                let ids: Vec<u32> = download(&device, &ids);
                let weights: Vec<f32> = download(&device, &weights);
                for (token, logits) in logits.chunks_exact(experts).enumerate() {
                    let (want_ids, want) = routed(logits, bias, how);
                    let range = token * how.used..(token + 1) * how.used;
                    assert_eq!(ids[range.clone()], want_ids, "{how:?}");
                    for (got, want) in weights[range].iter().zip(want) {
                        let difference = (f64::from(*got) - want).abs();
                        assert!(difference <= 1e-5 * want, "{how:?}: {got} for {want}");
                    }
                }
            }
        }
    }
    let dims = [1, 2048];
    let x = upload(&device, &vec![0f32; 2048]);
    let x = View::contiguous(&x, DType::F32, &dims, &[2048, 1]);
    assert!(route(&device, &x, None, &plain).is_err());
}

#[test]
fn the_first_of_equal_experts_is_chosen() {
    let device = device();
    let dims = [1, 70];
    let x = upload(&device, &vec![1f32; 70]);
    let x = View::contiguous(&x, DType::F32, &dims, &[70, 1]);
    let how = Route {
        used: 3,
        scores: Scores::Sigmoid,
        groups: (7, 2),
        best_of_group: 2,
        normalised: Some(0.0),
        scale: 1.0,
    };
    let (ids, _) = route(&device, &x, None, &how).unwrap();
    assert_eq!(download::<u32>(&device, &ids), [0, 1, 2]);
}
