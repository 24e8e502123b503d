//! Heads that predict tokens behind the next one, which files of some families have ("DeepSeek-V3 Technical Report",
//! section 2.2, <https://arxiv.org/abs/2412.19437>): a block of its own over the hidden state behind the last norm and
//! the embedding of the next token.
//!
//! A head keeps keys and values at the positions of the hidden states, in a cache with the blocks of the others. Behind
//! its own output as the hidden state a lone head predicts one more token, and so on; of several, each predicts one
//! token further than the one before, from that one's outputs.

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

/// Rows that hidden states of steps of a shape have room for at least.
const LEAST_ROWS: usize = 16;

/// A head's weights and cache.
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
    pub(super) memory: Vec<LayerMemory>,
}

/// Hidden states on their way to heads, `(rows, width)`.
#[derive(Default)]
pub(super) struct Hidden {
    /// Rows of the model's last step behind the last norm.
    of_step: Option<Tensor>,
    /// Rows of earlier steps.
    kept: Option<Tensor>,
    /// Rows of the last pass of a head behind its last norm.
    of_head: Option<Tensor>,
    /// Where passes of a shape leave theirs: always the same memory, so that launches of graphs find it.
    shared: Option<Tensor>,
    /// Whether the last step, or the last pass of a head, is there.
    is_shared: bool,
}

impl Hidden {
    /// Makes room for so many rows behind the last norm where passes of a shape leave theirs. Gives whether that is other memory now.
    pub(super) fn make_room(&mut self, rows: usize, norm: Option<&Norm>) -> Result<bool> {
        let room = self.shared.as_ref().map_or(0, |shared| shared.dims()[0]);
        let Some(like) = norm.map(|norm| &norm.weight).filter(|_| rows > room) else {
            return Ok(false);
        };
        let shape = (rows.next_power_of_two().max(LEAST_ROWS), like.dim(0)?);
        self.shared = Some(Tensor::zeros(shape, like.dtype(), like.device())?);
        Ok(true)
    }

    /// What passes of a shape left there.
    pub(super) fn shared(&self) -> Result<&Tensor> {
        match &self.shared {
            Some(shared) => Ok(shared),
            None => bail!("there is no room for the hidden states of a step"),
        }
    }

    /// Leaves rows there.
    fn share(&self, rows: &Tensor) -> Result<()> {
        let shared = self.shared()?;
        shared.slice_set(&rows.to_dtype(shared.dtype())?.contiguous()?, 0, 0)
    }

    /// Takes note that so many rows are there, of the model or of a head.
    pub(super) fn is_left(&mut self, rows: usize, by_head: bool) -> Result<()> {
        let left = Some(self.shared()?.narrow(0, 0, rows)?);
        match by_head {
            true => self.of_head = left,
            false => (self.of_step, self.of_head) = (left, None),
        }
        self.is_shared = true;
        Ok(())
    }

    /// Whether a pass of a shape finds what it begins with.
    fn is_ready(&self, rows: &HiddenRows) -> bool {
        let lone = self.kept.is_none();
        lone && self.is_shared
            && match rows {
                HiddenRows::OfStep(_) => self.of_head.is_none(),
                HiddenRows::OfHead(_) => self.of_head.is_some(),
            }
    }

    /// The rows that a pass begins with.
    fn take(&mut self, step: &HeadStep) -> Result<Tensor> {
        let (of, rows) = match &step.hidden {
            HiddenRows::OfStep(rows) => (&self.of_step, rows),
            HiddenRows::OfHead(rows) => (&self.of_head, rows),
        };
        let Some(of) = of else {
            bail!("there are no hidden states to predict from")
        };
        let of = match (&step.hidden, &self.kept) {
            (HiddenRows::OfStep(_), Some(kept)) => Tensor::cat(&[of, kept], 0)?,
            _ => of.clone(),
        };
        let some = |rows: &[u32]| of.index_select(&Tensor::new(rows, of.device())?, 0);
        if let HiddenRows::OfStep(_) = step.hidden {
            self.kept = match step.keep.is_empty() {
                true => None,
                false => Some(some(&step.keep)?),
            };
        }
        some(rows)
    }
}

