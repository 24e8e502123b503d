//! RWKV 7 (arXiv 2503.14456): a block's two parts, each of which also sees the row before its own.

use super::host::floats;
use super::walk::{walk, Row};
use super::{rocm, Convolution, Recurrent};
use crate::engine::decoder::input::Input;
use crate::engine::decoder::linear::Linear;
use crate::engine::decoder::memory::{LayerMemory, StateBatch, StatePart};
use crate::engine::decoder::norm::Norm;
use candle_core::{bail, DType, Device, Result, Tensor, D};
use candle_nn::ops;
use std::sync::{Arc, Mutex};

/// The exponent of the fastest decay: `e^-0.5`.
const FASTEST: f64 = -0.606_530_659_712_633_4;
/// Added to the square of what normalised keys are divided by.
const LEAST_SQUARE: f64 = 1e-24;

/// Values of the first block in this pass, which the others mix into their own.
pub(in crate::engine::decoder) type FirstValues = Arc<Mutex<Option<Tensor>>>;

/// A whole block: what it gives is what both parts add to the stream.
pub(in crate::engine::decoder) struct Rwkv7 {
    pub norm: Norm,
    /// Gives the row before.
    pub shift: Convolution,
    /// How much of the row before comes into what makes receptance, decay, keys, values, rates and gate: `(6, width)`.
    pub lerp: Tensor,
    pub receptance: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    pub decay: LowRank,
    pub rate: LowRank,
    /// How much of the first block's values comes into this one's; none in the first block.
    pub residual: Option<LowRank>,
    pub gate: LowRank,
    /// Factors of keys, f32 `(width)`: of those that are removed, of rates, of what goes around the state.
    pub removed: Tensor,
    pub rates: Tensor,
    pub direct: Tensor,
    /// Along each head, without weights, and its weights and biases for all channels, f32.
    pub head_norm: Norm,
    pub head_weight: Tensor,
    pub head_bias: Tensor,
    pub head_size: usize,
    pub channel: Channel,
    pub values: FirstValues,
}

/// The part that takes a feed-forward part's place.
pub(in crate::engine::decoder) struct Channel {
    pub norm: Norm,
    pub shift: Convolution,
    pub lerp: Tensor,
    pub key: Linear,
    pub value: Linear,
}

/// Two matrices over few channels, and a bias, f32.
pub(in crate::engine::decoder) struct LowRank {
    pub down: Linear,
    pub up: Linear,
    pub bias: Option<Tensor>,
}

impl LowRank {
    fn forward(&self, x: &Tensor, between: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let few = between(&self.down.forward(&x.clone().into())?)?;
        let all = self.up.forward(&few.into())?.to_dtype(DType::F32)?;
        match &self.bias {
            Some(bias) => all.broadcast_add(bias),
            None => Ok(all),
        }
    }
}

fn plain(x: &Tensor) -> Result<Tensor> {
    Ok(x.clone())
}

impl Recurrent for Rwkv7 {
    fn state(&self) -> Vec<StatePart> {
        let heads = self.heads();
        vec![
            self.shift.state(),
            StatePart::f32([heads, self.head_size, self.head_size]),
            self.channel.shift.state(),
        ]
    }

    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let stream = &x.floats;
        let mixed = self.mix_tokens(stream, memory, states)?;
        let fed = self
            .channel
            .forward(&(stream + &mixed)?, &memory.state[2], states)?;
        mixed + fed
    }
}

impl Rwkv7 {
    fn heads(&self) -> usize {
        self.direct.elem_count() / self.head_size
    }

