//! The feed-forward part's matrices.

use crate::engine::decoder::config::MixtureConfig;
use crate::engine::decoder::experts::{
    Beside, Choice, Expert, Experts, FeedForward, Mixture, Router, Shared,
};
use crate::engine::decoder::extras::Extras;
use crate::engine::decoder::linear::{Linear, Weight};
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::norm::Norm;
use crate::engine::decoder::rocm;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Tensor};
use worker::{Error, Result};

const LOADING: &str = "loading the model";

/// Gates of experts and what they multiply, of one format.
struct Halves {
    gates: Vec<u8>,
    ups: Vec<u8>,
    dtype: GgmlDType,
}

impl Loader<'_> {
    pub(super) fn feed_forward(&self, block: usize) -> Result<FeedForward> {
        let c = &*self.config.of_block(block);
        let name = |part: &str| format!("blk.{block}.{part}");
        let (width, hidden) = (c.width, c.hidden);
        let activation = c.activation();
        if let Some(shape) = c.experts(block).filter(|_| !c.traits.experts_beside) {
            let mixture = self.mixture(block, shape)?;
            return Ok(FeedForward::Mixture(Box::new(mixture)));
        }
        let down = self.linear(&name("ffn_down"), width, hidden)?;
        let up = name("ffn_up");
        if let Some(deviations) = c.closed_gates(block) {
            return Ok(FeedForward::Sparse {
                gate: self.linear(&name("ffn_gate"), hidden, width)?,
                up: self.linear(&up, hidden, width)?,
                down,
                activation,
                deviations,
            });
        }
        if self.has(&name("ffn_gate.weight")) {
            return Ok(FeedForward::Gated {
                gate: self.linear(&name("ffn_gate"), hidden, width)?,
                up: self.linear(&up, hidden, width)?,
                down,
                activation,
            });
        }
        let outputs = self.info(&format!("{up}.weight"))?.0.dims[1];
        if outputs as usize == 2 * hidden {
            let [gate, up] = self.split(&up, [hidden; 2], width)?;
            return Ok(FeedForward::Gated {
                gate,
                up,
                down,
                activation,
            });
        }
        if let Some(xielu) = c.xielu.get(block) {
            return Ok(FeedForward::Xielu {
                up: self.linear(&up, hidden, width)?,
                down,
                xielu: *xielu,
            });
        }
        Ok(FeedForward::Plain {
            up: self.linear(&up, hidden, width)?,
            down,
            activation,
        })
    }

    fn mixture(&self, block: usize, shape: &MixtureConfig) -> Result<Mixture> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        let shared = match self.has(&name("ffn_up_shexp.weight")) {
            false => None,
            true => {
                let up = name("ffn_up_shexp.weight");
                let hidden = self.info(&up)?.0.dims[1] as usize;
                let gate = name("ffn_gate_inp_shexp.weight");
                let gate = self
                    .has(&gate)
                    .then(|| self.matrix(&gate, 1, c.width))
                    .transpose()?;
                Some(Shared {
                    expert: Expert {
                        gate: self
                            .has(&name("ffn_gate_shexp.weight"))
                            .then(|| self.linear(&name("ffn_gate_shexp"), hidden, c.width))
                            .transpose()?,
                        up: self.linear(&name("ffn_up_shexp"), hidden, c.width)?,
                        down: self.linear(&name("ffn_down_shexp"), c.width, hidden)?,
                    },
                    gate: gate.map(|gate| Linear::new(gate, None)),
                })
            }
        };
        let latent = match self.has(&name("ffn_latent_down.weight")) {
            false => None,
            true => {
                let narrow = self.info(&name("ffn_latent_down.weight"))?.0.dims[1] as usize;
                Some((
                    self.linear(&name("ffn_latent_down"), narrow, c.width)?,
                    self.linear(&name("ffn_latent_up"), c.width, narrow)?,
                ))
            }
        };
        Ok(Mixture {
            router: Router {
                // The scale beside Gemma's is that of a norm.
                matrix: match c.traits.experts_beside {
                    true => self.plain_linear(&name("ffn_gate_inp"), shape.count, c.width)?,
                    false => self.linear(&name("ffn_gate_inp"), shape.count, c.width)?,
                },
                bias: self.router_bias(&name("exp_probs_b.bias"))?,
                choice: Choice::from(shape),
            },
            experts: self.experts(block, shape.count, shape.hidden)?,
            count: shape.count,
            activation: c.activation(),
            clamp: c.traits.clamped_gates,
            shared,
            latent,
            lora: self.attached.experts_of(block),
        })
    }

    /// Experts beside the feed-forward part of a block, if it has some.
    pub(super) fn beside(&self, block: usize) -> Result<Option<Box<Beside>>> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        let there = self.has(&name("ffn_gate_inp.weight"));
        let Some(shape) = c
            .experts(block)
            .filter(|_| c.traits.experts_beside && there)
        else {
            return Ok(None);
        };
        let router_norm = Norm {
            weight: self.vector(&name("ffn_gate_inp.scale"), self.activations)?,
            ..self.norm(&name("pre_ffw_norm_2"))?
        };
        // The router's input is that of a norm over the root of the width.
        let weight = router_norm
            .weight
            .affine((c.width as f64).sqrt().recip(), 0.0);
        Ok(Some(Box::new(Beside {
            mixture: self.mixture(block, shape)?,
            dense_norm: self.norm(&name("post_ffw_norm_1"))?,
            router_norm: Norm {
                weight: weight.map_err(Error::candle(LOADING))?,
                ..router_norm
            },
            pre_norm: self.norm(&name("pre_ffw_norm_2"))?,
            post_norm: self.norm(&name("post_ffw_norm_2"))?,
            scales: self.vector(&name("ffn_down_exps.scale"), DType::F32)?,
        })))
    }

    /// The bytes of all experts' gates, and of what they multiply, where a tensor has both, an expert's behind each other.
    fn gates_and_ups(&self, block: usize, count: usize) -> Result<Option<Halves>> {
        let name = format!("blk.{block}.ffn_gate_up_exps.weight");
        if !self.has(&name) {
            return Ok(None);
        }
        let halves = self.take(&name, |bytes, dtype| {
            let each = bytes.len() / (2 * count);
            let half = |first: usize| -> Vec<u8> {
                let halves = bytes.chunks_exact(each).skip(first).step_by(2);
                halves.flatten().copied().collect()
            };
            Ok(Halves {
                gates: half(0),
                ups: half(1),
                dtype,
            })
        })?;
        Ok(Some(halves))
    }

    /// Takes the bytes of a tensor, or those that another has of it.
    fn take_half<T>(
        &self,
        halves: &Option<Halves>,
        name: &str,
        f: impl FnOnce(&[u8], GgmlDType) -> candle_core::Result<T>,
    ) -> Result<T> {
        let Some(halves) = halves else {
            return self.take(name, f);
        };
        let bytes = match name {
            name if name.ends_with("ffn_gate_exps.weight") => &halves.gates,
            name if name.ends_with("ffn_up_exps.weight") => &halves.ups,
            name => return self.take(name, f),
        };
        f(bytes, halves.dtype).map_err(Error::candle(LOADING))
    }

    /// What is added to the scores that choose experts, if the file has it.
    fn router_bias(&self, name: &str) -> Result<Option<Tensor>> {
        let there = self.has(name);
        there.then(|| self.vector(name, DType::F32)).transpose()
    }

    /// What experts with biases have besides, if they have some: so many of this width, for a stream of that one.
    pub(super) fn biases_of_experts(
        &self,
        block: usize,
        [count, hidden, width]: [usize; 3],
    ) -> Result<Option<rocm::Biased>> {
        let Some(by) = self.config.traits.clamped_gates else {
            return Ok(None);
        };
        let bias = |part: &str, outputs: usize| -> Result<Tensor> {
            self.vector(&format!("blk.{block}.{part}.bias"), self.activations)?
                .reshape((count, outputs))
                .map_err(Error::candle(LOADING))
        };
        Ok(Some(rocm::Biased {
            by,
            gate: bias("ffn_gate_exps", hidden)?,
            up: bias("ffn_up_exps", hidden)?,
            down: bias("ffn_down_exps", width)?,
        }))
    }

    /// A factor for what each expert's `gate`, `up`, `down` or, of both, `gate_up` gives, if the file has some.
    pub(super) fn scales_of_experts(
        &self,
        block: usize,
        part: &str,
        count: usize,
    ) -> Result<Option<Vec<f32>>> {
        // Beside a feed-forward part they are factors of the experts' weights: see [`Beside`].
        match part == "down" && self.config.traits.experts_beside {
            true => Ok(None),
            false => self.scales(&format!("blk.{block}.ffn_{part}_exps"), count),
        }
    }

    fn experts(&self, block: usize, count: usize, hidden: usize) -> Result<Experts> {
        let name = |part: &str| format!("blk.{block}.{part}.weight");
        if self.has_host_experts(block) {
            return self.host_experts(block, count, hidden);
        }
        let halves = self.gates_and_ups(block, count)?;
        let width = self.info(&name("ffn_down_exps"))?.0.dims[1] as usize;
        let gated = halves.is_some() || self.has(&name("ffn_gate_exps"));
        let parts = match halves.is_some() {
            true => ["gate_up", "gate_up", "down"],
            false => ["gate", "up", "down"],
        };
        let of = |part: &str| self.scales_of_experts(block, part, count);
        let scales = [of(parts[0])?, of(parts[1])?, of(parts[2])?];
        if self.device.is_rocm() {
            let stack = |part: &str, outputs: usize, inputs: usize| {
                self.take_half(&halves, &name(part), |bytes, dtype| {
                    let shape = (count, outputs, inputs);
                    rocm::Stack::new(bytes, dtype, shape, self.device, self.activations)
                })
            };
            let biased = self.biases_of_experts(block, [count, hidden, width])?;
            let on_device = |scales: Option<Vec<f32>>| {
                let scales = scales.map(|scales| Tensor::new(scales, self.device));
                scales.transpose().map_err(Error::candle(LOADING))
            };
            let [of_gate, of_up, of_down] = scales.map(on_device);
            return Ok(Experts::Together(Box::new(rocm::Experts {
                biased,
                gate: gated
                    .then(|| stack("ffn_gate_exps", hidden, width))
                    .transpose()?,
                up: stack("ffn_up_exps", hidden, width)?,
                down: stack("ffn_down_exps", width, hidden)?,
                scales: [of_gate?, of_up?, of_down?],
                adapters: self.stack_adapters(block, [count, hidden, width])?,
            })));
        }
        let apart = |part: &str,
                     scales: &Option<Vec<f32>>,
                     outputs: usize,
                     inputs: usize|
         -> Result<Vec<Linear>> {
            let extras = |expert: usize| Extras::scaled(scales.as_ref().map(|s| s[expert]));
            let biases = self.bias(&format!("blk.{block}.{part}"))?;
            let adapters = self.expert_adapters(block, part, [count, outputs, inputs])?;
            if self.is_in_place(&name(part)) {
                let (bytes, dtype) = self.for_host(&name(part))?;
                let each = bytes.len() / count;
                let matrix = |expert: usize| {
                    let bytes = bytes.slice(expert * each..(expert + 1) * each);
                    let weight = Weight::shared(&bytes, dtype, (outputs, inputs))?;
                    let bias = |all: &Tensor| all.narrow(0, expert * outputs, outputs);
                    let linear = Linear::new(weight, biases.as_ref().map(bias).transpose()?);
                    let linear = linear.with_extras(extras(expert));
                    Ok(linear.with_adapters(adapters[expert].clone()))
                };
                let matrices = (0..count).map(matrix).collect::<candle_core::Result<_>>();
                return matrices.map_err(Error::candle(LOADING));
            }
            self.take_half(&halves, &name(part), |bytes, dtype| {
                let each = bytes.len() / count;
                let matrix = |(expert, bytes): (usize, &[u8])| {
                    let shape = (outputs, inputs);
                    let weight = Weight::new(bytes, dtype, shape, self.device, self.activations)?;
                    let bias = |all: &Tensor| all.narrow(0, expert * outputs, outputs);
                    let linear = Linear::new(weight, biases.as_ref().map(bias).transpose()?);
                    let linear = linear.with_extras(extras(expert));
                    Ok(linear.with_adapters(adapters[expert].clone()))
                };
                bytes.chunks_exact(each).enumerate().map(matrix).collect()
            })
        };
        let [of_gate, of_up, of_down] = &scales;
        let gates: Vec<Option<Linear>> = match gated {
            true => apart("ffn_gate_exps", of_gate, hidden, width)?
                .into_iter()
                .map(Some)
                .collect(),
            false => (0..count).map(|_| None).collect(),
        };
        let ups = apart("ffn_up_exps", of_up, hidden, width)?;
        let downs = apart("ffn_down_exps", of_down, width, hidden)?;
        let experts = gates.into_iter().zip(ups).zip(downs);
        Ok(Experts::Apart(
            experts
                .map(|((gate, up), down)| Expert { gate, up, down })
                .collect(),
        ))
    }
}
