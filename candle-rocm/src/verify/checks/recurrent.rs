//! Recurrences along sequences with states: a sequence that begins, and one that goes on in its slot.

use super::{split_dtype, unknown};
use crate::ops::causal_conv::{causal_conv, CausalConv};
use crate::ops::delta_rule::{delta_rule, DeltaRule};
use crate::ops::Sequences;
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, spoil_memory, Tensor};
use crate::{DType, DeclaredKernel, Device, Result};

/// Slots of states; the first sequence begins and leaves its state in slot 1, the second has slot 0.
const SLOTS: usize = 2;

/// The numbers of two sequences of so many rows.
struct Numbers {
    starts: Tensor,
    from: Tensor,
    to: Tensor,
    rows: [usize; 2],
}

impl Numbers {
    fn new(device: &Device, rows: [usize; 2]) -> Result<Self> {
        let none = f64::from(u32::MAX);
        let all = rows[0] + rows[1];
        let mut to = vec![none; all];
        (to[rows[0] - 1], to[all - 1]) = (1.0, 0.0);
        let words = |values: &[f64]| Tensor::new(device, DType::U32, &[values.len()], values);
        Ok(Numbers {
            starts: words(&[0.0, rows[0] as f64, all as f64])?,
            from: words(&[none, 0.0])?,
            to: words(&to)?,
            rows,
        })
    }

    fn sequences(&self) -> Sequences<'_> {
        Sequences {
            starts: self.starts.view(),
            from: self.from.view(),
            to: self.to.view(),
            longest: self.rows[0].max(self.rows[1]),
        }
    }

    /// First row, rows, the old state of slot 0 or zeros, and the new state's slot of each sequence.
    fn each(&self, old: &[f64]) -> [(usize, usize, Vec<f64>, usize); 2] {
        let state = &old[..old.len() / SLOTS];
        let [first, second] = self.rows;
        [
            (0, first, vec![0.0; state.len()], 1),
            (first, second, state.to_vec(), 0),
        ]
    }
}

/// Compares results and states.
fn compare_both(
    device: &Device,
    (out, dtype, want): (&crate::Buffer, DType, &[f64]),
    (states, want_states): (&Tensor, &[f64]),
) -> Finding {
    if let Some(wrong) = compare(device, out, dtype, want)? {
        return Ok(Some(wrong));
    }
    let wrong = compare(device, states.buffer(), DType::F32, want_states)?;
    Ok(wrong.map(|wrong| format!("the states: {wrong}")))
}

