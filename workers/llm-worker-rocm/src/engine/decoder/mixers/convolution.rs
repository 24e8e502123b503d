//! Causal depthwise convolution with a state: what short convolutions and most recurrences begin with.

use super::device::{states_of, with_view, Sequences};
use super::host;
use crate::engine::decoder::memory::{StateBatch, StatePart};
use candle_core::rocm_backend::candle_rocm::ops::causal_conv;
use candle_core::{Result, Tensor};
use rayon::prelude::*;

/// A depthwise convolution, each row with the rows before it in its sequence, with SiLU behind it or not.
pub(in crate::engine::decoder) struct Convolution {
    /// f32, `(kernel, channels)`, the factors of the oldest row first.
    weight: Tensor,
    /// f32, `(channels)`.
    bias: Option<Tensor>,
    silu: bool,
}

/// Rows that multiply the input and the output of a convolution, each `(rows, channels)`.
pub(in crate::engine::decoder) struct Gates<'a> {
    pub before: &'a Tensor,
    pub after: &'a Tensor,
}

/// The largest kernel that there is.
pub(in crate::engine::decoder) const MAX_KERNEL: usize = 8;

impl Convolution {
    /// Takes f32 `(channels, kernel)`, as files have it, with a kernel from 2 to [`MAX_KERNEL`], and `(channels)`.
    ///
    /// # Errors
    /// If the device fails.
    pub(in crate::engine::decoder) fn new(
        weight: &Tensor,
        bias: Option<Tensor>,
        silu: bool,
    ) -> Result<Self> {
        Ok(Self {
            weight: weight.t()?.contiguous()?,
            bias,
            silu,
        })
    }

    /// What a sequence carries on: the last rows, the oldest first.
    pub(in crate::engine::decoder) fn state(&self) -> StatePart {
        let (kernel, channels) = self.weight.dims2().expect("two dimensions");
        StatePart::f32([kernel - 1, channels])
    }

    /// `(rows, channels)` to the same, whose rows may lie apart; `state` has the slots of [`Convolution::state`].
    ///
    /// # Errors
    /// If the device fails.
    pub(in crate::engine::decoder) fn forward(
        &self,
        x: &Tensor,
        gates: Option<&Gates>,
        state: &Tensor,
        states: &StateBatch,
    ) -> Result<Tensor> {
        match x.device().is_rocm() {
            true => self.on_device(x, gates, state, states),
            false => self.on_host(x, gates, state, states),
        }
    }

    fn on_device(
        &self,
        x: &Tensor,
        gates: Option<&Gates>,
        state: &Tensor,
        states: &StateBatch,
    ) -> Result<Tensor> {
        const OP: &str = "convolution";
        with_view!(input = x, OP);
        // What is not there borrows the input's place and is not used.
        with_view!(before = gates.map_or(x, |gates| gates.before), OP);
        with_view!(after = gates.map_or(x, |gates| gates.after), OP);
        with_view!(weight = &self.weight, OP);
        with_view!(bias = self.bias.as_ref().unwrap_or(&self.weight), OP);
        states_of!(sequences = states, OP);
        with_view!(slots = state, OP);
        let conv = causal_conv::CausalConv {
            x: input,
            before: gates.map(|_| before),
            after: gates.map(|_| after),
            weight,
            bias: self.bias.as_ref().map(|_| bias),
            silu: self.silu,
        };
        let device = input.buffer.device();
        let out = causal_conv::causal_conv(device, &conv, &slots, &sequences)?;
        super::device::tensor(x, out, x.shape().clone())
    }

