//! The blocks of a model from a file to a device.

mod adapters;
mod altup;
mod attention;
mod delta;
mod feed_forward;
mod griffin;
mod host;
mod latent;
mod lightning;
mod per_block;
mod rotary;
mod rwkv;
mod state_space;

use super::block::Block;
use super::config::{Base, DecoderConfig, MixerKind};
use super::experts::Streamer;
use super::head::Hidden;
use super::linear::{Linear, Weight};
use super::loader::Loader;
use super::lora::{Attached, Lora, Rows};
use super::mixers::{Both, FirstValues, Mixer};
use super::model::Source;
use super::network::Network;
use super::norm::Norm;
use super::part::Part;
use super::shares::Shares;
use super::temperature::Temperatures;
use super::tensors::POSITIONS;
use super::traits::Recurrence;
use crate::adapters::OUTPUT;
use crate::engine::api::KvDType;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use worker::gguf::Weights;
use worker::{Error, Result};

/// What activations are in: halves on a GPU if the matrices are, else f32.
fn activations(config: &DecoderConfig, file: &dyn Weights, device: &Device) -> DType {
    if device.is_cpu() {
        return DType::F32;
    }
    // The first block's last matrix, whatever the block has.
    let matrices = [
        "attn_output",
        "ssm_out",
        "shortconv.out_proj",
        "time_mix_output",
    ];
    let mut matrices = matrices.into_iter();
    let matrix = |part| file.header().tensor(&format!("blk.0.{part}.weight"));
    match matrices.find_map(matrix).and_then(|t| t.dtype().ok()) {
        // Models that scale their embedding so much go beyond what f16 can hold.
        Some(GgmlDType::F16) if config.embedding_scale.is_none() => DType::F16,
        Some(GgmlDType::BF16) => DType::BF16,
        _ => DType::F32,
    }
}

impl Network {
    /// See [`Decoder::load_part`](super::Decoder::load_part); of a shard, configuration, file and adapters are what it has
    /// of them.
    pub(super) fn load(
        source: &Source,
        part: &Part,
        device: &Device,
        progress: &dyn Fn(u64),
    ) -> Result<Self> {
        let (config, file, options) = (source.config, source.file, source.weights);
        let shard = source.shard;
        let host_blocks = host::host_blocks(config, file.header(), part, device, &options);
        let host_blocks = match shard {
            // All have to do the same, as the one with the least room has to.
            Some(shard) => (shard.largest(host_blocks as u16))
                .map_err(Error::candle("agreeing with the other GPUs"))?
                .into(),
            None => host_blocks,
        };
        let streamer = Arc::new(Streamer::new(&options));
        let activations = activations(config, file, device);
        let lora = Arc::new(Lora::default());
        let attached = Attached::new(source.adapters, &lora);
        let loader = Loader {
            config,
            file,
            device,
            activations,
            attached: &attached,
            progress,
            part,
            first_values: FirstValues::default(),
            notes: RefCell::default(),
            orders: RefCell::default(),
            options,
            host_blocks,
            streamer: &streamer,
            shard,
            taken: Cell::default(),
        };
        let c = config;
        let tied = !loader.has("output.weight");
        // Heads embed tokens, too.
        let embeds = part.is_first() || (source.heads && part.is_last());
        let table = (embeds || (tied && part.is_last()))
            .then(|| loader.matrix("token_embd.weight", c.vocab_size, c.width))
            .transpose()?;
        let output = match (part.is_last(), tied) {
            (false, _) => None,
            (true, false) => Some(loader.matrix("output.weight", c.output_rows, c.width)?),
            // Tied: the embedding table is the output matrix, too.
            (true, true) => table.clone(),
        };
        let blocks = (part.blocks.clone())
            .map(|block| loader.block(block))
            .collect::<Result<_>>()?;
        let output = output.map(|output| loader.output(output)).transpose()?;
        let embedding_adapters = match part.is_first() {
            true => attached
                .of_embedding(device, activations)
                .map_err(Error::candle("loading adapters"))?,
            false => None,
        };
        streamer
            .reserve(device)
            .map_err(Error::candle("reserving memory for experts of the host"))?;
        Ok(Self {
            adapters: source.adapters.len(),
            unused_adapters: attached.unused(),
            part: part.clone(),
            tables: loader.tables(Base::Global, source.context)?,
            local_tables: loader.tables(Base::Local, source.context)?,
            streams: loader.streams()?,
            per_block: match part.is_first() {
                true => loader.per_block()?,
                false => None,
            },
            first_values: loader.first_values.clone(),
            temperatures: Temperatures::new(config.temperature, activations),
            norm: match (part.is_last(), c.traits.plain_norms) {
                (false, _) => None,
                (true, true) => Some(loader.plain_norm(c.traits.norm, c.width, c.epsilon)?),
                (true, false) => Some(loader.norm(c.output_norm(file.header()))?),
            },
            positions: match part.is_first() {
                true => loader.positions()?,
                false => None,
            },
            output,
            embedding: table.filter(|_| embeds),
            embedding_adapters,
            embedding_norm: match c.output_norm(file.header()) {
                "output_norm" if part.is_first() => loader.norm_if_there("token_embd_norm")?,
                _ => None,
            },
            blocks,
            heads: Vec::new(),
            hidden: Hidden::default(),
            memories: Vec::new(),
            block_size: 0,
            kv_dtype: KvDType::F32.into(),
            cache_blocks: 0,
            slots: 0,
            window_blocks: 0,
            activations,
            notes: loader.notes.take(),
            on_block: None,
            weight_bytes: loader.taken.get(),
            weight_options: options,
            host_blocks,
            streamer: streamer.clone(),
            device: device.clone(),
            lora: lora.clone(),
            shard: shard.cloned(),
            config: config.clone(),
        })
    }
}

