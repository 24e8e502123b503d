//! Experts whose matrices are in the host's memory, of a model on a GPU.
//!
//! There are two ways to compute with them: the rows go to the CPU, which multiplies them with their experts' matrices
//! where those lie, or the matrices of the chosen experts come to the GPU by turns, for the kernels of the others. The
//! first costs time by rows, the second by experts, so it pays from some number of rows for each expert on.

use super::streamer::{Needs, Streamer};
use super::{Expert, Mixture};
use crate::engine::decoder::input::Input;
use crate::engine::decoder::rocm;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::Activation;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::gguf::SharedBytes;

/// A mixture's matrices in the host's memory.
pub(in crate::engine::decoder) struct HostExperts {
    /// For the CPU: the same memory.
    pub cpu: Vec<Expert>,
    /// None where only the activation is between the others.
    pub gate: Option<HostStack>,
    pub up: HostStack,
    pub down: HostStack,
    /// What experts with biases have besides, on the GPU.
    pub biased: Option<rocm::Biased>,
    pub streamer: Arc<Streamer>,
}

/// A matrix for each expert, as a file has them.
pub(in crate::engine::decoder) struct HostStack {
    pub matrices: Vec<SharedBytes>,
    /// A factor of each expert's product, if the file has some.
    pub scales: Option<Vec<f32>>,
    pub dtype: GgmlDType,
    pub outputs: usize,
    pub inputs: usize,
}

impl HostStack {
    /// Bytes of an expert's.
    fn bytes(&self) -> usize {
        self.matrices.first().map_or(0, |matrix| matrix.len())
    }
}

/// Rows of the longer measurement.
const MANY: usize = 16;
/// Measurements of which the fastest counts.
const REPEATS: usize = 3;

impl HostExperts {
    fn stacks(&self) -> [Option<&HostStack>; 3] {
        [self.gate.as_ref(), Some(&self.up), Some(&self.down)]
    }

    /// What they take on the GPU, where a token has so many of them.
    pub(in crate::engine::decoder) fn needs(&self, used: usize) -> Needs {
        Needs {
            bytes: self.stacks().map(|s| s.map_or(0, HostStack::bytes)),
            used,
            count: self.cpu.len(),
        }
    }

    /// `inputs` `(tokens, used or 1, width)` and `ids` `(tokens, used)` on the GPU to `(tokens, used, width)` there.
    pub(super) fn forward(
        &self,
        mixture: &Mixture,
        inputs: &Tensor,
        ids: &Tensor,
    ) -> Result<Tensor> {
        let shape = ids.dims2()?;
        let slots = ids
            .to_device(&Device::Cpu)?
            .flatten_all()?
            .to_vec1::<u32>()?;
        let mut chosen = slots.clone();
        chosen.sort_unstable();
        chosen.dedup();
        let rows = slots.len() as f64 / chosen.len().max(1) as f64;
        // Adapters of experts are on the CPU.
        let adapted = mixture
            .lora
            .as_ref()
            .is_some_and(|[all, _]| !all.is_empty());
        let name = self.name(mixture.activation);
        let device = inputs.device();
        let enough =
            (self.streamer).enough_rows(&name, device, || self.measure(mixture, device))?;
        if rows >= enough && !adapted {
            return self.streamed(inputs, &slots, &chosen, shape, mixture.activation);
        }
        let x = inputs.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let ids = Tensor::from_vec(slots, shape, &Device::Cpu)?;
        mixture.apart(&self.cpu, &x, &ids)?.to_device(device)
    }

    /// What tells their measurements from others'.
    fn name(&self, activation: Activation) -> String {
        let stacks = self.stacks().into_iter().flatten();
        let parts = stacks.map(|s| format!("{:?} {}x{}", s.dtype, s.outputs, s.inputs));
        format!("{}, {activation:?}", parts.collect::<Vec<_>>().join(", "))
    }

    /// Computes on the GPU with the chosen experts' matrices, which come there in groups: while the GPU computes with
    /// one, the next one arrives.
    fn streamed(
        &self,
        inputs: &Tensor,
        slots: &[u32],
        chosen: &[u32],
        (tokens, used): (usize, usize),
        activation: Activation,
    ) -> Result<Tensor> {
        let device = inputs.device();
        let mut turns = self.streamer.turns(device)?;
        let groups: Vec<&[u32]> = chosen.chunks(turns.room()).collect();
        // A place in its group for each expert, and nowhere for those of other groups.
        let places_in = |group: &[u32]| {
            let mut places = vec![u32::MAX; self.cpu.len()];
            for (place, expert) in group.iter().enumerate() {
                places[*expert as usize] = place as u32;
            }
            places
        };
        turns.begin()?;
        if let Some(first) = groups.first() {
            turns.send(0, &self.bytes_of(first))?;
        }
        let (_, each, width) = inputs.dims3()?;
        let slots_of_row = used / each;
        let rows = inputs.reshape((tokens * each, width))?;
        let mut parts = Vec::with_capacity(groups.len());
        let mut order = vec![0u32; slots.len()];
        let mut done = 0;
        for (number, group) in groups.iter().enumerate() {
            turns.take_over()?;
            let experts = self.on_device(&turns.stacks(number), group, device)?;
            let places = places_in(group);
            let of_group = |slot: &usize| places[slots[*slot] as usize] != u32::MAX;
            let own: Vec<usize> = (0..slots.len()).filter(of_group).collect();
            let ids = own.iter().map(|slot| places[slots[*slot] as usize]);
            let ids = ids.collect::<Vec<u32>>();
            parts.push(match groups.len() {
                1 => {
                    let ids = Tensor::from_vec(ids, (tokens, used), device)?;
                    experts.each(inputs, &ids, activation)?
                }
                _ => {
                    let of_slots = own.iter().map(|slot| (slot / slots_of_row) as u32);
                    let of_slots = Tensor::from_iter(of_slots, device)?;
                    let x = rows.index_select(&of_slots, 0)?.unsqueeze(1)?;
                    let ids = Tensor::from_vec(ids, (own.len(), 1), device)?;
                    experts.each(&x, &ids, activation)?.squeeze(1)?
                }
            });
            for slot in own {
                order[slot] = done;
                done += 1;
            }
            if let Some(next) = groups.get(number + 1) {
                turns.send(number + 1, &self.bytes_of(next))?;
            }
        }
        if let [all] = &parts[..] {
            if groups.len() == 1 {
                return Ok(all.clone());
            }
        }
        let order = Tensor::from_vec(order, slots.len(), device)?;
        let all = Tensor::cat(&parts, 0)?.index_select(&order, 0)?;
        let width = all.dim(1)?;
        all.reshape((tokens, used, width))
    }

