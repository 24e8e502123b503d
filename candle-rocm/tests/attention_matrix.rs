//! Attention by matrix instructions: what its tiles, padding and packing of rows could get wrong. Semantics in full are in attention.rs.

mod common;

use candle_rocm::ops::attention::{attention_on, Attention, Lengths, Order, Tier, Window};
use candle_rocm::{Device, Error, View};
use common::{assert_close, device, download, row_major, upload, Element, Rng};
use half::{bf16, f16};

/// Largest tolerated normalised mean squared error.
const LIMIT: f64 = 5e-4;

/// A problem on the host; keys and values lie in blocks if `block_size` is not 0.
#[derive(Clone, Debug)]
struct Case {
    rows: Vec<usize>,
    keys: Vec<usize>,
    heads: usize,
    kv_heads: usize,
    size: usize,
    window: Window,
    softcap: Option<f32>,
    alibi: bool,
    mask: bool,
    block_size: usize,
}

impl Case {
    fn new(rows: usize, keys: usize, heads: usize, kv_heads: usize, size: usize) -> Self {
        Case {
            rows: vec![rows],
            keys: vec![keys],
            heads,
            kv_heads,
            size,
            window: Window::default(),
            softcap: None,
            alibi: false,
            mask: false,
            block_size: 0,
        }
    }

    fn causal(self) -> Self {
        Case {
            window: Window::CAUSAL,
            ..self
        }
    }

    fn scale(&self) -> f32 {
        (self.size as f32).sqrt().recip()
    }
}

/// Whether the device's arch has matrix instructions; without them the tier must say so.
fn is_available(device: &Device) -> bool {
    let arch = &device.properties().arch;
    matches!(arch.as_str(), "gfx90a" | "gfx942" | "gfx950")
        || arch.starts_with("gfx11")
        || arch.starts_with("gfx12")
}

/// The largest head size.
fn widest(device: &Device) -> usize {
    if device.properties().wave_size == 64 {
        256
    } else {
        128
    }
}

/// Places of the starts of sequences of these lengths.
fn starts(lengths: &[usize]) -> Vec<u32> {
    let mut starts = vec![0];
    for length in lengths {
        starts.push(starts[starts.len() - 1] + *length as u32);
    }
    starts
}

/// Where key `key` of sequence `b` lies, counted in keys, with blocks of a cache in descending order.
fn place(case: &Case, b: usize, key: usize) -> usize {
    if case.block_size == 0 {
        return starts(&case.keys)[b] as usize + key;
    }
    let per_sequence = blocks_per_sequence(case);
    let number = case.keys.len() * per_sequence - 1 - (b * per_sequence + key / case.block_size);
    number * case.block_size + key % case.block_size
}

fn blocks_per_sequence(case: &Case) -> usize {
    case.keys.iter().max().unwrap().div_ceil(case.block_size)
}

/// The formula in f64; rows of all sequences, heads, size.
fn oracle(case: &Case, q: &[f64], k: &[f64], v: &[f64], alibi: &[f64], mask: &[f64]) -> Vec<f64> {
    let (size, group) = (case.size, case.heads / case.kv_heads);
    let mut out = Vec::new();
    for (b, (&rows, &keys)) in case.rows.iter().zip(&case.keys).enumerate() {
        let first_row = starts(&case.rows)[b] as usize;
        for row in 0..rows {
            let position = (row + keys) as i64 - rows as i64;
            for head in 0..case.heads {
                let query = &q[((first_row + row) * case.heads + head) * size..][..size];
                let entry =
                    |key: usize| (place(case, b, key) * case.kv_heads + head / group) * size;
                let mut scores = Vec::new();
                for key in 0..keys {
                    let distance = position - key as i64;
                    let left = case.window.left.is_none_or(|l| distance <= l as i64);
                    let right = case.window.right.is_none_or(|r| -distance <= r as i64);
                    if !left || !right {
                        continue;
                    }
                    let product: f64 = query.iter().zip(&k[entry(key)..]).map(|(x, y)| x * y).sum();
                    let mut score = product * f64::from(case.scale());
                    if let Some(cap) = case.softcap {
                        score = f64::from(cap) * (score / f64::from(cap)).tanh();
                    }
                    if case.alibi {
                        score -= alibi[head] * distance.abs() as f64;
                    }
                    if case.mask {
                        score += mask[(head * rows + row) * keys + key];
                    }
                    if score != f64::NEG_INFINITY {
                        scores.push((key, score));
                    }
                }
                let max = scores.iter().fold(f64::NEG_INFINITY, |m, (_, s)| m.max(*s));
                let weights: Vec<_> = scores.iter().map(|(k, s)| (*k, (s - max).exp())).collect();
                let sum: f64 = weights.iter().map(|(_, w)| w).sum();
                for d in 0..size {
                    let total: f64 = weights.iter().map(|(k, w)| w * v[entry(*k) + d]).sum();
                    out.push(if weights.is_empty() { 0.0 } else { total / sum });
                }
            }
        }
    }
    out
}

