//! Experts that stay in the host's memory.

use crate::engine::api::WeightOptions;
use crate::engine::decoder::config::DecoderConfig;
use crate::engine::decoder::experts::{Expert, Experts, HostExperts, HostStack};
use crate::engine::decoder::extras::Extras;
use crate::engine::decoder::linear::{Linear, Weight};
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::part::Part;
use crate::engine::device::room_for_weights;
use candle_core::{DType, Device, Tensor};
use worker::gguf::{Gguf, SharedBytes};
use worker::{Error, Result};

/// Parts of a mixture that have a matrix for each expert.
const PARTS: [&str; 4] = ["gate", "up", "down", "gate_up"];

/// Blocks, from the first on, whose experts stay in the host's memory: as many as `options` say, else as few as it takes
/// for the rest of a part to fit onto a GPU with memory of its own.
pub(super) fn host_blocks(
    config: &DecoderConfig,
    header: &Gguf,
    part: &Part,
    device: &Device,
    options: &WeightOptions,
) -> usize {
    if device.is_cpu() {
        return 0;
    }
    let bytes = |name: &str| header.tensor(name).map_or(0, |info| info.bytes);
    let of_block = |block: usize| -> u64 {
        let names = PARTS.map(|part| format!("blk.{block}.ffn_{part}_exps.weight"));
        names.iter().map(|name| bytes(name)).sum()
    };
    let experts: Vec<u64> = (part.blocks.clone()).map(of_block).collect();
    let tied = header.tensor("output.weight").is_none();
    let own = header.tensors().filter(|(name, _)| part.has(name, tied));
    let all: u64 = own.map(|(_, info)| info.bytes).sum();
    let first = part.blocks.start;
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let (blocks, why) = match (options.host_experts, room_for_weights(device)) {
        (Some(blocks), _) => (blocks, "--n-cpu-moe".to_string()),
        (None, Some(room)) if all > room => (
            first + fewest_blocks(&experts, all, room.saturating_sub(2 * options.place_bytes as u64)),
            format!(
                "the weights take {:.1} GiB and the GPU has room for {:.1}; --n-cpu-moe sets the number, 0 keeps all on the GPU",
                gib(all),
                gib(room)
            ),
        ),
        (None, _) => return 0,
    };
    let on_host = experts.iter().take(blocks.saturating_sub(first));
    let host: u64 = on_host.clone().sum();
    if host > 0 {
        tracing::info!(
            "experts of {} of {} layers, {:.1} of {:.1} GiB, stay in the host's memory ({why})",
            on_host.filter(|bytes| **bytes > 0).count(),
            part.blocks.len(),
            gib(host),
            gib(all)
        );
    } else if blocks > 0 && config.experts.is_none() {
        tracing::info!("nothing stays in the host's memory: the model has no experts ({why})");
    }
    blocks
}

/// The fewest blocks, from the first on, without whose experts the weights fit; all if they never do.
fn fewest_blocks(experts: &[u64], all: u64, room: u64) -> usize {
    let mut left = all;
    for (block, bytes) in experts.iter().enumerate() {
        if left <= room {
            return block;
        }
        left = left.saturating_sub(*bytes);
    }
    experts.len()
}

