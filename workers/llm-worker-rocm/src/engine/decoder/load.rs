//! The blocks of a model from a file to a device.

use super::block::{Attention, Block};
use super::config::{Base, DecoderConfig, MixtureConfig};
use super::experts::{Expert, Experts, FeedForward, Mixture, Shared};
use super::linear::{Linear, Weight};
use super::loader::Loader;
use super::network::Network;
use super::norm::Norm;
use super::projections::{Heads, Projections};
use super::rocm;
use super::rotary::{self, Scaling, Tables};
use super::tensors::{ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT};
use super::traits::NormKind;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use std::ops::Range;
use worker::gguf::Weights;
use worker::{Error, Result};

/// What activations are in: halves on a GPU if the matrices are, else f32.
fn activations(config: &DecoderConfig, file: &dyn Weights, device: &Device) -> DType {
    if device.is_cpu() {
        return DType::F32;
    }
    let matrix = file.header().tensor("blk.0.attn_output.weight");
    match matrix.and_then(|t| t.dtype().ok()) {
        // Models that scale their embedding so much go beyond what f16 can hold.
        Some(GgmlDType::F16) if config.embedding_scale.is_none() => DType::F16,
        Some(GgmlDType::BF16) => DType::BF16,
        _ => DType::F32,
    }
}

impl Network {
    /// See [`Decoder::load`](super::Decoder::load).
    pub(super) fn load(
        config: DecoderConfig,
        file: &dyn Weights,
        device: &Device,
        context: usize,
        progress: &dyn Fn(u64),
    ) -> Result<Self> {
        let activations = activations(&config, file, device);
        let loader = Loader {
            config: &config,
            file,
            device,
            activations,
            progress,
        };
        let c = &config;
        let embedding = loader.matrix("token_embd.weight", c.vocab_size, c.width)?;
        let output = match loader.has("output.weight") {
            true => loader.matrix("output.weight", c.vocab_size, c.width)?,
            // Tied: the embedding table is the output matrix, too.
            false => embedding.clone(),
        };
        let blocks = (0..c.blocks)
            .map(|block| loader.block(block))
            .collect::<Result<_>>()?;
        Ok(Self {
            tables: loader.tables(Base::Global, context)?,
            local_tables: loader.tables(Base::Local, context)?,
            norm: loader.norm("output_norm")?,
            output: Linear::new(output, loader.bias("output")?),
            embedding,
            blocks,
            caches: Vec::new(),
            block_size: 0,
            activations,
            device: device.clone(),
            config,
        })
    }
}

