//! Llama-family models from GGUF (llama 1 to 3, mistral, smollm, … under the architecture name `llama`).
//!
//! Weights stay in the file's block formats; activations are f32. "LLaMA: Open and Efficient Foundation Language Models",
//! Touvron et al., 2023.

mod attention;
mod config;
mod rotary;

pub use config::LlamaConfig;

use super::Engine;
use attention::Attention;
use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{Device, IndexOp, Module, Tensor};
use candle_nn::ops;
use rotary::Rotary;
use std::sync::Arc;
use worker::gguf::{self, Weights};
use worker::{Error, Result};

/// A llama-family model on a device.
pub struct LlamaEngine {
    config: LlamaConfig,
    embedding: Arc<QTensor>,
    blocks: Vec<Block>,
    norm: Norm,
    output: QMatMul,
    rotary: Rotary,
    device: Device,
}

struct Block {
    attention_norm: Norm,
    attention: Attention,
    ffn_norm: Norm,
    gate: QMatMul,
    up: QMatMul,
    down: QMatMul,
}

/// Division by the root mean square, times a weight.
struct Norm {
    weight: Tensor,
    epsilon: f32,
}

impl Module for Norm {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        ops::rms_norm(x, &self.weight, self.epsilon)
    }
}

/// Takes a file's tensors one after another.
struct Loader<'a> {
    file: &'a dyn Weights,
    device: &'a Device,
    /// Called with the bytes of every tensor that has arrived.
    progress: &'a dyn Fn(u64),
}

impl Loader<'_> {
    fn tensor(&self, name: &str) -> Result<Arc<QTensor>> {
        let tensor = gguf::load(self.file, name, self.device)?;
        (self.progress)(tensor.storage_size_in_bytes() as u64);
        Ok(Arc::new(tensor))
    }

    fn matrix(&self, name: &str) -> Result<QMatMul> {
        QMatMul::from_arc(self.tensor(name)?).map_err(Error::candle("loading the model"))
    }

    fn vector(&self, name: &str) -> Result<Tensor> {
        self.tensor(name)?
            .dequantize(self.device)
            .map_err(Error::candle("loading the model"))
    }
}

impl LlamaEngine {
    /// Loads the weights of a file whose [`LlamaConfig`] has been checked; `progress` is called with the bytes of each tensor.
    ///
    /// # Errors
    /// [`Error::Candle`] if the device has no room.
    pub fn load(
        config: LlamaConfig,
        file: &dyn Weights,
        device: &Device,
        progress: &dyn Fn(u64),
    ) -> Result<Self> {
        let loader = Loader {
            file,
            device,
            progress,
        };
        let norm = |name: &str| -> Result<Norm> {
            Ok(Norm {
                weight: loader.vector(name)?,
                epsilon: config.norm_epsilon,
            })
        };
        let embedding = loader.tensor("token_embd.weight")?;
        let output = match file.header().tensor("output.weight") {
            Some(_) => loader.matrix("output.weight")?,
            // Tied: the embedding table is the output matrix, too.
            None => {
                QMatMul::from_arc(embedding.clone()).map_err(Error::candle("loading the model"))?
            }
        };
        let blocks = (0..config.block_count)
            .map(|i| {
                let name = |part: &str| format!("blk.{i}.{part}.weight");
                Ok(Block {
                    attention_norm: norm(&name("attn_norm"))?,
                    attention: Attention {
                        query: loader.matrix(&name("attn_q"))?,
                        key: loader.matrix(&name("attn_k"))?,
                        value: loader.matrix(&name("attn_v"))?,
                        output: loader.matrix(&name("attn_output"))?,
                        heads: config.head_count as usize,
                        kv_heads: config.head_count_kv as usize,
                        head_dim: config.head_dim() as usize,
                        cache: attention::empty_cache(config.context_length),
                    },
                    ffn_norm: norm(&name("ffn_norm"))?,
                    gate: loader.matrix(&name("ffn_gate"))?,
                    up: loader.matrix(&name("ffn_up"))?,
                    down: loader.matrix(&name("ffn_down"))?,
                })
            })
            .collect::<Result<_>>()?;
        let factors = config
            .has_rope_factors
            .then(|| {
                loader
                    .vector(config::ROPE_FACTORS)?
                    .to_vec1()
                    .map_err(Error::candle("loading the model"))
            })
            .transpose()?;
        Ok(Self {
            rotary: Rotary::new(
                config.head_dim() as usize,
                config.rope_base,
                factors,
                device,
            ),
            norm: norm("output_norm.weight")?,
            embedding,
            output,
            blocks,
            device: device.clone(),
            config,
        })
    }

    /// The residual stream after the last norm: `(tokens, width)`.
    fn hidden(&mut self, tokens: &[u32], position: usize) -> candle_core::Result<Tensor> {
        let ids = Tensor::new(tokens, &self.device)?;
        let mut x = self.embedding.embedding(&ids)?;
        let (cos, sin) = self.rotary.tables(position, tokens.len())?;
        for block in &mut self.blocks {
            let attended = block.attention.forward(
                &block.attention_norm.forward(&x)?,
                &cos,
                &sin,
                position,
            )?;
            x = (x + attended)?;
            let normed = block.ffn_norm.forward(&x)?;
            let gated = (ops::silu(&block.gate.forward(&normed)?)? * block.up.forward(&normed)?)?;
            x = (x + block.down.forward(&gated)?)?;
        }
        self.norm.forward(&x)
    }
}

impl Engine for LlamaEngine {
    fn forward(&mut self, tokens: &[u32], position: usize) -> Result<Tensor> {
        self.hidden(tokens, position)
            .and_then(|hidden| hidden.narrow(0, tokens.len() - 1, 1))
            .and_then(|last| self.output.forward(&last)?.i(0))
            .map_err(Error::candle("running the model"))
    }

    fn forward_all(&mut self, tokens: &[u32], position: usize) -> Result<Tensor> {
        self.hidden(tokens, position)
            .and_then(|hidden| self.output.forward(&hidden))
            .map_err(Error::candle("running the model"))
    }

    fn context_length(&self) -> usize {
        self.config.context_length
    }

    fn vocab_size(&self) -> usize {
        self.config.vocab_size as usize
    }

    fn device(&self) -> &Device {
        &self.device
    }
}