pub(super) fn convolution(device: &Device, kernel: &DeclaredKernel) -> Finding {
    const CHANNELS: usize = 300;
    const KERNEL: usize = 4;
    let Some((_, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let numbers = Numbers::new(device, [2, 37])?;
    let rows = 39;
    let x = Tensor::random(device, dtype, &[rows, CHANNELS], (-1.0, 2.0))?;
    let weight = Tensor::random(device, DType::F32, &[KERNEL, CHANNELS], (-1.0, 1.0))?;
    let bias = Tensor::random(device, DType::F32, &[CHANNELS], (-1.0, 1.0))?;
    let dims = [SLOTS, KERNEL - 1, CHANNELS];
    let states = Tensor::random(device, DType::F32, &dims, (-1.0, 1.0))?;
    spoil_memory(device, rows * CHANNELS * dtype.size_in_bytes())?;
    let conv = CausalConv {
        x: x.view(),
        before: None,
        after: None,
        weight: weight.view(),
        bias: Some(bias.view()),
        silu: true,
    };
    let out = causal_conv(device, &conv, &states.view(), &numbers.sequences())?;
    let mut want = Vec::new();
    let mut want_states = states.values.clone();
    for (first, count, mut line, slot) in numbers.each(&states.values) {
        line.extend(&x.values[first * CHANNELS..(first + count) * CHANNELS]);
        for row in 0..count {
            for channel in 0..CHANNELS {
                let terms = (0..KERNEL).map(|i| {
                    line[(row + i) * CHANNELS + channel] * weight.values[i * CHANNELS + channel]
                });
                let sum = terms.sum::<f64>() + bias.values[channel];
                want.push(sum / (1.0 + (-sum).exp()));
            }
        }
        let size = (KERNEL - 1) * CHANNELS;
        want_states[slot * size..(slot + 1) * size].copy_from_slice(&line[line.len() - size..]);
    }
    compare_both(device, (&out, dtype, &want), (&states, &want_states))
}

pub(super) fn delta(device: &Device, kernel: &DeclaredKernel) -> Finding {
    const HEADS: usize = 2;
    const VALUE: usize = 40;
    const EPSILON: f64 = 1e-6;
    let Some((head, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let key = if head.ends_with("_32") || head.ends_with("_256") {
        200
    } else {
        24
    };
    let counts = if head.contains("_step_") {
        [2, 7]
    } else {
        [3, 70]
    };
    let numbers = Numbers::new(device, counts)?;
    let rows = counts[0] + counts[1];
    let floats = |dims: &[usize], range| Tensor::random(device, dtype, dims, range);
    let q = floats(&[rows, 1, key], (-1.0, 1.0))?;
    let k = floats(&[rows, 1, key], (-0.9, 1.1))?;
    let v = floats(&[rows, HEADS, VALUE], (-1.0, 1.0))?;
    let a = floats(&[rows, HEADS], (-2.0, 2.0))?;
    let b = floats(&[rows, HEADS], (-1.0, 2.0))?;
    let rate = Tensor::random(device, DType::F32, &[HEADS], (-1.0, -0.1))?;
    let bias = Tensor::random(device, DType::F32, &[HEADS], (-1.0, 1.0))?;
    let dims = [SLOTS, HEADS, key, VALUE];
    let states = Tensor::random(device, DType::F32, &dims, (-0.5, 0.5))?;
    spoil_memory(device, rows * HEADS * VALUE * dtype.size_in_bytes())?;
    let rule = DeltaRule {
        q: q.view(),
        k: k.view(),
        v: v.view(),
        a: a.view(),
        b: b.view(),
        rate: rate.view(),
        bias: bias.view(),
        tiled: false,
        epsilon: EPSILON as f32,
    };
    let out = delta_rule(device, &rule, &states.view(), &numbers.sequences())?;
    let mut want = vec![0.0; rows * HEADS * VALUE];
    let mut want_states = states.values.clone();
    for (first, count, mut state, slot) in numbers.each(&states.values) {
        for row in first..first + count {
            let unit = |x: &Tensor| -> Vec<f64> {
                let x = &x.values[row * key..(row + 1) * key];
                let length = (x.iter().map(|x| x * x).sum::<f64>() + EPSILON).sqrt();
                x.iter().map(|x| x / length).collect()
            };
            let (q, k) = (unit(&q), unit(&k));
            for head in 0..HEADS {
                let at = row * HEADS + head;
                let soft = (1.0 + (a.values[at] + bias.values[head]).exp()).ln();
                let decay = (rate.values[head] * soft).exp();
                let learning = 1.0 / (1.0 + (-b.values[at]).exp());
                let state = &mut state[head * key * VALUE..(head + 1) * key * VALUE];
                state.iter_mut().for_each(|s| *s *= decay);
                for column in 0..VALUE {
                    let lines = || (0..key).map(|i| i * VALUE + column);
                    let found: f64 = lines().zip(&k).map(|(at, k)| state[at] * k).sum();
                    let change = learning * (v.values[at * VALUE + column] - found);
                    for (at, k) in lines().zip(&k) {
                        state[at] += k * change;
                    }
                    let sum: f64 = lines().zip(&q).map(|(at, q)| state[at] * q).sum();
                    want[at * VALUE + column] = sum / (key as f64).sqrt();
                }
            }
        }
        let size = state.len();
        want_states[slot * size..(slot + 1) * size].copy_from_slice(&state);
    }
    compare_both(device, (&out, dtype, &want), (&states, &want_states))
}