impl Loader<'_> {
    fn block(&self, block: usize) -> Result<Block> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        // Where there are two norms before the two parts, the second is attention's.
        let second = self.norm_if_there(&name("attn_norm_2"))?;
        let first = self.norm_if_there(&name("attn_norm"))?;
        let (attention_norm, ffn_norm) = match second {
            Some(second) => (Some(second), first),
            None => (first, self.norm_if_there(&name("ffn_norm"))?),
        };
        Ok(Block {
            attention: self.attention(block)?,
            feed_forward: self.feed_forward(block)?,
            attention_norm,
            attention_post_norm: self.norm_if_there(&name("post_attention_norm"))?,
            ffn_norm,
            ffn_post_norm: self.norm_if_there(&name("post_ffw_norm"))?,
            parallel: c.parallel,
            residual_scale: c.residual_scale,
        })
    }

    fn attention(&self, block: usize) -> Result<Attention> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        let heads = Heads {
            count: c.heads,
            kv_count: c.kv_heads,
            size: c.head_dim,
            v_size: c.v_head_dim,
        };
        let qk_norm = |part: &str| -> Result<Option<Norm>> {
            if c.plain_qk_norms(block) {
                let weight = Tensor::ones(c.head_dim, self.activations, self.device);
                return Ok(Some(Norm {
                    kind: NormKind::Rms,
                    weight: weight.map_err(Error::candle("loading the model"))?,
                    bias: None,
                    epsilon: c.epsilon,
                }));
            }
            Ok(self.norm_if_there(&name(part))?.map(|norm| Norm {
                kind: NormKind::Rms,
                ..norm
            }))
        };
        let kind = c.layer(block);
        Ok(Attention {
            projections: self.projections(&name, heads)?,
            output: self.linear(&name("attn_output"), c.width, c.heads * c.v_head_dim)?,
            query_norm: qk_norm("attn_q_norm")?,
            key_norm: qk_norm("attn_k_norm")?,
            heads,
            scale: c.score_scale,
            softcap: c.score_cap,
            left: kind.window.map(|window| window - 1),
            rotary: kind.rotary,
        })
    }

    /// One matrix where the file has one, or three that can be joined.
    fn projections(&self, name: &dyn Fn(&str) -> String, heads: Heads) -> Result<Projections> {
        let sizes = [
            heads.count * heads.size,
            heads.kv_count * heads.size,
            heads.kv_count * heads.v_size,
        ];
        let width = self.config.width;
        let of_one_size = heads.size == heads.v_size;
        let all = name("attn_qkv");
        let parts = ["attn_q", "attn_k", "attn_v"].map(name);
        let [query, key, value] = if self.has(&format!("{all}.weight")) {
            if of_one_size {
                let total = sizes.iter().sum();
                return Ok(Projections::Together(self.linear(&all, total, width)?));
            }
            self.split(&all, sizes, width)?
        } else {
            if of_one_size && self.are_alike(&parts)? {
                let joined = self.joined(&parts, sizes, width)?;
                return Ok(Projections::Together(joined));
            }
            let [q, k, v] = &parts;
            [
                self.linear(q, sizes[0], width)?,
                self.linear(k, sizes[1], width)?,
                self.linear(v, sizes[2], width)?,
            ]
        };
        Ok(Projections::Apart { query, key, value })
    }

    fn feed_forward(&self, block: usize) -> Result<FeedForward> {
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
            router: self.linear(&name("ffn_gate_inp"), shape.count, c.width)?,
            experts: self.experts(block, shape.count, shape.hidden)?,
            count: shape.count,
            used: shape.used,
            routing: c.traits.routing,
            scale: shape.scale,
            activation: c.activation(),
            shared,
        })
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
            return Ok(Experts::Together(Box::new(rocm::Experts {
                gate: stack("ffn_gate_exps", hidden, width)?,
                up: stack("ffn_up_exps", hidden, width)?,
                down: stack("ffn_down_exps", width, hidden)?,
            })));
        }
        let apart = |part: &str, outputs: usize, inputs: usize| -> Result<Vec<Linear>> {
            self.take(&name(part), |bytes, dtype| {
                let each = bytes.len() / count;
                let matrix = |bytes: &[u8]| {
                    let shape = (outputs, inputs);
                    let weight = Weight::new(bytes, dtype, shape, self.device, self.activations)?;
                    Ok(Linear::new(weight, None))
                };
                bytes.chunks_exact(each).map(matrix).collect()
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

    fn tables(&self, base: Base, context: usize) -> Result<Tables> {
        let c = self.config;
        let rope = &c.rope;
        let used: Range<usize> = 0..c.blocks;
        let local = used.clone().any(|b| c.layer(b).rotary == Some(Base::Local));
        let frequencies = match base {
            Base::Local if local => {
                rotary::frequencies(rope.dims, c.local_base(), &Scaling::None, None)
            }
            Base::Local => Vec::new(),
            Base::Global => {
                let longer = context > rope.original_context;
                let factors = [
                    (ROPE_FACTORS, true),
                    (ROPE_FACTORS_LONG, longer),
                    (ROPE_FACTORS_SHORT, !longer),
                ];
                let factors = factors
                    .into_iter()
                    .find(|(name, fits)| *fits && self.has(name))
                    .map(|(name, _)| {
                        self.vector(name, DType::F32)?
                            .to_vec1::<f32>()
                            .map_err(Error::candle("loading the model"))
                    })
                    .transpose()?;
                rotary::frequencies(rope.dims, rope.base, &rope.scaling, factors.as_deref())
            }
        };
        let magnitude = match base {
            Base::Global => rope.magnitude,
            Base::Local => 1.0,
        };
        let interleaved = c.traits.interleaved;
        Ok(Tables::new(
            frequencies,
            magnitude,
            interleaved,
            self.device,
        ))
    }
}
