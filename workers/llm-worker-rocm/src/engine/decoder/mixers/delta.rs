//! The gated delta net of Qwen3-Next and Qwen 3.5 ("Gated Delta Networks", Yang, Kautz and Hatamizadeh, arXiv
//! 2412.06464).

use super::convolution::Convolution;
use super::device::{states_of, with_view, Sequences};
use super::{host, Recurrent};
use crate::engine::decoder::config::DeltaSizes;
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::{LayerMemory, StateBatch, StatePart};
use crate::engine::decoder::norm::Norm;
use candle_core::rocm_backend::candle_rocm::ops::delta_rule;
use candle_core::rocm_backend::candle_rocm::View;
use candle_core::{Result, Tensor};
use candle_nn::{fused, Activation};
use rayon::prelude::*;

/// What is given for a head of a sequence, and the states that are kept, by slot.
type Done = (Vec<f32>, Vec<(usize, Vec<f32>)>);

/// Added to the squared lengths of keys and queries, as transformers does.
const EPSILON: f32 = 1e-6;

/// A convolution of queries, keys and values, the gated delta rule, and a gated norm of each head.
pub(in crate::engine::decoder) struct GatedDelta {
    /// Queries, keys and values behind each other.
    pub mixed: Linear,
    /// What the norm is gated by.
    pub gates: Linear,
    /// What rates of learning are the sigmoid of, and what decays are made of.
    pub learning: Linear,
    pub decay: Linear,
    pub convolution: Convolution,
    /// f32, of each head of values: a decay is `exp(rate log(1 + exp(a + bias)))`.
    pub rate: Tensor,
    pub bias: Tensor,
    pub norm: Norm,
    pub output: Linear,
    pub sizes: DeltaSizes,
    /// Value head h belongs to key head `h % key_heads`, not to one that it shares with its neighbours.
    pub tiled: bool,
}

/// What the rule works on: queries and keys of all key heads, values of all value heads behind each other in rows that may
/// lie apart, and `(rows, value_heads)`.
struct Operands {
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    learning: Tensor,
}

impl Recurrent for GatedDelta {
    fn state(&self) -> Vec<StatePart> {
        let s = &self.sizes;
        let state = StatePart::f32([s.value_heads, s.key_size, s.value_size]);
        vec![self.convolution.state(), state]
    }

    fn takes_quantized(&self) -> bool {
        let all = [&self.mixed, &self.gates, &self.learning, &self.decay];
        all.iter().all(|linear| linear.takes_quantized())
    }

    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let s = &self.sizes;
        let all = [&self.mixed, &self.gates, &self.learning, &self.decay];
        let [mixed, gates, learning, decay] = Linear::forward_each(all, x)?;
        let mixed = self
            .convolution
            .forward(&mixed, None, &memory.state[0], states)?;
        let rows = mixed.dim(0)?;
        let operands = Operands {
            query: mixed.narrow(1, 0, s.keys())?,
            key: mixed.narrow(1, s.keys(), s.keys())?,
            value: mixed.narrow(1, 2 * s.keys(), s.values())?,
            decay,
            learning,
        };
        let mixed = match mixed.device().is_rocm() {
            true => self.on_device(&operands, &memory.state[1], states)?,
            false => self.on_host(&operands, &memory.state[1], states)?,
        };
        let heads = (rows * s.value_heads, s.value_size);
        let normed = self.norm.forward(&mixed.reshape(heads)?)?;
        let gated = fused::gate_mul(Activation::Silu, &gates.reshape(heads)?, &normed)?;
        let gated = gated.reshape((rows, s.values()))?;
        self.output.forward(&gated.into())
    }
}

impl GatedDelta {
    fn on_device(&self, o: &Operands, state: &Tensor, states: &StateBatch) -> Result<Tensor> {
        const OP: &str = "gated delta rule";
        let s = &self.sizes;
        let rows = o.query.dim(0)?;
        let (keys, values) = (
            [rows, s.key_heads, s.key_size],
            [rows, s.value_heads, s.value_size],
        );
        // Heads of rows that lie apart, without copies.
        let strides = |x: &Tensor, size: usize| [x.stride()[0], size, 1];
        let key_strides = [&o.query, &o.key].map(|x| strides(x, s.key_size));
        let value_strides = strides(&o.value, s.value_size);
        with_view!(query = &o.query, OP);
        with_view!(key = &o.key, OP);
        with_view!(value = &o.value, OP);
        with_view!(a = &o.decay, OP);
        with_view!(b = &o.learning, OP);
        with_view!(rate = &self.rate, OP);
        with_view!(bias = &self.bias, OP);
        states_of!(sequences = states, OP);
        with_view!(slots = state, OP);
        let rule = delta_rule::DeltaRule {
            q: View {
                dims: &keys,
                strides: &key_strides[0],
                ..query
            },
            k: View {
                dims: &keys,
                strides: &key_strides[1],
                ..key
            },
            v: View {
                dims: &values,
                strides: &value_strides,
                ..value
            },
            a,
            b,
            rate,
            bias,
            tiled: self.tiled,
            epsilon: EPSILON,
        };
        let out = delta_rule::delta_rule(rule.q.buffer.device(), &rule, &slots, &sequences)?;
        super::device::tensor(&o.value, out, o.value.shape().clone())
    }