impl Loader<'_> {
    /// Whether a block's experts stay in the host's memory.
    pub(super) fn has_host_experts(&self, block: usize) -> bool {
        self.device.is_rocm() && block < self.host_blocks
    }

    /// The experts of a block, so many of this width.
    pub(super) fn host_experts(
        &self,
        block: usize,
        count: usize,
        hidden: usize,
    ) -> Result<Experts> {
        let name = |part: &str| format!("blk.{block}.ffn_{part}_exps");
        let width = self.info(&format!("{}.weight", name("down")))?.0.dims[1] as usize;
        let whole = |part: &str, outputs: usize, inputs: usize| -> Result<HostStack> {
            let (bytes, dtype) = self.for_host(&format!("{}.weight", name(part)))?;
            let each = bytes.len() / count;
            let of = |expert: usize| bytes.slice(expert * each..(expert + 1) * each);
            Ok(HostStack {
                matrices: (0..count).map(of).collect(),
                scales: self.scales_of_experts(block, part, count)?,
                dtype,
                outputs,
                inputs,
            })
        };
        let both = format!("{}.weight", name("gate_up"));
        let (gate, up) = match self.has(&both) {
            true => {
                let (bytes, dtype) = self.for_host(&both)?;
                let scales = self.scales_of_experts(block, "gate_up", count)?;
                let [gate, up] = [0, 1].map(|half| HostStack {
                    matrices: halves(&bytes, count, half),
                    scales: scales.clone(),
                    dtype,
                    outputs: hidden,
                    inputs: width,
                });
                (Some(gate), up)
            }
            false => {
                let gate = self
                    .has(&format!("{}.weight", name("gate")))
                    .then(|| whole("gate", hidden, width));
                (gate.transpose()?, whole("up", hidden, width)?)
            }
        };
        let down = whole("down", width, hidden)?;
        let biased = self.biases_of_experts(block, [count, hidden, width])?;
        const LOADING: &str = "loading the model";
        let biases = biased.as_ref().map(|b| [&b.gate, &b.up, &b.down]);
        let biases = match biases {
            Some(all) => {
                let on_host = |all: &Tensor| all.to_device(&Device::Cpu)?.to_dtype(DType::F32);
                let all = all.into_iter().map(on_host);
                let all = all.collect::<candle_core::Result<Vec<_>>>();
                all.map_err(Error::candle(LOADING))?
            }
            None => Vec::new(),
        };
        let adapters = [
            self.expert_adapters(block, "ffn_gate_exps", [count, hidden, width])?,
            self.expert_adapters(block, "ffn_up_exps", [count, hidden, width])?,
            self.expert_adapters(block, "ffn_down_exps", [count, width, hidden])?,
        ];
        let linear = |stack: &HostStack, part: usize, expert: usize| {
            let shape = (stack.outputs, stack.inputs);
            let weight = Weight::unpacked(&stack.matrices[expert], stack.dtype, shape)?;
            let bias = biases.get(part).map(|all| all.get(expert)).transpose()?;
            let scale = stack.scales.as_ref().map(|scales| scales[expert]);
            let linear = Linear::new(weight, bias).with_extras(Extras::scaled(scale));
            let adapters = adapters[part][expert].clone();
            Ok::<_, candle_core::Error>(linear.with_adapters(adapters))
        };
        let expert = |expert: usize| {
            Ok(Expert {
                gate: (gate.as_ref())
                    .map(|gate| linear(gate, 0, expert))
                    .transpose()?,
                up: linear(&up, 1, expert)?,
                down: linear(&down, 2, expert)?,
            })
        };
        let cpu = (0..count).map(expert).collect::<candle_core::Result<_>>();
        let experts = HostExperts {
            cpu: cpu.map_err(Error::candle(LOADING))?,
            gate,
            up,
            down,
            biased,
            streamer: self.streamer.clone(),
        };
        let used = self.config.experts(block).map_or(1, |shape| shape.used);
        self.streamer.add(experts.needs(used));
        Ok(Experts::Host(Box::new(experts)))
    }
}

/// Of each expert the first half or the second, where a tensor has both behind each other.
fn halves(bytes: &SharedBytes, count: usize, half: usize) -> Vec<SharedBytes> {
    let each = bytes.len() / (2 * count);
    let of = |expert: usize| {
        let start = (2 * expert + half) * each;
        bytes.slice(start..start + each)
    };
    (0..count).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_experts_as_possible_leave_the_gpu() {
        // The first block has none.
        let experts = [0, 30, 30, 30];
        assert_eq!(fewest_blocks(&experts, 100, 100), 0);
        assert_eq!(fewest_blocks(&experts, 100, 99), 2);
        assert_eq!(fewest_blocks(&experts, 100, 70), 2);
        assert_eq!(fewest_blocks(&experts, 100, 69), 3);
        assert_eq!(fewest_blocks(&experts, 100, 5), 4);
        assert_eq!(fewest_blocks(&[], 100, 5), 0);
    }

    #[test]
    fn halves_are_those_of_each_expert() {
        let bytes = SharedBytes::from((0..12).collect::<Vec<u8>>());
        let of = |half| -> Vec<Vec<u8>> {
            let parts = halves(&bytes, 3, half);
            parts.iter().map(|part| part.to_vec()).collect()
        };
        assert_eq!(of(0), [[0, 1], [4, 5], [8, 9]]);
        assert_eq!(of(1), [[2, 3], [6, 7], [10, 11]]);
    }
}
