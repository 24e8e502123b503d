//! Recurrences over states: two sequences, one of which goes on from a slot, with states kept on the way.

use super::{split_dtype, unknown};
use crate::ops::state_space::{gated_recurrence, selective_scan, wkv7, Gated, Selective, Wkv7};
use crate::ops::Sequences;
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, difference, read, spoil_memory, Numbers, Tensor};
use crate::{Buffer, DType, DeclaredKernel, Device, Result};

/// Rows of the two sequences, and slots.
const STARTS: [usize; 3] = [0, 5, 8];
const ROWS: usize = STARTS[2];
const SLOTS: usize = 3;
const FROM: [u32; 2] = [NO_SLOT, 1];
/// In place of a slot.
const NO_SLOT: u32 = u32::MAX;
/// The state behind the first sequence's third row is kept, too; the second's ends where it began.
const TO: [u32; ROWS] = [NO_SLOT, NO_SLOT, 2, NO_SLOT, 0, NO_SLOT, NO_SLOT, 1];

fn softplus(x: f64) -> f64 {
    x.exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Walks the rows: `step` changes a sequence's state and gives what belongs to the row.
fn walk(states: &mut [f64], mut step: impl FnMut(usize, bool, &mut [f64])) {
    let size = states.len() / SLOTS;
    let before = states.to_vec();
    for (sequence, from) in FROM.into_iter().enumerate() {
        let mut state = match from {
            NO_SLOT => vec![0.0; size],
            slot => before[slot as usize * size..][..size].to_vec(),
        };
        let first = STARTS[sequence];
        for row in first..STARTS[sequence + 1] {
            step(row, row == first && from == NO_SLOT, &mut state);
            if TO[row] != NO_SLOT {
                states[TO[row] as usize * size..][..size].copy_from_slice(&state);
            }
        }
    }
}

/// Runs a scan and compares what it gives and keeps.
fn compared(
    device: &Device,
    states: &Tensor,
    dtype: DType,
    (want, kept): (Vec<f64>, Vec<f64>),
    scan: impl FnOnce(&Sequences) -> Result<Buffer>,
) -> Finding {
    let numbers = |numbers: &[u32]| -> Vec<f64> { numbers.iter().map(|n| f64::from(*n)).collect() };
    let starts = Tensor::new(
        device,
        DType::U32,
        &[3],
        &numbers(&STARTS.map(|n| n as u32)),
    )?;
    let from = Tensor::new(device, DType::U32, &[2], &numbers(&FROM))?;
    let to = Tensor::new(device, DType::U32, &[ROWS], &numbers(&TO))?;
    spoil_memory(device, want.len() * dtype.size_in_bytes())?;
    let out = scan(&Sequences {
        starts: starts.view(),
        from: from.view(),
        to: to.view(),
        longest: 5,
    })?;
    if let Some(wrong) = compare(device, &out, dtype, &want)? {
        return Ok(Some(wrong));
    }
    let found = read(device, states.buffer(), DType::F32)?;
    let wrong = difference(&found, &kept, 1e-4);
    Ok(wrong.map(|wrong| format!("the states: {wrong}")))
}

pub(super) fn scan(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let parts = |prefix: &str| head.strip_prefix(prefix)?.parse::<usize>().ok();
    match head {
        "wkv7_scan" => matrices(device),
        "gated_recurrence" => gated(device, dtype),
        _ => match (
            parts("selective_scan_heads_"),
            parts("selective_scan_states_"),
        ) {
            (Some(parts), _) => selective(device, dtype, parts, false),
            (_, Some(parts)) => selective(device, dtype, parts, true),
            _ => unknown(kernel),
        },
    }
}

/// States of 16 lanes that have `parts` elements each.
fn selective(device: &Device, dtype: DType, parts: usize, by_state: bool) -> Finding {
    let width = 16 * parts;
    let (heads, size, groups) = match by_state {
        true => (12, 1, 1),
        false => (4, 12, 2),
    };
    let mut numbers = Numbers::new(parts as u64);
    let mut random = |dtype, dims: &[usize], (low, high): (f64, f64)| {
        let values = numbers.vec(dims.iter().product(), low, high);
        Tensor::new(device, dtype, dims, &values)
    };
    let x = random(dtype, &[ROWS, heads, size], (-2.0, 2.0))?;
    let dt = random(dtype, &[ROWS, heads], (-3.0, 2.0))?;
    let b = random(dtype, &[ROWS, groups, width], (-1.0, 1.0))?;
    let c = random(dtype, &[ROWS, groups, width], (-1.0, 1.5))?;
    let rates: &[usize] = if by_state { &[heads, width] } else { &[heads] };
    let a = random(DType::F32, rates, (-2.0, -0.1))?;
    let d = random(DType::F32, &[heads], (-1.0, 1.0))?;
    let bias = random(DType::F32, &[heads], (-0.5, 0.6))?;
    let states = random(DType::F32, &[SLOTS, heads, size, width], (-1.0, 1.0))?;
    let limits = (0.1, 1.5);
    let (mut want, mut kept) = (vec![0.0; x.values.len()], states.values.clone());
    walk(&mut kept, |row, _, state| {
        for channel in 0..heads * size {
            let head = channel / size;
            let step = softplus(dt.values[row * heads + head] + bias.values[head]);
            let step = step.clamp(limits.0.into(), limits.1.into());
            let value = x.values[row * heads * size + channel];
            let shared = (row * groups + head / (heads / groups)) * width;
            let mut sum = d.values[head] * value;
            for n in 0..width {
                let rate = a.values[if by_state { head * width + n } else { head }];
                let element = &mut state[channel * width + n];
                *element = (step * rate).exp() * *element + step * value * b.values[shared + n];
                sum += *element * c.values[shared + n];
            }
            want[row * heads * size + channel] = sum;
        }
    });
    let scan = Selective {
        x: x.view(),
        dt: dt.view(),
        b: b.view(),
        c: c.view(),
        a: a.view(),
        d: d.view(),
        dt_bias: Some(bias.view()),
        limits: (limits.0, limits.1),
    };
    compared(device, &states, dtype, (want, kept), |sequences| {
        selective_scan(device, &scan, &states.view(), sequences)
    })
}

fn matrices(device: &Device) -> Finding {
    let (heads, size) = (3, 64);
    let dims = [ROWS, heads, size];
    let mut numbers = Numbers::new(7);
    let mut random = |(low, high): (f64, f64)| {
        let values = numbers.vec(dims.iter().product(), low, high);
        Tensor::new(device, DType::F32, &dims, &values)
    };
    let (r, w, k) = (
        random((-1.0, 1.0))?,
        random((0.5, 1.0))?,
        random((-0.5, 1.0))?,
    );
    let (v, a, b) = (
        random((-1.0, 0.5))?,
        random((-0.2, 0.1))?,
        random((-0.1, 0.2))?,
    );
    let states = Tensor::random(device, DType::F32, &[SLOTS, heads, size, size], (-1.0, 1.0))?;
    let (mut want, mut kept) = (vec![0.0; ROWS * heads * size], states.values.clone());
    walk(&mut kept, |row, _, state| {
        for line in 0..heads * size {
            let first = (row * heads + line / size) * size;
            let of = |tensor: &Tensor, n: usize| tensor.values[first + n];
            let state = &mut state[line * size..][..size];
            let dot: f64 = (0..size).map(|n| state[n] * of(&a, n)).sum();
            let value = v.values[row * heads * size + line];
            for (n, element) in state.iter_mut().enumerate() {
                *element = *element * of(&w, n) + dot * of(&b, n) + value * of(&k, n);
            }
            want[row * heads * size + line] = (0..size).map(|n| state[n] * of(&r, n)).sum();
        }
    });
    let scan = Wkv7 {
        r: r.view(),
        w: w.view(),
        k: k.view(),
        v: v.view(),
        a: a.view(),
        b: b.view(),
    };
    compared(device, &states, DType::F32, (want, kept), |sequences| {
        wkv7(device, &scan, &states.view(), sequences)
    })
}

fn gated(device: &Device, dtype: DType) -> Finding {
    let channels = 77;
    let mut numbers = Numbers::new(9);
    let mut random = |(low, high): (f64, f64)| {
        let values = numbers.vec(ROWS * channels, low, high);
        Tensor::new(device, dtype, &[ROWS, channels], &values)
    };
    let (x, input, recurrent) = (
        random((-2.0, 2.0))?,
        random((-2.0, 1.0))?,
        random((-1.0, 2.0))?,
    );
    let rates = Tensor::random(device, DType::F32, &[channels], (0.01, 0.5))?;
    let states = Tensor::random(device, DType::F32, &[SLOTS, channels], (-1.0, 1.0))?;
    let (mut want, mut kept) = (vec![0.0; ROWS * channels], states.values.clone());
    walk(&mut kept, |row, begins, state| {
        for (channel, element) in state.iter_mut().enumerate() {
            let at = row * channels + channel;
            let decay = (-8.0 * sigmoid(recurrent.values[at]) * rates.values[channel]).exp();
            let root = if begins {
                1.0
            } else {
                (1.0 - decay * decay).sqrt()
            };
            *element = decay * *element + x.values[at] * sigmoid(input.values[at]) * root;
            want[at] = *element;
        }
    });
    let scan = Gated {
        x: x.view(),
        input_gate: input.view(),
        recurrent_gate: recurrent.view(),
        rates: rates.view(),
    };
    compared(device, &states, dtype, (want, kept), |sequences| {
        gated_recurrence(device, &scan, &states.view(), sequences)
    })
}
