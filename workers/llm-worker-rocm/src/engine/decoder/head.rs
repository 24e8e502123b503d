//! A head that predicts the token behind the next one, which files of some families have ("DeepSeek-V3 Technical
//! Report", section 2.2, <https://arxiv.org/abs/2412.19437>): a block of its own over the hidden state behind the last
//! norm and the embedding of the next token.
//!
//! It keeps keys and values at the positions of the hidden states, in a cache with the blocks of the others. Behind its
//! own output as the hidden state it predicts one more token, and so on.

use super::block::Block;
use super::linear::{Linear, Weight};
use super::loader::Loader;
use super::lora::{Attached, Lora};
use super::media::MediaPass;
use super::memory::LayerMemory;
use super::mixers::{FirstValues, Pass};
use super::network::Network;
use super::norm::{Norm, Residual};
use crate::engine::forward::{CacheOptions, HeadStep, HiddenRows};
use candle_core::{bail, DType, Result, Tensor};
use candle_rocm_flash_attn::paged::PagedBatch;
use std::cell::{Cell, RefCell};
use worker::gguf::Weights;

/// The head's weights and cache.
pub(super) struct Head {
    /// Its own table and matrix, where it does not share the model's.
    embedding: Option<Weight>,
    output: Option<Linear>,
    embedding_norm: Norm,
    hidden_norm: Norm,
    /// Of both norms' results behind each other to the block's input.
    join: Linear,
    pub(super) block: Block,
    /// Before the output matrix; the model's last norm if there is none.
    norm: Option<Norm>,
    memory: Vec<LayerMemory>,
    /// Hidden states behind its last pass: a row for each output.
    hidden: Option<Tensor>,
}

impl Loader<'_> {
    /// The first head of a file, if it has one.
    pub(super) fn head(&self) -> worker::Result<Option<Head>> {
        let c = self.config;
        let name = |part: &str| format!("blk.{}.nextn.{part}", c.blocks);
        if !self.has(&name("eh_proj.weight")) {
            return Ok(None);
        }
        let own = |part: &str| -> worker::Result<Option<Weight>> {
            let name = name(&format!("{part}.weight"));
            self.has(&name)
                .then(|| self.matrix(&name, c.vocab_size, c.width))
                .transpose()
        };
        Ok(Some(Head {
            embedding: own("embed_tokens")?,
            output: own("shared_head_head")?.map(|weight| Linear::new(weight, None)),
            embedding_norm: self.norm(&name("enorm"))?,
            hidden_norm: self.norm(&name("hnorm"))?,
            join: self.linear(&name("eh_proj"), c.width, 2 * c.width)?,
            block: self.block(c.blocks)?,
            norm: self.norm_if_there(&name("shared_head_norm"))?,
            memory: Vec::new(),
            hidden: None,
        }))
    }
}

impl Network {
    /// Loads the head; gives whether the file has one.
    pub(super) fn load_head(
        &mut self,
        file: &dyn Weights,
        progress: &dyn Fn(u64),
    ) -> worker::Result<bool> {
        let lora = Lora::default();
        let attached = Attached::new(&[], &lora);
        let loader = Loader {
            config: &self.config,
            file,
            device: &self.device,
            activations: self.activations,
            attached: &attached,
            progress,
            first_values: FirstValues::default(),
            digest: RefCell::default(),
            options: self.weight_options,
            host_blocks: self.host_blocks,
            streamer: &self.streamer,
            taken: Cell::new(self.weight_bytes),
        };
        let head = loader.head()?;
        self.weight_bytes = loader.taken.get();
        self.head = head;
        self.streamer
            .reserve(&self.device)
            .map_err(worker::Error::candle(
                "reserving memory for experts of the host",
            ))?;
        Ok(self.head.is_some())
    }

    /// Reserves the head's cache beside that of the blocks.
    pub(super) fn reserve_head(&mut self, cache: &CacheOptions) -> Result<()> {
        let reserve = |head: &Head| head.block.mixer.reserve(cache, &self.device);
        let memory = self.head.as_ref().map(reserve).transpose()?;
        if let (Some(head), Some(memory)) = (&mut self.head, memory) {
            head.memory = vec![memory];
            head.hidden = None;
        }
        self.hidden = None;
        Ok(())
    }

    /// Keeps the hidden states of a step for the head, if there is one.
    pub(super) fn keep_hidden(&mut self, hidden: &Tensor) {
        self.hidden = self.head.as_ref().map(|_| hidden.clone());
    }

    /// See [`Forward::predict`](crate::engine::forward::Forward::predict).
    pub(super) fn predict(&mut self, step: &HeadStep) -> Result<Tensor> {
        let Some(mut head) = self.head.take() else {
            bail!("the model has no head that predicts further tokens")
        };
        let logits = self.predict_by(&mut head, step);
        self.head = Some(head);
        logits
    }

    fn predict_by(&mut self, head: &mut Head, step: &HeadStep) -> Result<Tensor> {
        let (hidden, rows) = match &step.hidden {
            HiddenRows::OfStep(rows) => (self.hidden.clone(), rows),
            HiddenRows::OfHead(rows) => (head.hidden.take(), rows),
        };
        let Some(hidden) = hidden else {
            bail!("there are no hidden states to predict from")
        };
        let rows = Tensor::new(rows.as_slice(), &self.device)?;
        let hidden = hidden.index_select(&rows, 0)?;
        let ids = Tensor::new(step.step.tokens.as_slice(), &self.device)?;
        let table = head.embedding.as_ref().unwrap_or(&self.embedding);
        let mut embedded = table.rows(&ids, self.activations)?;
        if let Some(scale) = self.config.embedding_scale {
            embedded = (embedded * scale)?;
        }
        let both = [
            head.embedding_norm.forward(&embedded)?,
            head.hidden_norm.forward(&hidden)?,
        ];
        let joined = head.join.forward(&Tensor::cat(&both, 1)?.into())?;
        let sequences = step.step.paged();
        let batch = PagedBatch::new(&sequences, self.block_size, &self.device)?;
        let media = MediaPass::default();
        let uneven = self.tables.uneven_rows(&batch)?;
        let pass = Pass {
            uneven,
            media: &media,
            batch: &batch,
            windows: None,
            states: None,
            global: self.tables.rows(batch.positions())?,
            local: self.local_tables.rows(batch.positions())?,
            per_block: None,
            temperatures: self.temperatures.rows(&batch, &self.device)?,
            chosen: RefCell::new(None),
        };
        let mut stream = Residual::new(joined);
        head.block
            .forward(&mut stream, &mut head.memory, 0, &pass)?;
        let outputs = &step.step.outputs;
        if outputs.is_empty() {
            return Tensor::zeros((0, self.config.vocab_size), DType::F32, &self.device);
        }
        let outputs = Tensor::new(outputs.as_slice(), &self.device)?;
        let stream = stream.sum()?.index_select(&outputs, 0)?;
        let hidden = head.norm.as_ref().unwrap_or(&self.norm).forward(&stream)?;
        head.hidden = Some(hidden.clone());
        self.logits_by(head.output.as_ref().unwrap_or(&self.output), &hidden.into())
    }
}
