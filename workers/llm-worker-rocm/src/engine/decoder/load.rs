//! Weights from a file to a device.

use super::architecture::NormKind;
use super::block::{Attention, Block};
use super::config::{Base, DecoderConfig};
use super::experts::{Expert, Experts, FeedForward, Mixture, Shared};
use super::linear::{Linear, Weight};
use super::norm::Norm;
use super::projections::{Heads, Projections};
use super::rocm;
use super::rotary::{self, Scaling, Tables};
use super::tensors::{ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT};
use super::{config, Decoder};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, Tensor};
use std::borrow::Cow;
use std::ops::Range;
use worker::gguf::{TensorInfo, Weights};
use worker::{Error, Result};

/// Takes a file's tensors one after another.
struct Loader<'a> {
    config: &'a DecoderConfig,
    file: &'a dyn Weights,
    device: &'a Device,
    activations: DType,
    /// Called with the bytes of every tensor that has arrived.
    progress: &'a dyn Fn(u64),
}

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

impl Decoder {
    /// Loads the weights of a file whose [`DecoderConfig`] and tensors have been checked; `context` is the longest sequence that will come, `progress` is called
    /// with the bytes of each tensor.
    ///
    /// # Errors
    /// [`Error::Candle`] if the device has no room, [`Error::BadModel`] for a tensor type that candle does not compute with.
    pub fn load(
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
            decoding: super::decode::Decoding::default(),
            activations,
            device: device.clone(),
            config,
        })
    }
}

impl Loader<'_> {
    fn has(&self, name: &str) -> bool {
        self.file.header().tensor(name).is_some()
    }

    fn bad(&self, reason: String) -> Error {
        Error::BadModel {
            path: self.file.path().to_path_buf(),
            reason,
        }
    }

    fn info(&self, name: &str) -> Result<(&TensorInfo, GgmlDType)> {
        let info = self.file.header().tensor(name);
        let info = info.ok_or_else(|| self.bad(format!("tensor {name} is missing")))?;
        let dtype = info
            .dtype()
            .map_err(|unsupported| self.bad(format!("tensor {name}: {unsupported}")))?;
        Ok((info, dtype))
    }

    /// Takes the bytes of a tensor.
    fn take<T>(
        &self,
        name: &str,
        f: impl FnOnce(&[u8], GgmlDType) -> candle_core::Result<T>,
    ) -> Result<T> {
        let (info, dtype) = self.info(name)?;
        let taken = f(&self.file.bytes(name, info), dtype);
        self.file.give_back(name, info);
        (self.progress)(info.bytes);
        taken.map_err(Error::candle("loading the model"))
    }

    fn matrix(&self, name: &str, outputs: usize, inputs: usize) -> Result<Weight> {
        self.take(name, |bytes, dtype| {
            let shape = (outputs, inputs);
            Weight::new(bytes, dtype, shape, self.device, self.activations)
        })
    }

    /// A tensor of plain numbers.
    fn vector(&self, name: &str, dtype: DType) -> Result<Tensor> {
        let elements = self.info(name)?.0.elem_count() as usize;
        self.take(name, |bytes, format| {
            let storage = QStorage::from_data(Cow::Borrowed(bytes), self.device, format)?;
            QTensor::new(storage, elements)?
                .dequantize(self.device)?
                .to_dtype(dtype)
        })
    }

    fn bias(&self, name: &str) -> Result<Option<Tensor>> {
        let name = format!("{name}.bias");
        self.has(&name)
            .then(|| self.vector(&name, self.activations))
            .transpose()
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear> {
        let weight = self.matrix(&format!("{name}.weight"), outputs, inputs)?;
        Ok(Linear::new(weight, self.bias(name)?))
    }

    /// Some of a stacked matrix's outputs each: their rows lie behind each other.
    fn split<const N: usize>(
        &self,
        name: &str,
        outputs: [usize; N],
        inputs: usize,
    ) -> Result<[Linear; N]> {
        let bias = self.bias(name)?;
        let total: usize = outputs.iter().sum();
        self.take(&format!("{name}.weight"), |bytes, dtype| {
            let row = bytes.len() / total;
            let mut start = 0;
            let parts = outputs
                .map(|count| {
                    start += count;
                    (start - count, count)
                })
                .map(|(start, count)| {
                    let bytes = &bytes[start * row..(start + count) * row];
                    let shape = (count, inputs);
                    let weight = Weight::new(bytes, dtype, shape, self.device, self.activations)?;
                    let bias = match &bias {
                        Some(bias) => Some(bias.narrow(0, start, count)?.contiguous()?),
                        None => None,
                    };
                    Ok(Linear::new(weight, bias))
                });
            let parts = parts.into_iter().collect::<candle_core::Result<Vec<_>>>()?;
            Ok(parts.try_into().ok().expect("one for each"))
        })
    }

    fn norm(&self, name: &str) -> Result<Norm> {
        Ok(Norm {
            kind: self.config.architecture.norm,
            weight: self.vector(&format!("{name}.weight"), self.activations)?,
            bias: self.bias(name)?,
            epsilon: self.config.epsilon,
        })
    }

    fn norm_if_there(&self, name: &str) -> Result<Option<Norm>> {
        self.has(&format!("{name}.weight"))
            .then(|| self.norm(name))
            .transpose()
    }

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

    /// Whether all have one format, and all or none a bias.
    fn are_alike(&self, names: &[String]) -> Result<bool> {
        let format = |name: &String| Ok(self.info(&format!("{name}.weight"))?.1);
        let formats = names.iter().map(format).collect::<Result<Vec<_>>>()?;
        let biased = |name: &&String| self.has(&format!("{name}.bias"));
        let biases = names.iter().filter(biased).count();
        Ok(formats.windows(2).all(|two| two[0] == two[1]) && [0, names.len()].contains(&biases))
    }

    /// The rows of several matrices of one format behind each other.
    fn joined(&self, names: &[String], outputs: [usize; 3], inputs: usize) -> Result<Linear> {
        const LOADING: &str = "loading the model";
        let mut rows = Vec::new();
        let mut format = None;
        for name in names {
            self.take(&format!("{name}.weight"), |bytes, dtype| {
                rows.extend_from_slice(bytes);
                format = Some(dtype);
                Ok(())
            })?;
        }
        let biases = names.iter().map(|name| self.bias(name));
        let biases = biases.collect::<Result<Option<Vec<_>>>>()?;
        let bias = biases.map(|biases| Tensor::cat(&biases, 0)).transpose();
        let format = format.expect("there are names");
        let shape = (outputs.iter().sum(), inputs);
        let weight = Weight::new(&rows, format, shape, self.device, self.activations);
        Ok(Linear::new(
            weight.map_err(Error::candle(LOADING))?,
            bias.map_err(Error::candle(LOADING))?,
        ))
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

    fn mixture(&self, block: usize, shape: &config::Experts) -> Result<Mixture> {
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
            routing: c.architecture.routing,
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
        let interleaved = c.architecture.interleaved;
        Ok(Tables::new(
            frequencies,
            magnitude,
            interleaved,
            self.device,
        ))
    }
}
