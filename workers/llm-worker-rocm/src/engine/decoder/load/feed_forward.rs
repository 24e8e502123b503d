//! The feed-forward part's matrices.

use crate::engine::decoder::config::MixtureConfig;
use crate::engine::decoder::experts::{
    Choice, Expert, Experts, FeedForward, Mixture, Router, Shared,
};
use crate::engine::decoder::linear::{Linear, Weight};
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::rocm;
use candle_core::{DType, Tensor};
use worker::{Error, Result};

impl Loader<'_> {
    pub(super) fn feed_forward(&self, block: usize) -> Result<FeedForward> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        let (width, hidden) = (c.width, c.hidden);
        let activation = c.activation();
        if let Some(shape) = c.experts(block) {
            let mixture = self.mixture(block, shape)?;
            return Ok(FeedForward::Mixture(Box::new(mixture)));
        }
        let down = self.linear(&name("ffn_down"), width, hidden)?;
        let up = name("ffn_up");
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
                        gate: self.linear(&name("ffn_gate_shexp"), hidden, c.width)?,
                        up: self.linear(&name("ffn_up_shexp"), hidden, c.width)?,
                        down: self.linear(&name("ffn_down_shexp"), c.width, hidden)?,
                    },
                    gate: gate.map(|gate| Linear::new(gate, None)),
                })
            }
        };
        Ok(Mixture {
            router: Router {
                matrix: self.linear(&name("ffn_gate_inp"), shape.count, c.width)?,
                bias: self.router_bias(&name("exp_probs_b.bias"))?,
                choice: Choice::from(shape),
            },
            experts: self.experts(block, shape.count, shape.hidden)?,
            count: shape.count,
            activation: c.activation(),
            clamp: c.traits.clamped_gates,
            shared,
        })
    }

    /// What is added to the scores that choose experts, if the file has it.
    fn router_bias(&self, name: &str) -> Result<Option<Tensor>> {
        let there = self.has(name);
        there.then(|| self.vector(name, DType::F32)).transpose()
    }

    fn experts(&self, block: usize, count: usize, hidden: usize) -> Result<Experts> {
        let width = self.config.width;
        let name = |part: &str| format!("blk.{block}.{part}.weight");
        if self.device.is_rocm() {
            let stack = |part: &str, outputs: usize, inputs: usize| {
                self.take(&name(part), |bytes, dtype| {
                    let shape = (count, outputs, inputs);
                    rocm::Stack::new(bytes, dtype, shape, self.device, self.activations)
                })
            };
            let bias = |part: &str, outputs: usize| -> Result<Tensor> {
                self.vector(&format!("blk.{block}.{part}.bias"), self.activations)?
                    .reshape((count, outputs))
                    .map_err(Error::candle("loading the model"))
            };
            let biased = match self.config.traits.clamped_gates {
                Some(gate) => Some(rocm::Biased {
                    by: gate,
                    gate: bias("ffn_gate_exps", hidden)?,
                    up: bias("ffn_up_exps", hidden)?,
                    down: bias("ffn_down_exps", width)?,
                }),
                None => None,
            };
            return Ok(Experts::Together(Box::new(rocm::Experts {
                biased,
                gate: stack("ffn_gate_exps", hidden, width)?,
                up: stack("ffn_up_exps", hidden, width)?,
                down: stack("ffn_down_exps", width, hidden)?,
            })));
        }
        let apart = |part: &str, outputs: usize, inputs: usize| -> Result<Vec<Linear>> {
            let biases = self.bias(&format!("blk.{block}.{part}"))?;
            self.take(&name(part), |bytes, dtype| {
                let each = bytes.len() / count;
                let matrix = |(expert, bytes): (usize, &[u8])| {
                    let shape = (outputs, inputs);
                    let weight = Weight::new(bytes, dtype, shape, self.device, self.activations)?;
                    let bias = |all: &Tensor| all.narrow(0, expert * outputs, outputs);
                    Ok(Linear::new(weight, biases.as_ref().map(bias).transpose()?))
                };
                bytes.chunks_exact(each).enumerate().map(matrix).collect()
            })
        };
        let gates = apart("ffn_gate_exps", hidden, width)?;
        let ups = apart("ffn_up_exps", hidden, width)?;
        let downs = apart("ffn_down_exps", width, hidden)?;
        let experts = gates.into_iter().zip(ups).zip(downs);
        Ok(Experts::Apart(
            experts
                .map(|((gate, up), down)| Expert { gate, up, down })
                .collect(),
        ))
    }
}
