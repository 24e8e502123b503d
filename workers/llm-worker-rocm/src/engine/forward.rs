//! The border between the scheduler and models: a forward pass over new tokens of many sequences.

use super::api::{AdapterUse, GraphUse, KvDType, KvTypes, SamplingOptions, WeightBytes};
use super::device::room_for_cache;
use super::media::{Features, MediaItem, StepMedia, Turn};
use super::snapshots::Snapshots;
use candle_core::rocm_backend::candle_rocm::ops::exchange::Exchange;
use candle_core::{Device, Result, Tensor};
use candle_rocm_flash_attn::paged::PagedSequence;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A causal language model with a paged cache.
pub trait Forward: Send {
    /// Number of tokens that have an embedding: what logits are of.
    fn vocab_size(&self) -> usize;

    /// Longest sequence in tokens, prompt and answer together.
    fn context_length(&self) -> usize;

    /// Where the weights are.
    fn device(&self) -> &Device;

    /// All devices that the model is divided between; that of [`Forward::device`] alone if it is not.
    fn devices(&self) -> Vec<Device> {
        vec![self.device().clone()]
    }

    /// How much the weights take, as far as that is known.
    fn weight_bytes(&self) -> WeightBytes {
        WeightBytes::default()
    }

    /// Whether a step may begin where its sequence has computed tokens already, others perhaps: its last rows are taken
    /// back and computed anew.
    fn can_take_back(&self) -> bool {
        false
    }

    /// How keys and values are stored if nobody asks for anything else.
    fn kv_dtype(&self) -> KvDType;

    /// Bytes of a token's keys and values in all layers.
    fn kv_token_bytes(&self, dtype: KvTypes) -> usize;

    /// Keys before its own that a token sees in layers with a sliding window, the widest of them; none if there are no
    /// such layers. They can keep their keys and values in blocks of their own: [`CacheOptions::window_blocks`].
    fn window(&self) -> Option<usize> {
        None
    }

    /// Of a token's bytes of keys and values, those of layers with a sliding window.
    fn kv_window_bytes(&self, dtype: KvTypes) -> usize {
        let _ = dtype;
        0
    }

    /// Bytes of one slot of recurrent state in all layers, see [`StepState`]; 0 where keys and values are all that a
    /// sequence leaves behind.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Its memory as bytes, if that can be had.
    fn snapshots(&mut self) -> Option<&mut dyn Snapshots> {
        None
    }

    /// Reserves the cache, in place of one reserved before.
    ///
    /// # Errors
    /// If there is no memory, or the model cannot store keys and values like that.
    fn reserve(&mut self, cache: &CacheOptions) -> Result<()>;

    /// Computes new tokens and writes their keys and values. Gives the logits behind the rows that are asked for, f32
    /// `(outputs, vocabulary)`, on the model's device.
    ///
    /// # Errors
    /// If the device fails; the cache then holds what it held before, but for places of the new tokens.
    fn forward(&mut self, step: &Step) -> Result<Tensor>;

    /// As [`Forward::forward`], where some of the rows have more than their token.
    ///
    /// # Errors
    /// Those of [`Forward::forward`], and for a model without pictures.
    fn forward_media(&mut self, step: &Step, media: &StepMedia) -> Result<Tensor> {
        match media.is_empty() {
            true => self.forward(step),
            false => candle_core::bail!("this model takes no pictures"),
        }
    }

    /// The rows that stand in for the embeddings of an item's tokens.
    ///
    /// # Errors
    /// If the device fails, and for a model without an encoder of such items.
    fn encode(&mut self, item: &MediaItem) -> Result<Features> {
        let _ = item;
        candle_core::bail!("this model takes text only")
    }

    /// As [`Forward::forward`] for a step all of whose logits are wanted: of one new token for each sequence, or a few
    /// where next ones were guessed; only enqueues, where the device works on its own. If `samples` has how to choose
    /// the token behind each row, the model may do that as well.
    ///
    /// # Errors
    /// Those of [`Forward::forward`].
    fn decode(&mut self, step: &Step, samples: Option<&[SampleParams]>) -> Result<Decoded> {
        let _ = samples;
        Ok(Decoded {
            output: DecodeOutput::Logits(self.forward(step)?, None),
            graph: false,
        })
    }

    /// How many heads the model has that predict tokens behind the next one; it keeps what they need of each step.
    fn heads(&self) -> usize {
        0
    }

    /// Runs a head: each row has a hidden state at some position and a token behind that position, the next one for the
    /// first head, and leaves keys and values of the head's own there. Gives the logits behind the rows that are asked
    /// for, of the token behind the row's, or if `samples` has how to choose that of each of them, the tokens perhaps.
    ///
    /// # Errors
    /// If there is no such head, or the device fails.
    fn predict(&mut self, step: &HeadStep, samples: Option<&[SampleParams]>) -> Result<Predicted> {
        let _ = (step, samples);
        candle_core::bail!("the model has no head that predicts further tokens")
    }

    /// How many adapters the model has been loaded with.
    fn adapters(&self) -> usize {
        0
    }