    fn mix_tokens(&self, x: &Tensor, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor> {
        let x = self.norm.forward(x)?;
        let (rows, width) = x.dims2()?;
        let (heads, size) = (self.heads(), self.head_size);
        let difference = (self.shift.forward(&x, None, &memory.state[0], states)? - &x)?;
        let mixed =
            |at: usize| -> Result<Tensor> { &x + difference.broadcast_mul(&self.lerp.get(at)?)? };
        let float = |linear: &Linear, x: Tensor| linear.forward(&x.into())?.to_dtype(DType::F32);
        let receptance = float(&self.receptance, mixed(0)?)?;
        let decay = self.decay.forward(&mixed(1)?, Tensor::tanh)?;
        let decay = (ops::sigmoid(&decay)? * FASTEST)?.exp()?;
        let key = float(&self.key, mixed(2)?)?;
        let for_value = mixed(3)?;
        let value = self.with_first_values(float(&self.value, for_value.clone())?, &for_value)?;
        let rate = ops::sigmoid(&self.rate.forward(&mixed(4)?, plain)?)?;
        let gate = self.gate.forward(&mixed(5)?, ops::sigmoid)?;

        let by_head = |x: &Tensor| x.reshape((rows, heads, size));
        let removed = by_head(&key.broadcast_mul(&self.removed)?)?;
        let square = removed.sqr()?.sum_keepdim(D::Minus1)?;
        let length = (square + LEAST_SQUARE)?.sqrt()?;
        let removed = removed.broadcast_div(&length)?;
        let scaled = key.broadcast_mul(&self.rates)?;
        let key = (key + ((&rate * &scaled)? - scaled)?)?;
        let added = (&removed * by_head(&rate)?)?;
        let [r, w, k, v] = [&receptance, &decay, &key, &value].map(by_head);
        let (r, k, v) = (r?, k?, v?);
        let y = self.scan(
            [&r, &w?, &k, &v, &removed.neg()?, &added],
            &memory.state[1],
            states,
        )?;

        let y = self.head_norm.forward(&y.reshape((rows * heads, size))?)?;
        let y = y.reshape((rows, width))?.broadcast_mul(&self.head_weight)?;
        let y = y.broadcast_add(&self.head_bias)?;
        let direct = (r * k)?.broadcast_mul(&self.direct.reshape((heads, size))?)?;
        let around = v.broadcast_mul(&direct.sum_keepdim(D::Minus1)?)?;
        let y = ((y + around.reshape((rows, width))?)? * gate)?;
        self.output.forward(&y.to_dtype(x.dtype())?.into())
    }

    /// Values with what comes of the first block's; the first block's own go to the others.
    fn with_first_values(&self, value: Tensor, x: &Tensor) -> Result<Tensor> {
        let Ok(mut first) = self.values.lock() else {
            bail!("a pass before has ended in the middle")
        };
        match (&self.residual, &*first) {
            (None, _) => {
                *first = Some(value.clone());
                Ok(value)
            }
            (Some(residual), Some(first)) => {
                let share = ops::sigmoid(&residual.forward(x, plain)?)?;
                let difference = (first - &value)?;
                value + (difference * share)?
            }
            (Some(_), None) => bail!("a block comes before the first"),
        }
    }

    /// Six tensors f32 `(rows, heads, size)`: receptance, decay, keys, values, what is removed and what is added.
    fn scan(&self, tensors: [&Tensor; 6], memory: &Tensor, batch: &StateBatch) -> Result<Tensor> {
        if let Device::Rocm(_) = memory.device() {
            return rocm::wkv7(tensors, memory, batch);
        }
        let (heads, size) = (self.heads(), self.head_size);
        let numbers = tensors
            .map(floats)
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        walk(memory, batch, heads, size, |row: Row| {
            let start = (row.row * heads + row.part) * size;
            let of = |at: usize| &numbers[at][start..start + size];
            let (r, w, k, v, removed, added) = (of(0), of(1), of(2), of(3), of(4), of(5));
            let lines = row.state.chunks_exact_mut(size).zip(v).zip(row.out);
            for ((line, v), out) in lines {
                let dot: f32 = line.iter().zip(removed).map(|(s, a)| s * a).sum();
                let mut sum = 0.0;
                for n in 0..size {
                    line[n] = line[n] * w[n] + dot * added[n] + v * k[n];
                    sum += line[n] * r[n];
                }
                *out = sum;
            }
        })
    }
}

impl Channel {
    fn forward(&self, x: &Tensor, memory: &Tensor, states: &StateBatch) -> Result<Tensor> {
        let x = self.norm.forward(x)?;
        let difference = (self.shift.forward(&x, None, memory, states)? - &x)?;
        let x = (&x + difference.broadcast_mul(&self.lerp)?)?;
        let hidden = self.key.forward(&x.into())?.relu()?.sqr()?;
        self.value.forward(&hidden.into())
    }
}