/// Computes a case on the matrix tier and compares.
fn check<T: Element>(device: &Device, case: &Case) {
    let mut rng = Rng::new(9);
    let (rows, heads, size) = (case.rows.iter().sum::<usize>(), case.heads, case.size);
    let sequences = case.rows.len();
    let places = match case.block_size {
        0 => case.keys.iter().sum(),
        block => sequences * blocks_per_sequence(case) * block,
    };
    let q: Vec<T> = rng.vec(rows * heads * size, -2.0, 2.0);
    let mut entries = |_| -> Vec<T> {
        let mut all: Vec<T> = rng.vec(places * case.kv_heads * size, -2.0, 2.0);
        // What lies behind the last key of a cache must not matter.
        if case.block_size > 0 {
            let used: Vec<usize> = (0..sequences)
                .flat_map(|b| (0..case.keys[b]).map(move |key| place(case, b, key)))
                .collect();
            for unused in (0..places).filter(|p| !used.contains(p)) {
                let row = case.kv_heads * size;
                all[unused * row..][..row].fill(T::from_f64(f64::NAN));
            }
        }
        all
    };
    let (k, v) = (entries(0), entries(1));
    let slopes: Vec<f32> = (0..heads).map(|h| 0.5 / (h + 1) as f32).collect();
    let mask: Vec<T> = (0..heads * rows * case.keys[0])
        .map(|i| {
            T::from_f64(if i % 3 == 1 {
                f64::NEG_INFINITY
            } else {
                (i % 5) as f64
            })
        })
        .collect();
    let wide = |x: &[T]| x.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let wide_slopes: Vec<f64> = slopes.iter().map(|&s| s.into()).collect();
    let expected = oracle(
        case,
        &wide(&q),
        &wide(&k),
        &wide(&v),
        &wide_slopes,
        &wide(&mask),
    );

    let buffers = [upload(device, &q), upload(device, &k), upload(device, &v)];
    let fixed = sequences == 1 && case.block_size == 0;
    let q_dims = [1, rows, heads, size];
    let kv_dims = match case.block_size {
        0 => [1, places, case.kv_heads, size],
        block => [places / block, block, case.kv_heads, size],
    };
    let dims = match (fixed, case.block_size) {
        (true, _) => [&q_dims[..], &kv_dims[..]],
        (false, 0) => [&q_dims[1..], &kv_dims[1..]],
        (false, _) => [&q_dims[1..], &kv_dims[..]],
    };
    let strides = dims.map(row_major);
    let view =
        |i: usize| View::contiguous(&buffers[i], T::DTYPE, dims[i.min(1)], &strides[i.min(1)]);
    let mut problem = Attention::new(view(0), view(1), view(2), case.scale());
    problem.window = case.window;
    problem.softcap = case.softcap;
    problem.log_sum_exp = true;
    let (slope_buffer, slope_dims) = (upload(device, &slopes), [heads]);
    if case.alibi {
        problem.alibi = Some(View::contiguous(
            &slope_buffer,
            f32::DTYPE,
            &slope_dims,
            &[1],
        ));
    }
    let mask_buffer = upload(device, &mask);
    let mask_dims = [1, heads, rows, case.keys[0]];
    let mask_strides = row_major(&mask_dims);
    if case.mask {
        let view = View::contiguous(&mask_buffer, T::DTYPE, &mask_dims, &mask_strides);
        problem.mask = Some(view);
    }
    let (cu_rows, cu_keys) = (starts(&case.rows), starts(&case.keys));
    let (row_buffer, key_buffer) = (upload(device, &cu_rows), upload(device, &cu_keys));
    let per_sequence = if case.block_size > 0 {
        blocks_per_sequence(case)
    } else {
        0
    };
    let numbers: Vec<u32> = (0..(sequences * per_sequence) as u32).rev().collect();
    let number_buffer = upload(device, &numbers);
    let number_dims = [sequences, per_sequence];
    let number_strides = row_major(&number_dims);
    let start_dims = [sequences + 1];
    let view = |buffer| View::contiguous(buffer, u32::DTYPE, &start_dims, &[1]);
    let (cu_rows, cu_keys) = (view(&row_buffer), view(&key_buffer));
    let (max_rows, max_keys) = (
        *case.rows.iter().max().unwrap(),
        *case.keys.iter().max().unwrap(),
    );
    if case.block_size > 0 {
        let blocks = View::contiguous(&number_buffer, u32::DTYPE, &number_dims, &number_strides);
        problem.lengths = Lengths::Paged {
            cu_rows,
            cu_keys,
            max_rows,
            max_keys,
            blocks,
        };
    } else if !fixed {
        problem.lengths = Lengths::Packed {
            cu_rows,
            cu_keys,
            max_rows,
            max_keys,
        };
    }
    let result = attention_on(device, &problem, Tier::Matrix, 0);
    if !is_available(device) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("no matrix instructions"), "{text}");
        return;
    }
    let result = result.unwrap();
    let out = download::<T>(device, &result.out);
    let what = format!("{} {case:?}", T::DTYPE.as_str());
    assert_close(&out, &expected, LIMIT, &what);
}