    /// Takes which adapters the sequences of a step want, in their order, before it is computed; for models that have
    /// adapters.
    ///
    /// # Errors
    /// For an adapter that the model does not have.
    fn use_adapters(&mut self, step: &Step, uses: &[Arc<[AdapterUse]>]) -> Result<()> {
        let _ = (step, uses);
        Ok(())
    }

    /// Whether [`Forward::decode`] may record its launches and enqueue them as one graph; not unless asked for. Nobody
    /// else may use the device's stream then. Models without graphs ignore it.
    fn set_graphs(&mut self, graphs: GraphUse) {
        let _ = graphs;
    }

    /// What takes part in the cache: the devices of a model that is divided between several, the answering one last.
    fn cache_parts(&self, dtype: KvTypes) -> Vec<CachePart> {
        let mapped = self.weight_bytes().mapped;
        vec![CachePart {
            room: room_for_cache(self.device(), mapped).map(|room| room as usize),
            token_bytes: self.kv_token_bytes(dtype),
            window_bytes: self.kv_window_bytes(dtype),
            state_bytes: self.state_bytes(),
        }]
    }

    /// How many devices work on a step one behind another: as many times the rows are worth a step.
    fn stages(&self) -> usize {
        1
    }

    /// As [`Forward::forward`], of a step that [several devices](Forward::stages) may cut into parts of so many rows, so
    /// that each works on another one at the same time. Results are those of a step for each part.
    ///
    /// # Errors
    /// Those of [`Forward::forward`].
    fn forward_in_parts(&mut self, step: &Step, rows: usize) -> Result<Tensor> {
        let _ = rows;
        self.forward(step)
    }

    /// Why the model will compute no more, once that is certain.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Why launches are not enqueued as graphs although that was asked for, once it is known.
    fn without_graphs(&self) -> Option<&str> {
        None
    }
}

/// What one device has of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePart {
    /// Bytes that the cache may take there, if that is known.
    pub room: Option<usize>,
    /// Bytes of a token's keys and values.
    pub token_bytes: usize,
    /// Of these, those of layers with a sliding window.
    pub window_bytes: usize,
    /// Bytes of a slot of recurrent state.
    pub state_bytes: usize,
}

/// How to choose a token.
#[derive(Debug, Clone, Copy)]
pub struct SampleParams<'a> {
    /// Temperature, filters and seed; the others are neutral.
    pub options: &'a SamplingOptions,
    /// Tokens generated before it, guesses included.
    pub position: u32,
}

/// What comes of [`Forward::decode`].
#[derive(Debug)]
pub struct Decoded {
    /// The result.
    pub output: DecodeOutput,
    /// Whether it was enqueued as a graph.
    pub graph: bool,
}

/// A result of [`Forward::decode`], of use until its next call.
#[derive(Debug)]
pub enum DecodeOutput {
    /// f32 `(rows, vocabulary)`, and what is to be asked for errors once they were used.
    Logits(Tensor, Option<Answer>),
    /// The chosen token behind each row, or why there is none, as `candle_rocm::ops::sampling::choose` tells it.
    Tokens(Answer),
}

/// What the device hands to the host at the end of a step.
#[derive(Clone, Debug)]
pub struct Answer {
    exchange: Arc<Exchange>,
    count: usize,
}

impl Answer {
    /// That of the step that was enqueued last, for so many rows.
    pub(super) fn marked(exchange: &Arc<Exchange>, count: usize) -> Result<Self> {
        exchange.mark()?;
        Ok(Self {
            exchange: exchange.clone(),
            count,
        })
    }

    /// Waits for the step; a token for each row.
    ///
    /// # Errors
    /// If the step failed on the device.
    pub fn wait(&self) -> Result<Vec<u32>> {
        Ok(self.exchange.receive(self.count)?)
    }
}

/// What [`Forward::reserve`] reserves.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct CacheOptions {
    /// Number of blocks.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// How keys and values are stored.
    pub dtype: KvTypes,
    /// Longest sequence that will come, in tokens.
    pub context: usize,
    /// Slots of recurrent state, see [`StepState`].
    pub states: usize,
    /// Number of blocks of layers with a sliding window; 0 if they have the same blocks as the others.
    pub window_blocks: usize,
}

/// A forward pass: new tokens of sequences, behind each other.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Step {
    /// New tokens of all sequences.
    pub tokens: Vec<u32>,
    /// The sequences that they belong to, in their order.
    pub sequences: Vec<StepSequence>,
    /// Rows of `tokens` whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
}

impl StepState {
    /// That of the only sequence of a model, whose state stays in slot 0: `start` tokens were computed before.
    pub fn of_only(start: usize) -> Self {
        Self {
            from: (start > 0).then_some(0),
            after: vec![0],
        }
    }
}

impl Step {
    /// Whether it wants all logits for the next tokens: its sequences have one new token each, and guesses behind it.
    pub fn is_decode(&self) -> bool {
        let chooses = |sequence: &StepSequence| sequence.told == 0;
        self.outputs.len() == self.tokens.len() && self.sequences.iter().all(chooses)
    }