    /// Row by row, a thread for each head of each sequence.
    fn on_host(&self, o: &Operands, state: &Tensor, states: &StateBatch) -> Result<Tensor> {
        let s = &self.sizes;
        let [query, key, value] = [&o.query, &o.key, &o.value].map(host::floats);
        let (query, key, value) = (query?, key?, value?);
        let [decay, learning, rate, bias] =
            [&o.decay, &o.learning, &self.rate, &self.bias].map(host::floats);
        let (decay, learning, rate, bias) = (decay?, learning?, rate?, bias?);
        let (heads, size) = (s.value_heads, s.key_size * s.value_size);
        let sequences = host::sequences(states)?;
        let mut out = vec![0f32; value.len()];
        host::with_states(state, |slots| {
            let tasks: Vec<(usize, usize)> = (0..sequences.len())
                .flat_map(|sequence| (0..heads).map(move |head| (sequence, head)))
                .collect();
            let old = &*slots;
            let done: Vec<Done> = tasks
                .par_iter()
                .map(|(sequence, head)| {
                    let (sequence, head) = (&sequences[*sequence], *head);
                    let place = |slot: usize| (slot * heads + head) * size;
                    let mut state = match sequence.from {
                        Some(slot) => old[place(slot)..place(slot) + size].to_vec(),
                        None => vec![0.0; size],
                    };
                    let mut kept = sequence.kept().peekable();
                    let (mut out, mut states) = (Vec::new(), Vec::new());
                    let key_head = match self.tiled {
                        true => head % s.key_heads,
                        false => head / (heads / s.key_heads),
                    };
                    for row in sequence.rows.clone() {
                        let of_key = (row * s.key_heads + key_head) * s.key_size;
                        let of_key = of_key..of_key + s.key_size;
                        let at = row * heads + head;
                        let step = Step {
                            query: &query[of_key.clone()],
                            key: &key[of_key],
                            value: &value[at * s.value_size..(at + 1) * s.value_size],
                            decay: (rate[head] * softplus(decay[at] + bias[head])).exp(),
                            learning: 1.0 / (1.0 + (-learning[at]).exp()),
                        };
                        out.extend(step.of(&mut state));
                        if let Some((_, slot)) = kept.next_if(|(kept, _)| *kept == row) {
                            states.push((place(slot), state.clone()));
                        }
                    }
                    (out, states)
                })
                .collect();
            for ((sequence, head), (rows, states)) in tasks.into_iter().zip(done) {
                let first = sequences[sequence].rows.start;
                for (i, row) in rows.chunks_exact(s.value_size).enumerate() {
                    let at = ((first + i) * heads + head) * s.value_size;
                    out[at..at + s.value_size].copy_from_slice(row);
                }
                for (place, state) in states {
                    slots[place..place + size].copy_from_slice(&state);
                }
            }
            Ok(())
        })?;
        Tensor::from_vec(out, o.value.shape().clone(), o.value.device())
    }
}

fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// One row of one head.
struct Step<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    learning: f32,
}

impl Step<'_> {
    /// Changes the state, `(key_size, value_size)`, and gives what the query finds there then.
    fn of(&self, state: &mut [f32]) -> Vec<f32> {
        let columns = self.value.len();
        let inverse = |x: &[f32]| 1.0 / (x.iter().map(|x| x * x).sum::<f32>() + EPSILON).sqrt();
        let key_scale = inverse(self.key);
        let query_scale = inverse(self.query) / (self.query.len() as f32).sqrt();
        let mut found = vec![0f32; columns];
        for (line, key) in state.chunks_exact_mut(columns).zip(self.key) {
            let key = key * key_scale;
            for (found, s) in found.iter_mut().zip(line) {
                *s *= self.decay;
                *found += *s * key;
            }
        }
        let mut change = found;
        for (found, value) in change.iter_mut().zip(self.value) {
            *found = self.learning * (value - *found);
        }
        let mut out = vec![0f32; columns];
        let lines = state.chunks_exact_mut(columns);
        for ((line, key), query) in lines.zip(self.key).zip(self.query) {
            let (key, query) = (key * key_scale, query * query_scale);
            for ((s, change), out) in line.iter_mut().zip(&change).zip(&mut out) {
                *s += key * change;
                *out += *s * query;
            }
        }
        out
    }
}