impl Loader<'_> {
    pub(in crate::engine::decoder) fn block(&self, block: usize) -> Result<Block> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.{part}");
        if c.traits.recurrence == Recurrence::Rwkv7 {
            return Ok(Block {
                mixer: Mixer::Recurrent(self.recurrent(block)?),
                feed_forward: None,
                attention_norm: None,
                attention_post_norm: None,
                ffn_norm: None,
                ffn_post_norm: None,
                parallel: false,
                residual_scale: None,
                altup: None,
                beside: None,
                per_block: None,
                stream_scale: None,
                normed_stream: None,
                shares: None,
            });
        }
        let [attention_norm, ffn_norm] = self.norms_before(block)?;
        let shares = Shares::of_block(self.shard, block);
        let mixer = match c.mixer(block) {
            MixerKind::Attention => match &c.latent {
                Some(shape) => Mixer::Latent(Box::new(self.latent(block, shape)?)),
                None => Mixer::Attention(Box::new(self.attention(block)?)),
            },
            MixerKind::Recurrent => Mixer::Recurrent(self.recurrent(block)?),
            MixerKind::Both => Mixer::Both(Box::new(Both {
                attention: self.attention(block)?,
                recurrent: self.recurrent(block)?,
                counts: (shares.as_ref()).is_none_or(Shares::counts_beside_mixer),
            })),
            MixerKind::FeedForward => Mixer::FeedForward(Box::new(self.feed_forward(block)?)),
        };
        let feed_forward = c.has_feed_forward().then(|| self.feed_forward(block));
        Ok(Block {
            mixer,
            feed_forward: feed_forward.transpose()?,
            attention_norm,
            attention_post_norm: match c.traits.post_norms {
                true => self.norm_if_there(&name("post_attention_norm"))?,
                false => None,
            },
            ffn_norm,
            ffn_post_norm: self.norm_if_there(&name("post_ffw_norm"))?,
            parallel: c.parallel,
            residual_scale: c.residual_scale.filter(|_| !c.traits.normed_stream),
            altup: self.altup(block)?,
            beside: self.beside(block)?,
            per_block: self.per_block_input(block)?,
            stream_scale: self.stream_scale(block)?,
            normed_stream: (c.traits.normed_stream).then_some(c.residual_scale.unwrap_or(1.0)),
            shares,
        })
    }

    /// The norms before what mixes tokens and before the feed-forward part, as far as there are some.
    fn norms_before(&self, block: usize) -> Result<[Option<Norm>; 2]> {
        let c = self.config;
        if c.traits.plain_norms {
            let norm = || self.plain_norm(c.traits.norm, c.width, c.epsilon);
            return Ok([Some(norm()?), Some(norm()?)]);
        }
        let name = |part: &str| format!("blk.{block}.{part}");
        let first = self.norm_if_there(&name("attn_norm"))?;
        // Where there are two norms before two parts beside each other, the second is attention's.
        if c.parallel {
            if let Some(second) = self.norm_if_there(&name("attn_norm_2"))? {
                return Ok([Some(second), first]);
            }
        }
        let ffn_norm = c.ffn_norm(self.file.header(), &name);
        Ok([first, self.norm_if_there(&name(ffn_norm))?])
    }

    /// The output matrix with its bias and what adapters have for it.
    fn output(&self, matrix: Weight) -> Result<Linear> {
        let c = self.config;
        let rows = Rows {
            tensor: OUTPUT,
            range: 0..c.output_rows,
        };
        let adapters = self
            .attached
            .of_output(&rows, c.width, self.device, self.activations)
            .map_err(Error::candle("loading adapters"))?;
        let linear = Linear::new(matrix, self.bias(OUTPUT)?);
        let linear = linear.with_extras(self.extras(OUTPUT, c.width)?);
        Ok(linear.with_adapters(adapters))
    }

    /// The embeddings of positions, if the model has some.
    fn positions(&self) -> Result<Option<Weight>> {
        let c = self.config;
        let table = || self.matrix(POSITIONS, c.context_length, c.width);
        c.traits.learned_positions.then(table).transpose()
    }
}