    /// The bytes of some experts' matrices, part by part.
    fn bytes_of(&self, experts: &[u32]) -> [Vec<&[u8]>; 3] {
        self.stacks().map(|stack| match stack {
            Some(stack) => {
                let matrices = experts.iter().map(|e| &*stack.matrices[*e as usize]);
                matrices.collect()
            }
            None => Vec::new(),
        })
    }

    /// The experts of a group, whose matrices lie in these buffers.
    fn on_device(
        &self,
        buffers: &[Arc<rocm::Buffer>; 3],
        group: &[u32],
        device: &Device,
    ) -> Result<rocm::Experts> {
        let stack = |stack: &HostStack, buffer: &Arc<rocm::Buffer>| {
            let shape = (group.len(), stack.outputs, stack.inputs);
            rocm::Stack::borrowed(buffer.clone(), stack.dtype, shape)
        };
        let [gate, up, down] = buffers;
        let biased = match &self.biased {
            Some(biased) => Some(biased.of(&Tensor::new(group, device)?)?),
            None => None,
        };
        let scales = |stack: Option<&HostStack>| -> Result<Option<Tensor>> {
            let Some(all) = stack.and_then(|stack| stack.scales.as_ref()) else {
                return Ok(None);
            };
            let own: Vec<f32> = group.iter().map(|e| all[*e as usize]).collect();
            Tensor::new(own, device).map(Some)
        };
        let [of_gate, of_up, of_down] = self.stacks().map(scales);
        Ok(rocm::Experts {
            biased,
            scales: [of_gate?, of_up?, of_down?],
            gate: (self.gate.as_ref())
                .map(|own| stack(own, gate))
                .transpose()?,
            up: stack(&self.up, up)?,
            down: stack(&self.down, down)?,
            adapters: [None, None, None],
        })
    }

    /// From how many rows for each expert on the GPU is the faster: what a copy costs beyond the CPU's first row, in
    /// further rows of it.
    fn measure(&self, mixture: &Mixture, device: &Device) -> Result<f64> {
        let product = |rows: usize| -> Result<Duration> {
            let x: Vec<f32> = (0..rows * self.up.inputs)
                .map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0)
                .collect();
            let x: Input = Tensor::from_vec(x, (rows, self.up.inputs), &Device::Cpu)?.into();
            let expert = &self.cpu[0];
            fastest(|| {
                match mixture.clamp {
                    Some(clamp) => expert.forward_clamped(&x, clamp)?,
                    None => expert.forward(&x, mixture.activation)?,
                };
                Ok(())
            })
        };
        let (one, many) = (product(1)?, product(MANY)?);
        let mut turns = self.streamer.turns(device)?;
        let count = turns.room().min(self.cpu.len()) as u32;
        let experts: Vec<u32> = (0..count).collect();
        let copy = fastest(|| {
            turns.begin()?;
            turns.send(0, &self.bytes_of(&experts))?;
            turns.wait()
        })?;
        let copy = copy / count.max(1);
        let enough = rows_that_pay(one, many, copy);
        tracing::info!(
            "experts in host memory: the CPU takes {:.0} µs for a row and {:.0} µs for {MANY}, a copy to the GPU {:.0} µs: from {enough:.1} rows for each on they are copied (--experts-by)",
            micros(one),
            micros(many),
            micros(copy)
        );
        Ok(enough)
    }
}

/// Rows from which on a copy is faster than products that take so long for one row and for [`MANY`].
fn rows_that_pay(one: Duration, many: Duration, copy: Duration) -> f64 {
    let [one, many, copy] = [one, many, copy].map(micros);
    let more = (many - one) / (MANY - 1) as f64;
    match copy <= one {
        true => 0.0,
        false if more <= 0.0 => f64::INFINITY,
        false => 1.0 + (copy - one) / more,
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn fastest(mut call: impl FnMut() -> Result<()>) -> Result<Duration> {
    // Pages come from the disk.
    call()?;
    let mut best = Duration::MAX;
    for _ in 0..REPEATS {
        let start = Instant::now();
        call()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_pay_from_where_rows_cost_as_much() {
        let micros = Duration::from_micros;
        // A row more costs 10.
        let pay = |one, copy| rows_that_pay(micros(one), micros(one + 150), micros(copy));
        assert_eq!(pay(100, 50), 0.0);
        assert_eq!(pay(100, 100), 0.0);
        assert_eq!(pay(100, 200), 11.0);
        let alike = rows_that_pay(micros(100), micros(100), micros(200));
        assert_eq!(alike, f64::INFINITY);
    }
}
