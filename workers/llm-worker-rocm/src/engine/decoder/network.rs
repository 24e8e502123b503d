//! The weights of a model on a device, its cache, and a pass of rows through both.

use super::altup::Streams;
use super::block::Block;
use super::config::DecoderConfig;
use super::crossing::{Entering, Left, Passed};
use super::experts::Streamer;
use super::fingerprint::Notes;
use super::head::{Head, Hidden};
use super::input::Input;
use super::linear::{Linear, Weight};
use super::lora::{Lora, MatrixAdapters, Unused};
use super::media::MediaPass;
use super::memory::{LayerMemory, StateBatch};
use super::mixers::{FirstValues, Pass};
use super::norm::{Norm, Residual};
use super::part::Part;
use super::per_block::PerBlock;
use super::rotary::Tables;
use super::temperature::Temperatures;
use crate::engine::api::{KvTypes, WeightBytes, WeightOptions};
use crate::engine::forward::{CacheOptions, Step};
use crate::engine::media::StepMedia;
use crate::engine::shard::Shard;
use candle_core::{bail, DType, Device, Result, Tensor};
use candle_rocm_flash_attn::paged::{CacheFormat, PagedBatch};
use std::cell::RefCell;
use std::sync::Arc;

/// A model's weights on a device, or those of one stage of it, and its cache.
pub(super) struct Network {
    pub config: DecoderConfig,
    /// Which blocks it has. The table of embeddings is with the first, and with heads; norm and output matrix are with
    /// the last.
    pub part: Part,
    pub embedding: Option<Weight>,
    /// What adapters have for it.
    pub embedding_adapters: Option<Arc<MatrixAdapters>>,
    /// Those of positions, which are added.
    pub positions: Option<Weight>,
    /// Behind the embedding.
    pub embedding_norm: Option<Norm>,
    pub blocks: Vec<Block>,
    pub norm: Option<Norm>,
    pub output: Option<Linear>,
    /// The file's rotary tables, and those of blocks with a base of their own.
    pub tables: Tables,
    pub local_tables: Tables,
    /// What predicts further tokens, if that was asked for: each one further than the one before.
    pub heads: Vec<Head>,
    /// What they begin with.
    pub hidden: Hidden,
    pub temperatures: Temperatures,
    /// What makes several streams of one and one of several, if there are several.
    pub streams: Option<Streams>,
    /// What makes what blocks are given besides the stream.
    pub per_block: Option<PerBlock>,
    /// What RWKV's blocks share.
    pub first_values: FirstValues,
    /// One for each block.
    pub memories: Vec<LayerMemory>,
    pub block_size: usize,
    /// How keys and values are stored.
    pub kv_dtype: KvTypes,
    /// Blocks of the other caches.
    pub cache_blocks: usize,
    /// Slots of recurrent state.
    pub slots: usize,
    /// Which rows want which adapters, and how many there are.
    pub lora: Arc<Lora>,
    pub adapters: usize,
    /// Tensors of adapters that belong to none of its matrices.
    pub unused_adapters: Unused,
    /// Blocks of the caches of blocks with a sliding window; 0 if these have the same ones as the others.
    pub window_blocks: usize,
    pub activations: DType,
    /// What tells its weights from others.
    pub notes: Notes,
    /// Is told of blocks, if anybody is.
    pub on_block: Option<OnBlock>,
    /// What the weights take, and where they were to go.
    pub weight_bytes: WeightBytes,
    pub weight_options: WeightOptions,
    /// Blocks, from the first on, whose experts are in the host's memory, and what brings those to the device.
    pub host_blocks: usize,
    pub streamer: Arc<Streamer>,
    /// What others have of the model, where several GPUs share it.
    pub shard: Option<Shard>,
    pub device: Device,
}

/// Where the rows of a pass leave keys and values, also those of a sliding window, and states.
pub(super) type Places<'a> = (
    &'a PagedBatch,
    Option<&'a PagedBatch>,
    Option<&'a StateBatch>,
);

/// Is told of each block of a prompt's pass once it is enqueued, by its place among the own ones.
pub(crate) type OnBlock = Arc<dyn Fn(usize) -> Result<()> + Send + Sync>;