    /// A row depends on the rows before it in its sequence alone, in an order of its own.
    fn on_host(
        &self,
        x: &Tensor,
        gates: Option<&Gates>,
        state: &Tensor,
        states: &StateBatch,
    ) -> Result<Tensor> {
        let (rows, channels) = x.dims2()?;
        let mut input = host::floats(x)?;
        let mut after = None;
        if let Some(gates) = gates {
            let before = host::floats(gates.before)?;
            input.iter_mut().zip(&before).for_each(|(x, b)| *x *= b);
            after = Some(host::floats(gates.after)?);
        }
        let weight = host::floats(&self.weight)?;
        let bias = self.bias.as_ref().map(host::floats).transpose()?;
        let kept = self.weight.dim(0)? - 1;
        let size = kept * channels;
        let sequences = host::sequences(states)?;
        let mut out = vec![0f32; rows * channels];
        host::with_states(state, |slots| {
            // The rows before a sequence's first, which its new states may take the place of.
            let old: Vec<Vec<f32>> = sequences
                .iter()
                .map(|sequence| match sequence.from {
                    Some(slot) => slots[slot * size..(slot + 1) * size].to_vec(),
                    None => vec![0.0; size],
                })
                .collect();
            let of_row = |row: usize| sequences.partition_point(|s| s.rows.end <= row);
            // The row so many before the first of a sequence or behind it.
            let line = |sequence: usize, place: usize| -> &[f32] {
                let at = |row: usize| row * channels..(row + 1) * channels;
                match place.checked_sub(kept) {
                    Some(behind) => &input[at(sequences[sequence].rows.start + behind)],
                    None => &old[sequence][at(place)],
                }
            };
            let work = out.par_chunks_mut(channels.max(1)).enumerate();
            work.with_min_len(host::ROWS_OF_A_TASK)
                .for_each(|(row, out)| {
                    let sequence = of_row(row);
                    let first = row - sequences[sequence].rows.start;
                    if let Some(bias) = &bias {
                        out.copy_from_slice(bias);
                    }
                    for (i, factors) in weight.chunks(channels).enumerate() {
                        let terms = line(sequence, first + i).iter().zip(factors);
                        out.iter_mut()
                            .zip(terms)
                            .for_each(|(y, (x, w))| *y += x * w);
                    }
                    if self.silu {
                        out.iter_mut().for_each(|y| *y /= 1.0 + (-*y).exp());
                    }
                    if let Some(after) = &after {
                        let gates = &after[row * channels..(row + 1) * channels];
                        out.iter_mut().zip(gates).for_each(|(y, gate)| *y *= gate);
                    }
                });
            for (number, sequence) in sequences.iter().enumerate() {
                for (row, slot) in sequence.kept() {
                    let first = row - sequence.rows.start + 1;
                    for i in 0..kept {
                        let to = slot * size + i * channels;
                        slots[to..to + channels].copy_from_slice(line(number, first + i));
                    }
                }
            }
            Ok(())
        })?;
        Tensor::from_vec(out, (rows, channels), x.device())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::decoder::memory::NO_STATE;
    use candle_core::{DType, Device};

    fn batch(starts: &[u32], from: &[u32], to: &[u32]) -> StateBatch {
        let tensor = |x: &[u32]| Tensor::new(x, &Device::Cpu).unwrap();
        StateBatch {
            starts: tensor(starts),
            from: tensor(from),
            to: tensor(to),
            longest: to.len(),
        }
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn rows_continue_where_their_state_was_left() {
        let rows = 7;
        let numbers = |count: usize| (0..count).map(|i| (i as f32 * 0.7).sin());
        let x: Vec<f32> = numbers(rows * 3).collect();
        let x = Tensor::from_vec(x, (rows, 3), &Device::Cpu).unwrap();
        let weight: Vec<f32> = numbers(12).collect();
        let weight = Tensor::from_vec(weight, (3, 4), &Device::Cpu).unwrap();
        let bias = Tensor::new(&[0.1f32, 0.2, 0.3], &Device::Cpu).unwrap();
        let conv = Convolution::new(&weight, Some(bias), true).unwrap();
        let shape = conv.state().shape;
        assert_eq!(shape, [3, 3]);
        let slots = || Tensor::zeros((4, 3, 3), DType::F32, &Device::Cpu).unwrap();
        let run = |x: &Tensor, state: &Tensor, states: &StateBatch| {
            conv.forward(x, None, state, states).unwrap()
        };
        let none = NO_STATE;
        let state = slots();
        let whole = batch(&[0, 7], &[none], &[none, none, none, 2, none, 1, 0]);
        let want = run(&x, &state, &whole);
        let want_state = values(&state);
        // The same in pieces, beside another sequence, bit by bit.
        let again = slots();
        let mut got = Vec::new();
        for (start, end, from) in [(0, 4, none), (4, 5, 3), (5, 7, 3)] {
            let piece = x.narrow(0, start, end - start).unwrap();
            let both = Tensor::cat(&[&piece, &x], 0).unwrap();
            let first = (end - start) as u32;
            let mut to = vec![none; end - start + rows];
            to[end - start - 1] = 3;
            let states = batch(&[0, first, first + 7], &[from, none], &to);
            let out = run(&both, &again, &states);
            got.extend(values(&out.narrow(0, 0, end - start).unwrap()));
            assert_eq!(
                values(&out.narrow(0, end - start, rows).unwrap()),
                values(&want)
            );
        }
        assert_eq!(got, values(&want));
        let again = values(&again);
        assert_eq!(again[27..36], want_state[0..9]);
        // Behind the row before the last one.
        let rows = values(&x);
        assert_eq!(want_state[9..18], rows[9..18]);
        assert_eq!(want_state[18..27], rows[3..12]);
    }
}