    /// What each row is turned by, if that is not the place of each.
    pub(super) fn turns(&self) -> Vec<Turn> {
        if self.sequences.iter().all(|s| s.turned.is_none()) {
            return Vec::new();
        }
        let rows = self.sequences.iter().flat_map(|sequence| {
            let place = (sequence.keys - sequence.rows) as u32;
            let first = sequence.turned.unwrap_or(place);
            (first..first + sequence.rows as u32).map(|turn| [turn; 3])
        });
        rows.collect()
    }

    /// Its rows as sequences of one new token each, for attention over the cache.
    pub(super) fn paged_rows(&self) -> Vec<PagedSequence<'_>> {
        self.rows_by(|sequence| &sequence.blocks)
    }

    /// The same in layers with a sliding window that have their own blocks.
    pub(super) fn paged_window_rows(&self) -> Vec<PagedSequence<'_>> {
        self.rows_by(|sequence| &sequence.window_blocks)
    }

    fn rows_by(&self, blocks: impl Fn(&StepSequence) -> &[u32]) -> Vec<PagedSequence<'_>> {
        let rows = self.sequences.iter().flat_map(|sequence| {
            let before = sequence.keys - sequence.rows;
            let blocks = blocks(sequence);
            (1..=sequence.rows).map(move |row| PagedSequence {
                blocks,
                keys: before + row,
                rows: 1,
            })
        });
        rows.collect()
    }

    /// Its sequences as attention over the cache takes them.
    pub(super) fn paged(&self) -> Vec<PagedSequence<'_>> {
        self.paged_by(|sequence| &sequence.blocks)
    }

    /// The same in layers with a sliding window that have their own blocks.
    pub(super) fn paged_windows(&self) -> Vec<PagedSequence<'_>> {
        self.paged_by(|sequence| &sequence.window_blocks)
    }

    fn paged_by(&self, blocks: impl Fn(&StepSequence) -> &[u32]) -> Vec<PagedSequence<'_>> {
        let sequences = self.sequences.iter().map(|sequence| PagedSequence {
            blocks: blocks(sequence),
            keys: sequence.keys,
            rows: sequence.rows,
        });
        sequences.collect()
    }
}

/// A pass of a head that predicts further tokens.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HeadStep {
    /// Which head.
    pub head: usize,
    /// Tokens, and the sequences and positions of the hidden states: the first head's are those behind their positions,
    /// a later one's so many further.
    pub step: Step,
    /// A hidden state for each row.
    pub hidden: HiddenRows,
    /// Of what a pass [of a step](HiddenRows::OfStep) chooses from, the rows that are kept for the next such pass, in
    /// place of those that were kept before it.
    pub keep: Vec<u32>,
}

/// Where hidden states come from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum HiddenRows {
    /// Rows of the model's last step, and behind these the rows that [were kept](HeadStep::keep).
    OfStep(Vec<u32>),
    /// Rows of the last pass of a head.
    OfHead(Vec<u32>),
}

impl Default for HiddenRows {
    fn default() -> Self {
        Self::OfStep(Vec::new())
    }
}

/// What comes of [`Forward::predict`].
#[derive(Debug)]
pub struct Predicted {
    /// The result.
    pub output: HeadOutput,
    /// Whether it was enqueued as a graph.
    pub graph: bool,
}

/// A result of [`Forward::predict`], of use until its next call.
#[derive(Debug)]
pub enum HeadOutput {
    /// f32 `(outputs, vocabulary)`.
    Logits(Tensor),
    /// Of each row of the pass, whether asked for or not.
    Tokens {
        /// The chosen token, or why there is none, as [`DecodeOutput::Tokens`] has it.
        tokens: Answer,
        /// The logarithm of its probability, as the bits of an f32.
        probabilities: Answer,
    },
}

/// A sequence of a [`Step`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StepSequence {
    /// Identifies the sequence as long as it lives.
    pub id: u64,
    /// Its blocks, in the order of positions.
    pub blocks: Vec<u32>,
    /// Its blocks in layers with a sliding window, where these have [their own](CacheOptions::window_blocks): any block
    /// of the sequence where the window of the first new token does not reach.
    pub window_blocks: Vec<u32>,
    /// Its tokens, the new ones included.
    pub keys: usize,
    /// New tokens.
    pub rows: usize,
    /// Of its rows whose logits are wanted, the first ones that only tell the probabilities of its prompt's tokens.
    pub told: usize,
    /// Its recurrent state, if the model has such ([`Forward::state_bytes`]).
    pub state: Option<StepState>,
    /// What its first new token is turned by, and the others by what follows it, if that is not their place: text
    /// behind pictures of a model whose tokens have three positions each.
    pub turned: Option<u32>,
}

/// Where a sequence's recurrent state lies, in slots of the [reserved](CacheOptions::states) ones.
///
/// A slot that is read and not written stays as it is: a checkpoint is a slot that its sequence went on from into
/// another one. No slot is written twice in a step, nor read by one sequence and written by another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepState {
    /// The state before the new tokens; none at the beginning of a sequence.
    pub from: Option<u32>,
    /// Where the states behind the last so many new tokens go, in their order: one slot, or more where some of the new
    /// tokens may be taken back. `from` may be among them.
    pub after: Vec<u32>,
}