impl Network {
    /// Computes new tokens and writes their keys and values, as
    /// [`Forward::forward`](crate::engine::forward::Forward::forward) does, where some of the rows may have more than
    /// their token; a stage behind the first goes on with what `arrived` from the one before. Gives what the output
    /// matrix would be applied to: the rows that are asked for behind the last norm, `(outputs, width)`; of a stage
    /// before the last, what the next one goes on with.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn hidden(
        &mut self,
        step: &Step,
        media: &StepMedia,
        arrived: Option<&[Tensor]>,
    ) -> Result<Left> {
        let sequences = step.paged();
        let batch = PagedBatch::new(&sequences, self.block_size, &self.device)?;
        let windows = match self.window_blocks {
            0 => None,
            _ => {
                let sequences = step.paged_windows();
                Some(PagedBatch::new(&sequences, self.block_size, &self.device)?)
            }
        };
        let states = match self.is_recurrent() {
            true => Some(StateBatch::new(step, self.slots, &self.device)?),
            false => None,
        };
        let ids = Tensor::new(step.tokens.as_slice(), &self.device)?;
        let axes = &self.config.rope.axes;
        let mut media = MediaPass::new(
            media,
            step,
            (self.block_size, self.window_blocks > 0),
            (&self.tables, axes),
            &self.part,
        )?;
        media.ahead_in_windows = self.config.traits.ahead_in_windows;
        let places = (&batch, windows.as_ref(), states.as_ref());
        let told = self.on_block.clone();
        let mut stream = match self.run_with(&ids, places, &media, arrived, told.as_ref())? {
            Passed::Stream(mut stream) => stream.sum()?,
            Passed::Crossing(crossing) => return Ok(Left::Crossing(crossing)),
        };
        let has_heads = !self.heads.is_empty();
        if has_heads {
            let hidden = self.norm()?.forward(&stream)?;
            self.keep_hidden(&hidden);
            stream = hidden;
        }
        let wanted = match step.outputs.len() {
            0 => Tensor::zeros((0, self.config.width), self.activations, &self.device)?,
            all if all == step.tokens.len() => stream,
            _ => {
                let rows = Tensor::new(step.outputs.as_slice(), &self.device)?;
                stream.index_select(&rows, 0)?
            }
        };
        Ok(Left::Rows(match has_heads || step.outputs.is_empty() {
            true => wanted,
            false => self.norm()?.forward(&wanted)?,
        }))
    }

    /// The table of embeddings.
    pub(super) fn embedding(&self) -> Result<&Weight> {
        match &self.embedding {
            Some(embedding) => Ok(embedding),
            None => bail!("this stage of the model has no embeddings"),
        }
    }

    /// The last norm.
    pub(super) fn norm(&self) -> Result<&Norm> {
        match &self.norm {
            Some(norm) => Ok(norm),
            None => bail!("this stage of the model is not the last one"),
        }
    }

    /// The output matrix.
    pub(super) fn output(&self) -> Result<&Linear> {
        match &self.output {
            Some(output) => Ok(output),
            None => bail!("this stage of the model is not the last one"),
        }
    }

    /// Whether sequences leave recurrent states behind.
    pub(super) fn is_recurrent(&self) -> bool {
        self.state_bytes() > 0
    }

    /// Bytes of a slot of recurrent state.
    pub(super) fn state_bytes(&self) -> usize {
        let parts = self.blocks.iter().flat_map(|block| block.mixer.state());
        parts.map(|part| part.bytes()).sum()
    }

    /// The pass of rows through its blocks.
    pub(super) fn run(
        &mut self,
        ids: &Tensor,
        places: Places,
        arrived: Option<&[Tensor]>,
    ) -> Result<Passed> {
        self.run_with(ids, places, &MediaPass::default(), arrived, None)
    }

    /// What blocks begin with in the first stage.
    fn embed(&self, ids: &Tensor, batch: &PagedBatch, media: &MediaPass) -> Result<Entering> {
        let mut x = self.embedding()?.rows(ids, self.activations)?;
        if let Some(adapters) = &self.embedding_adapters {
            x = adapters.add_rows(x, ids)?;
        }
        if let Some(scale) = self.config.embedding_scale {
            x = (x * scale)?;
        }
        let mut x = media.placed(x)?;
        if let Some(positions) = &self.positions {
            let ids = batch.position_ids(&self.device)?;
            x = (x + positions.rows(&ids, self.activations)?)?;
        }
        if let Some(norm) = &self.embedding_norm {
            x = norm.forward(&x)?;
        }
        let per_block = match &self.per_block {
            Some(per_block) => Some(per_block.rows(&media.text_ids(ids)?, &x)?),
            None => None,
        };
        let stream = match &self.streams {
            Some(streams) => streams.spread(&x)?,
            None => x,
        };
        Ok(Entering { stream, per_block })
    }

    fn run_with(
        &mut self,
        ids: &Tensor,
        (batch, windows, states): Places,
        media: &MediaPass,
        arrived: Option<&[Tensor]>,
        told: Option<&OnBlock>,
    ) -> Result<Passed> {
        let Entering { stream, per_block } = match (arrived, self.part.is_first()) {
            (Some(arrived), false) => self.enter(arrived)?,
            (None, true) => self.embed(ids, batch, media)?,
            _ => bail!(
                "a stage behind the first goes on with what the one before has left, no other does"
            ),
        };
        let tell = |layer: usize| told.map_or(Ok(()), |told| told(layer));
        let uneven = self.tables.uneven_rows(batch)?;
        let pass = Pass {
            batch,
            windows,
            states,
            uneven,
            global: self.tables.rows(batch.positions())?,
            local: self.local_tables.rows(batch.positions())?,
            per_block,
            temperatures: self.temperatures.rows(batch, &self.device)?,
            media,
            chosen: RefCell::new(None),
        };
        if let Some(streams) = &self.streams {
            let mut all = stream;
            for (layer, block) in self.blocks.iter().enumerate() {
                let Some(altup) = &block.altup else { continue };
                all = block.forward_streams(altup, &all, &mut self.memories, layer, &pass)?;
                tell(layer)?;
            }
            let Pass { per_block, .. } = pass;
            return Ok(match self.part.is_last() {
                true => Passed::Stream(Residual::new(streams.join(&all)?)),
                false => Passed::Crossing(self.leave(all, per_block)?),
            });
        }
        let mut stream = Residual::new(stream);
        for (layer, block) in self.blocks.iter().enumerate() {
            block.forward(&mut stream, &mut self.memories, layer, &pass)?;
            let number = self.part.blocks.start + layer;
            if media.has_behind(number) {
                let deep = media.behind(number, &stream.sum()?)?;
                stream.add(deep)?;
            }
            tell(layer)?;
        }
        let Pass { per_block, .. } = pass;
        Ok(match self.part.is_last() {
            true => Passed::Stream(stream),
            false => Passed::Crossing(self.leave(stream.sum()?, per_block)?),
        })
    }

    /// Logits of rows behind the last norm.
    pub(super) fn logits(&self, hidden: &Input) -> Result<Tensor> {
        self.logits_by(self.output()?, hidden)
    }

    /// The same by another output matrix.
    pub(super) fn logits_by(&self, output: &Linear, hidden: &Input) -> Result<Tensor> {
        let mut logits = output.forward(hidden)?.to_dtype(DType::F32)?;
        if let Some(scale) = self.config.logit_scale {
            logits = (logits * scale)?;
        }
        if let Some(cap) = self.config.logit_cap {
            logits = ((logits / f64::from(cap))?.tanh()? * f64::from(cap))?;
        }
        match &self.shard {
            Some(shard) => shard.gather(logits),
            None => Ok(logits),
        }
    }

    /// Reserves the cache, in place of one reserved before.
    pub(super) fn reserve(&mut self, cache: &CacheOptions) -> Result<()> {
        self.memories = Vec::new();
        let memory = |block: &Block| {
            let windowed = cache.window_blocks > 0 && block.mixer.window().is_some();
            let blocks = if windowed {
                cache.window_blocks
            } else {
                cache.blocks
            };
            block
                .mixer
                .reserve(&CacheOptions { blocks, ..*cache }, &self.device)
        };
        self.memories = self.blocks.iter().map(memory).collect::<Result<_>>()?;
        self.block_size = cache.block_size;
        self.kv_dtype = cache.dtype;
        self.cache_blocks = cache.blocks;
        self.slots = cache.states;
        self.window_blocks = cache.window_blocks;
        self.reserve_heads(cache)
    }

    /// Bytes of a token's keys and values.
    pub(super) fn token_bytes(&self, format: CacheFormat) -> usize {
        let heads = self.heads.iter().map(|head| &head.block);
        let blocks = self.blocks.iter().chain(heads);
        blocks.map(|block| block.mixer.token_bytes(format)).sum()
    }

    /// Of these, those of blocks with a sliding window.
    pub(super) fn window_bytes(&self, format: CacheFormat) -> usize {
        let windowed = |block: &&Block| block.mixer.window().is_some();
        let windowed = self.blocks.iter().filter(windowed);
        windowed.map(|block| block.mixer.token_bytes(format)).sum()
    }

    /// Keys before its own that a row sees at most in blocks with a sliding window.
    pub(super) fn window(&self) -> Option<usize> {
        let windows = self.blocks.iter().filter_map(|block| block.mixer.window());
        windows.max()
    }
}
