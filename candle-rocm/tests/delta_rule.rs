//! The gated delta rule against its definition in f64.

mod common;

use candle_rocm::ops::delta_rule::{delta_rule, DeltaRule};
use candle_rocm::ops::Sequences;
use candle_rocm::{DType, Device, View};
use common::*;
use half::{bf16, f16};

const NONE: u32 = u32::MAX;
const EPSILON: f32 = 1e-6;

#[derive(Clone, Debug)]
struct Case {
    key_heads: usize,
    value_heads: usize,
    key_size: usize,
    value_size: usize,
    tiled: bool,
    sequences: Vec<Rows>,
    /// At least so many rows are said to be in the longest.
    longest: usize,
}

/// Rows of a sequence, the slot before, and the slots behind its last rows.
type Rows = (usize, u32, Vec<u32>);

/// A case of heads of keys and values and their sizes.
fn case(sizes: [usize; 4], tiled: bool, sequences: Vec<Rows>) -> Case {
    let [key_heads, value_heads, key_size, value_size] = sizes;
    Case {
        key_heads,
        value_heads,
        key_size,
        value_size,
        tiled,
        sequences,
        longest: 0,
    }
}

const SLOTS: usize = 12;

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn check<T: Element>(device: &Device, case: &Case) {
    let Case {
        key_heads,
        value_heads,
        key_size,
        value_size,
        tiled,
        ..
    } = *case;
    let rows: usize = case.sequences.iter().map(|s| s.0).sum();
    let (keys, values) = (key_heads * key_size, value_heads * value_size);
    // Queries, keys and values of a row behind each other, as the convolution before gives them.
    let wide = 2 * keys + values;
    let mut rng = Rng::new((key_size + rows) as u64);
    let packed: Vec<T> = rng.vec(rows * wide, -1.0, 1.2);
    let a: Vec<T> = rng.vec(rows * value_heads, -3.0, 2.0);
    let b: Vec<T> = rng.vec(rows * value_heads, -2.0, 3.0);
    let rate: Vec<f32> = rng.vec(value_heads, -1.0, -0.01);
    let bias: Vec<f32> = rng.vec(value_heads, -1.0, 1.0);
    let of_state = value_heads * key_size * value_size;
    let old: Vec<f32> = rng.vec(SLOTS * of_state, -0.5, 0.5);

    let (mut starts, mut from, mut to) = (vec![0u32], Vec::new(), Vec::new());
    let mut want = vec![0.0; rows * values];
    let mut want_states: Vec<f64> = old.iter().map(|x| f64::from(*x)).collect();
    for (count, slot, after) in &case.sequences {
        let first = to.len();
        to.extend(vec![NONE; count - after.len()]);
        to.extend(after);
        starts.push(to.len() as u32);
        from.push(*slot);
        for head in 0..value_heads {
            let group = value_heads / key_heads;
            let key_head = if tiled {
                head % key_heads
            } else {
                head / group
            };
            let mut state: Vec<f64> = match *slot {
                NONE => vec![0.0; key_size * value_size],
                slot => {
                    let at = slot as usize * of_state + head * key_size * value_size;
                    let part = &old[at..at + key_size * value_size];
                    part.iter().map(|x| f64::from(*x)).collect()
                }
            };
            for row in first..to.len() {
                let unit = |part: usize| -> Vec<f64> {
                    let at = row * wide + part * keys + key_head * key_size;
                    let x: Vec<f64> = packed[at..at + key_size]
                        .iter()
                        .map(|x| x.to_f64())
                        .collect();
                    let squares: f64 = x.iter().map(|x| x * x).sum();
                    let length = (squares + f64::from(EPSILON)).sqrt();
                    x.iter().map(|x| x / length).collect()
                };
                let (query, key) = (unit(0), unit(1));
                let at = row * value_heads + head;
                let log_decay =
                    f64::from(rate[head]) * softplus(a[at].to_f64() + f64::from(bias[head]));
                let learning = 1.0 / (1.0 + (-b[at].to_f64()).exp());
                state.iter_mut().for_each(|s| *s *= log_decay.exp());
                for column in 0..value_size {
                    let value = packed[row * wide + 2 * keys + head * value_size + column].to_f64();
                    let lines = || (0..key_size).map(|i| i * value_size + column);
                    let found: f64 = lines().zip(&key).map(|(at, k)| state[at] * k).sum();
                    for (at, k) in lines().zip(&key) {
                        state[at] += k * learning * (value - found);
                    }
                    let sum: f64 = lines().zip(&query).map(|(at, q)| state[at] * q).sum();
                    let result = sum / (key_size as f64).sqrt();
                    want[(row * value_heads + head) * value_size + column] =
                        T::from_f32(result as f32).to_f64();
                }
                if to[row] != NONE {
                    let at = to[row] as usize * of_state + head * key_size * value_size;
                    want_states[at..at + state.len()].copy_from_slice(&state);
                }
            }
        }
    }

    let x = upload(device, &packed);
    let (a, b) = (upload(device, &a), upload(device, &b));
    let (rate, bias) = (upload(device, &rate), upload(device, &bias));
    let states = upload(device, &old);
    let numbers = [
        upload(device, &starts),
        upload(device, &from),
        upload(device, &to),
    ];
    let counts = [starts.len(), from.len(), rows];
    let number = |i: usize| View::contiguous(&numbers[i], DType::U32, &counts[i..=i], &[1]);
    let (key_dims, key_strides) = ([rows, key_heads, key_size], [wide, key_size, 1]);
    let (value_dims, value_strides) = ([rows, value_heads, value_size], [wide, value_size, 1]);
    let part = |offset: usize| View {
        buffer: &x,
        dtype: T::DTYPE,
        offset,
        dims: &key_dims,
        strides: &key_strides,
    };
    let gate_dims = [rows, value_heads];
    let gate_strides = row_major(&gate_dims);
    let state_dims = [SLOTS, value_heads, key_size, value_size];
    let state_strides = row_major(&state_dims);
    let rule = DeltaRule {
        q: part(0),
        k: part(keys),
        v: View {
            dims: &value_dims,
            strides: &value_strides,
            ..part(2 * keys)
        },
        a: View::contiguous(&a, T::DTYPE, &gate_dims, &gate_strides),
        b: View::contiguous(&b, T::DTYPE, &gate_dims, &gate_strides),
        rate: View::contiguous(&rate, DType::F32, &gate_dims[1..], &[1]),
        bias: View::contiguous(&bias, DType::F32, &gate_dims[1..], &[1]),
        tiled,
        epsilon: EPSILON,
    };
    let longest = case.sequences.iter().map(|s| s.0).max().unwrap();
    let sequences = Sequences {
        starts: number(0),
        from: number(1),
        to: number(2),
        longest: longest.max(case.longest),
    };
    let state = View::contiguous(&states, DType::F32, &state_dims, &state_strides);
    let out = delta_rule(device, &rule, &state, &sequences).unwrap();
    let what = format!("{} {case:?}", T::DTYPE);
    assert_close(&download::<T>(device, &out), &want, NMSE_LIMIT, &what);
    let got: Vec<f32> = download(device, &states);
    assert_close(&got, &want_states, NMSE_LIMIT, &format!("states, {what}"));
    for slot in (0..SLOTS).filter(|slot| !to.contains(&(*slot as u32))) {
        let slot = slot * of_state..(slot + 1) * of_state;
        assert_exact(
            &got[slot.clone()],
            &old[slot],
            &format!("slots that are only read, {what}"),
        );
    }
}