impl Loader<'_> {
    /// The head in a block behind the model's own.
    fn head(&self, block: usize) -> worker::Result<Head> {
        let c = self.config;
        let name = |part: &str| format!("blk.{block}.nextn.{part}");
        let output = match self.has("output.weight") {
            true => "output",
            false => "token_embd",
        };
        let own = |part: &str, of_model: &str, rows: usize| -> worker::Result<Option<Weight>> {
            let (part, of_model) = (name(part), of_model.to_string());
            let [own, same] = [&part, &of_model].map(|name| format!("{name}.weight"));
            let has_own = self.has(&own)
                && !(self.is_same(&own, &same)? && self.have_same_extras(&[part, of_model]));
            has_own
                .then(|| self.matrix(&own, rows, c.width))
                .transpose()
        };
        let of_output = self.extras(&name("shared_head_head"), c.width)?;
        let norm = format!("blk.{block}.{}", c.head_norm(self.file.header(), block));
        let norm = norm.strip_suffix(".weight").unwrap_or(&norm);
        Ok(Head {
            embedding: own("embed_tokens", "token_embd", c.vocab_size)?,
            output: own("shared_head_head", output, c.output_rows)?
                .map(|weight| Linear::new(weight, None).with_extras(of_output)),
            embedding_norm: self.norm(&name("enorm"))?,
            hidden_norm: self.norm(&name("hnorm"))?,
            join: self.linear(&name("eh_proj"), c.width, 2 * c.width)?,
            block: self.block(block)?,
            norm: self.norm_if_there(norm)?,
            memory: Vec::new(),
        })
    }

    /// Whether two tensors hold the same: checkpoints have copies of the model's largest matrices for their heads.
    fn is_same(&self, one: &str, other: &str) -> worker::Result<bool> {
        let infos = [self.info(one)?, self.info(other)?];
        let [(a, format), (b, of_other)] = infos;
        if format != of_other || a.dims != b.dims {
            return Ok(false);
        }
        let same = self.file.bytes(one, a) == self.file.bytes(other, b);
        self.file.give_back(one, a);
        self.file.give_back(other, b);
        Ok(same)
    }
}

impl Network {
    /// Loads the file's heads, so many.
    pub(super) fn load_heads(
        &mut self,
        count: usize,
        file: &dyn Weights,
        progress: &dyn Fn(u64),
    ) -> worker::Result<()> {
        let lora = Lora::default();
        let attached = Attached::new(&[], &lora);
        let loader = Loader {
            config: &self.config,
            file,
            device: &self.device,
            activations: self.activations,
            attached: &attached,
            progress,
            part: &self.part,
            first_values: FirstValues::default(),
            notes: RefCell::default(),
            orders: RefCell::default(),
            options: self.weight_options,
            host_blocks: self.host_blocks,
            streamer: &self.streamer,
            shard: self.shard.as_ref(),
            taken: Cell::new(self.weight_bytes),
        };
        let first = self.config.blocks;
        let heads = (first..first + count).map(|block| loader.head(block));
        let heads = heads.collect::<worker::Result<_>>()?;
        let taken = loader.taken.get();
        // What is saved is of both.
        let notes = loader.notes.take();
        self.notes.merge(&notes, 0);
        self.heads = heads;
        self.weight_bytes = taken;
        self.streamer
            .reserve(&self.device)
            .map_err(worker::Error::candle(
                "reserving memory for experts of the host",
            ))?;
        Ok(())
    }

    /// Reserves the heads' caches beside those of the blocks.
    pub(super) fn reserve_heads(&mut self, cache: &CacheOptions) -> Result<()> {
        self.hidden = Hidden::default();
        for head in &mut self.heads {
            // Before there are two of them.
            head.memory = Vec::new();
            head.memory = vec![head.block.mixer.reserve(cache, &self.device)?];
        }
        Ok(())
    }

    /// The hidden states that the last step has left for the heads, if there are any.
    pub(super) fn kept_hidden(&self) -> Option<Tensor> {
        self.hidden.of_step.clone()
    }

    /// Keeps the hidden states of a step for the heads, if there are any.
    pub(super) fn keep_hidden(&mut self, hidden: &Tensor) {
        if !self.heads.is_empty() {
            self.hidden.of_step = Some(hidden.clone());
            (self.hidden.of_head, self.hidden.is_shared) = (None, false);
        }
    }

    /// The same of a step of a shape: leaves them where launches of graphs find them.
    pub(super) fn share_hidden(&self, hidden: &Tensor) -> Result<()> {
        match self.heads.is_empty() {
            true => Ok(()),
            false => self.hidden.share(hidden),
        }
    }