fn check_both(case: Case) {
    let device = device();
    check::<f16>(&device, &case);
    check::<bf16>(&device, &case);
}

#[test]
fn every_width_and_its_padding() {
    for size in [8, 40, 64, 80, 96, 128, 160, 256] {
        if size > widest(&device()) {
            continue;
        }
        check_both(Case::new(21, 37, 1, 1, size));
    }
}

#[test]
fn causal_tiles_and_more_keys_than_rows() {
    check_both(Case::new(150, 150, 1, 1, 64).causal());
    check_both(Case::new(70, 133, 2, 2, 128).causal());
    // The first rows see nothing.
    check_both(Case::new(50, 20, 1, 1, 64).causal());
}

#[test]
fn windows_skip_tiles_on_both_sides() {
    let mut case = Case::new(140, 200, 1, 1, 64);
    case.window = Window {
        left: Some(33),
        right: Some(5),
    };
    check_both(case.clone());
    case.size = 128;
    case.window = Window {
        left: Some(0),
        right: Some(0),
    };
    check_both(case);
}

#[test]
fn groups_share_tiles() {
    for (heads, kv_heads) in [(4, 1), (6, 2), (5, 1)] {
        check_both(Case::new(33, 65, heads, kv_heads, 64).causal());
    }
}

#[test]
fn scores_with_softcap_alibi_and_mask() {
    let mut case = Case::new(40, 70, 4, 2, 96);
    case.softcap = Some(3.0);
    check_both(case.clone());
    case.alibi = true;
    check_both(case.clone().causal());
    case.mask = true;
    check_both(case);
}

#[test]
fn packed_and_paged_sequences() {
    let mut case = Case::new(1, 1, 4, 2, 64).causal();
    case.rows = vec![40, 1, 0, 17];
    case.keys = vec![40, 90, 5, 33];
    check_both(case.clone());
    case.block_size = 16;
    case.size = 128;
    check_both(case);
}

#[test]
fn the_tier_says_what_it_lacks() {
    let device = device();
    let buffer = upload(&device, &vec![f16::ONE; 512]);
    let view = |dims: &'static [usize; 4], strides: &'static [usize; 4]| {
        View::contiguous(&buffer, f16::DTYPE, dims, strides)
    };
    let wide = view(&[1, 1, 1, 264], &[264, 264, 264, 1]);
    let mut problem = Attention::new(wide, wide, wide, 1.0);
    problem.order = Order::HeadsRows;
    let error = attention_on(&device, &problem, Tier::Matrix, 0).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    let text = error.to_string();
    if is_available(&device) {
        let expected = format!("head sizes end at {}, before 264", widest(&device));
        assert!(text.contains(&expected), "{text}");
    }
}
