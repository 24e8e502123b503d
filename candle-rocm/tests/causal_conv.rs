//! Causal convolutions with states against plain loops in f64.

mod common;

use candle_rocm::ops::causal_conv::{causal_conv, CausalConv};
use candle_rocm::ops::Sequences;
use candle_rocm::{DType, Device, View};
use common::*;
use half::{bf16, f16};

const NONE: u32 = u32::MAX;

/// Sequences behind each other: rows of each, slots that they begin with, and slots of the states behind rows.
struct Batch {
    starts: Vec<u32>,
    from: Vec<u32>,
    to: Vec<u32>,
    slots: usize,
}

/// Sequences that begin with nothing, go on in their slot, go on from a slot that stays, keep the states behind several
/// rows, keep none, and have no rows.
fn batch() -> Batch {
    let rows = [1usize, 40, 5, 3, 2, 0, 1, 17];
    let from = [NONE, 0, 6, 6, NONE, 7, 1, 2];
    let mut batch = Batch {
        starts: vec![0],
        from: from.to_vec(),
        to: Vec::new(),
        slots: 12,
    };
    let after: [&[u32]; 8] = [&[3], &[0], &[4, 5, 8], &[9], &[], &[], &[1], &[10, 2]];
    for (rows, after) in rows.iter().zip(after) {
        batch.to.extend(vec![NONE; rows - after.len()]);
        batch.to.extend(after);
        batch.starts.push(batch.to.len() as u32);
    }
    // One in the middle of a sequence, too.
    batch.to[20] = 11;
    batch
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kernel: usize,
    channels: usize,
    bias: bool,
    silu: bool,
    gates: bool,
}

fn check<T: Element>(device: &Device, case: Case) {
    let Case {
        kernel, channels, ..
    } = case;
    let batch = batch();
    let rows = batch.to.len();
    let mut rng = Rng::new(kernel as u64);
    // Rows of a wider matrix.
    let wide = 3 * channels + 1;
    let packed: Vec<T> = rng.vec(rows * wide, -1.5, 2.0);
    let weight: Vec<f32> = rng.vec(kernel * channels, -1.0, 1.0);
    let bias: Vec<f32> = rng.vec(channels, -1.0, 1.0);
    let old: Vec<f32> = rng.vec(batch.slots * (kernel - 1) * channels, -1.0, 2.0);
    let element = |part: usize, row: usize, channel: usize| {
        packed[row * wide + part * channels + channel].to_f64()
    };
    let input = |row: usize, channel: usize| {
        let gate = if case.gates {
            element(1, row, channel)
        } else {
            1.0
        };
        element(0, row, channel) * gate
    };
    let mut want = vec![0.0; rows * channels];
    let mut want_states: Vec<f64> = old.iter().map(|x| f64::from(*x)).collect();
    let place = |slot: u32, i: usize, channel: usize| {
        (slot as usize * (kernel - 1) + i) * channels + channel
    };
    for (sequence, &from) in batch.from.iter().enumerate() {
        let first = batch.starts[sequence] as usize;
        let end = batch.starts[sequence + 1] as usize;
        for channel in 0..channels {
            let before = (0..kernel - 1).map(|i| match from {
                NONE => 0.0,
                slot => f64::from(old[place(slot, i, channel)]),
            });
            let line: Vec<f64> = before
                .chain((first..end).map(|row| input(row, channel)))
                .collect();
            for row in first..end {
                let window = &line[row - first..row - first + kernel];
                let factors = (0..kernel).map(|i| f64::from(weight[i * channels + channel]));
                let mut sum: f64 = window.iter().zip(factors).map(|(x, w)| x * w).sum();
                if case.bias {
                    sum += f64::from(bias[channel]);
                }
                if case.silu {
                    sum /= 1.0 + (-sum).exp();
                }
                if case.gates {
                    sum *= element(2, row, channel);
                }
                want[row * channels + channel] = T::from_f32(sum as f32).to_f64();
                if batch.to[row] != NONE {
                    for (i, x) in window[1..].iter().enumerate() {
                        want_states[place(batch.to[row], i, channel)] = *x;
                    }
                }
            }
        }
    }
    let x = upload(device, &packed);
    let weight = upload(device, &weight);
    let bias = upload(device, &bias);
    let states = upload(device, &old);
    let (starts, from) = (upload(device, &batch.starts), upload(device, &batch.from));
    let to = upload(device, &batch.to);
    let (dims, strides) = ([rows, channels], [wide, 1]);
    let part = |part: usize| View {
        buffer: &x,
        dtype: T::DTYPE,
        offset: part * channels,
        dims: &dims,
        strides: &strides,
    };
    let weight_dims = [kernel, channels];
    let weight_strides = row_major(&weight_dims);
    let state_dims = [batch.slots, kernel - 1, channels];
    let state_strides = row_major(&state_dims);
    let counts = [batch.starts.len(), batch.from.len(), rows];
    let numbers = |buffer, i: usize| View::contiguous(buffer, DType::U32, &counts[i..=i], &[1]);
    let conv = CausalConv {
        x: part(0),
        before: case.gates.then(|| part(1)),
        after: case.gates.then(|| part(2)),
        weight: View::contiguous(&weight, DType::F32, &weight_dims, &weight_strides),
        bias: case
            .bias
            .then(|| View::contiguous(&bias, DType::F32, &dims[1..], &[1])),
        silu: case.silu,
    };
    let sequences = Sequences {
        starts: numbers(&starts, 0),
        from: numbers(&from, 1),
        to: numbers(&to, 2),
        longest: 40,
    };
    let state = View::contiguous(&states, DType::F32, &state_dims, &state_strides);
    let out = causal_conv(device, &conv, &state, &sequences).unwrap();
    let what = format!("{} {case:?}", T::DTYPE);
    assert_close(&download::<T>(device, &out), &want, NMSE_LIMIT, &what);
    let got: Vec<f32> = download(device, &states);
    assert_close(&got, &want_states, NMSE_LIMIT, &format!("states, {what}"));
    let kept = [6, 7].map(|slot| place(slot, 0, 0)..place(slot + 1, 0, 0));
    for slot in kept {
        assert_exact(
            &got[slot.clone()],
            &old[slot],
            &format!("slots that are only read, {what}"),
        );
    }
}