/// Begin with nothing, go on in their slot, go on from a slot that stays, keep several states, keep none, have no rows.
fn short() -> Vec<Rows> {
    vec![
        (1, NONE, vec![3]),
        (9, 0, vec![0]),
        (5, 6, vec![4, 5, 8]),
        (3, 6, vec![9]),
        (2, NONE, vec![]),
        (0, 7, vec![]),
        (1, 1, vec![1]),
    ]
}

fn long() -> Vec<Rows> {
    let mut sequences = short();
    sequences.extend([(133, 2, vec![2]), (64, NONE, vec![10, 11])]);
    sequences
}

#[test]
fn rows_one_by_one() {
    let device = device();
    for case in [
        case([2, 4, 16, 32], false, short()),
        case([2, 4, 24, 40], true, short()),
        case([1, 2, 128, 128], false, short()),
        case([1, 1, 200, 64], false, short()),
    ] {
        check::<f32>(&device, &case);
        if case.key_size == 24 {
            check::<f16>(&device, &case);
            check::<bf16>(&device, &case);
        }
    }
}

#[test]
fn rows_in_chunks() {
    let device = device();
    for case in [
        case([1, 2, 16, 32], false, long()),
        case([2, 4, 24, 40], true, long()),
        case([1, 1, 128, 32], false, long()),
        case([1, 1, 200, 16], false, long()),
    ] {
        check::<f32>(&device, &case);
        if case.key_size == 16 {
            check::<f16>(&device, &case);
            check::<bf16>(&device, &case);
        }
    }
    // Beside a longer sequence, short ones come in chunks, too.
    let case = Case {
        longest: 70,
        ..case([2, 2, 40, 8], false, short())
    };
    check::<f32>(&device, &case);
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = device();
    let buffer = device.upload(&vec![0; 1 << 16]).unwrap();
    let attempt = |key_size: usize, value_heads: usize, slots: usize| {
        let (key_dims, value_dims) = ([2, 2, key_size], [2, value_heads, 4]);
        let (key_strides, value_strides) = (row_major(&key_dims), row_major(&value_dims));
        let gate_dims = [2, value_heads];
        let gate_strides = row_major(&gate_dims);
        let state_dims = [slots, value_heads, key_size, 4];
        let state_strides = row_major(&state_dims);
        let floats = |dims, strides| View::contiguous(&buffer, DType::F32, dims, strides);
        let numbers = |dims| View::contiguous(&buffer, DType::U32, dims, &[1]);
        let rule = DeltaRule {
            q: floats(&key_dims, &key_strides),
            k: floats(&key_dims, &key_strides),
            v: floats(&value_dims, &value_strides),
            a: floats(&gate_dims, &gate_strides),
            b: floats(&gate_dims, &gate_strides),
            rate: floats(&gate_dims[1..], &[1]),
            bias: floats(&gate_dims[1..], &[1]),
            tiled: false,
            epsilon: EPSILON,
        };
        let sequences = Sequences {
            starts: numbers(&[2]),
            from: numbers(&[1]),
            to: numbers(&[2]),
            longest: 2,
        };
        let states = floats(&state_dims, &state_strides);
        delta_rule(&device, &rule, &states, &sequences).map(|out| out.len())
    };
    assert_eq!(attempt(8, 4, 1).unwrap(), 128);
    for (key_size, value_heads, slots) in [(257, 4, 1), (8, 3, 1), (8, 4, 1 << 20)] {
        let error = attempt(key_size, value_heads, slots)
            .unwrap_err()
            .to_string();
        assert!(error.contains("delta-rule"), "{error}");
    }
}