    /// Whether a pass of a head can be one of a shape, whose hidden states are where launches of graphs find them.
    pub(super) fn is_of_shape(&self, step: &HeadStep) -> bool {
        self.device.is_rocm() && self.heads.len() == 1 && self.hidden.is_ready(&step.hidden)
    }

    /// See [`Forward::predict`](crate::engine::forward::Forward::predict).
    pub(super) fn predict(&mut self, step: &HeadStep) -> Result<Tensor> {
        let mut heads = std::mem::take(&mut self.heads);
        let logits = match heads.get_mut(step.head) {
            Some(head) => self.predict_by(head, step),
            None => Err(candle_core::Error::msg(format!(
                "the model has no head {} that predicts further tokens",
                step.head
            ))),
        };
        self.heads = heads;
        logits
    }

    fn predict_by(&mut self, head: &mut Head, step: &HeadStep) -> Result<Tensor> {
        let hidden = self.hidden.take(step)?;
        let ids = Tensor::new(step.step.tokens.as_slice(), &self.device)?;
        let sequences = step.step.paged();
        let batch = PagedBatch::new(&sequences, self.block_size, &self.device)?;
        let hidden = self.pass_of(head, &ids, &hidden, &batch)?;
        self.hidden.of_head = Some(hidden.clone());
        self.hidden.is_shared = false;
        let outputs = &step.step.outputs;
        if outputs.is_empty() {
            return Tensor::zeros((0, self.config.vocab_size), DType::F32, &self.device);
        }
        let outputs = Tensor::new(outputs.as_slice(), &self.device)?;
        self.logits_of(head, &hidden.index_select(&outputs, 0)?)
    }

    /// A pass of the only head whose numbers are on the device: rows of the hidden states that are where launches of
    /// graphs find them, and the tokens behind. Leaves its own there, and gives the logits of all rows.
    pub(super) fn predict_by_shape(
        &mut self,
        ids: &Tensor,
        rows: &Tensor,
        batch: &PagedBatch,
    ) -> Result<Tensor> {
        let mut heads = std::mem::take(&mut self.heads);
        let logits = self.predict_with(&mut heads, ids, rows, batch);
        self.heads = heads;
        logits
    }

    fn predict_with(
        &mut self,
        heads: &mut [Head],
        ids: &Tensor,
        rows: &Tensor,
        batch: &PagedBatch,
    ) -> Result<Tensor> {
        let Some(head) = heads.first_mut() else {
            bail!("the model has no head that predicts further tokens")
        };
        let hidden = self.hidden.shared()?.index_select(rows, 0)?;
        let hidden = self.pass_of(head, ids, &hidden, batch)?;
        self.hidden.share(&hidden)?;
        self.logits_of(head, &hidden)?.contiguous()
    }

    /// The rows behind a head's last norm.
    fn pass_of(
        &mut self,
        head: &mut Head,
        ids: &Tensor,
        hidden: &Tensor,
        batch: &PagedBatch,
    ) -> Result<Tensor> {
        let table = match &head.embedding {
            Some(own) => own,
            None => self.embedding()?,
        };
        let mut embedded = table.rows(ids, self.activations)?;
        if let Some(scale) = self.config.embedding_scale {
            embedded = (embedded * scale)?;
        }
        let both = [
            head.embedding_norm.forward(&embedded)?,
            head.hidden_norm.forward(hidden)?,
        ];
        let joined = head.join.forward(&Tensor::cat(&both, 1)?.into())?;
        let media = MediaPass::default();
        let uneven = self.tables.uneven_rows(batch)?;
        let pass = Pass {
            uneven,
            media: &media,
            batch,
            windows: None,
            states: None,
            global: self.tables.rows(batch.positions())?,
            local: self.local_tables.rows(batch.positions())?,
            per_block: None,
            temperatures: self.temperatures.rows(batch, &self.device)?,
            chosen: RefCell::new(None),
        };
        let mut stream = Residual::new(joined);
        head.block
            .forward(&mut stream, &mut head.memory, 0, &pass)?;
        let norm = match &head.norm {
            Some(own) => own,
            None => self.norm()?,
        };
        norm.forward(&stream.sum()?)
    }

    fn logits_of(&self, head: &Head, hidden: &Tensor) -> Result<Tensor> {
        let output = match &head.output {
            Some(own) => own,
            None => self.output()?,
        };
        self.logits_by(output, &hidden.clone().into())
    }
}