#[test]
fn kernels_gates_and_dtypes() {
    let device = device();
    for kernel in 2..=8 {
        let case = Case {
            kernel,
            channels: [7, 300, 64][kernel % 3],
            bias: kernel % 2 == 0,
            silu: kernel % 4 < 2,
            gates: kernel % 3 == 0,
        };
        check::<f32>(&device, case);
        if kernel % 2 == 1 {
            check::<f16>(&device, case);
            check::<bf16>(&device, case);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = device();
    let buffer = device.upload(&[0; 4096]).unwrap();
    let attempt = |kernel: usize, state: usize, rows: usize| {
        let dims = [[4, 8], [kernel, 8]];
        let strides = [8, 1];
        let state_dims = [2, state, 8];
        let counts = [3, 2, rows];
        let numbers = |i: usize| View::contiguous(&buffer, DType::U32, &counts[i..=i], &[1]);
        let conv = CausalConv {
            x: View::contiguous(&buffer, DType::F32, &dims[0], &strides),
            before: None,
            after: None,
            weight: View::contiguous(&buffer, DType::F32, &dims[1], &strides),
            bias: None,
            silu: false,
        };
        let sequences = Sequences {
            starts: numbers(0),
            from: numbers(1),
            to: numbers(2),
            longest: 4,
        };
        let state_strides = row_major(&state_dims);
        let states = View::contiguous(&buffer, DType::F32, &state_dims, &state_strides);
        causal_conv(&device, &conv, &states, &sequences).map(|out| out.len())
    };
    assert_eq!(attempt(4, 3, 4).unwrap(), 128);
    for (kernel, state, rows) in [(9, 8, 4), (1, 0, 4), (4, 4, 4), (4, 3, 5)] {
        let error = attempt(kernel, state, rows).unwrap_err().to_string();
        assert!(error.contains("causal-conv"), "{error}");
    }
}
