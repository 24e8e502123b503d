//! The border between the scheduler and models: a forward pass over new tokens of many sequences.

use super::api::KvDType;
use candle_core::{Device, Result, Tensor};

/// A causal language model with a paged cache.
pub trait Forward: Send {
    /// Number of tokens that have an embedding: what logits are of.
    fn vocab_size(&self) -> usize;

    /// Longest sequence in tokens, prompt and answer together.
    fn context_length(&self) -> usize;

    /// Where the weights are.
    fn device(&self) -> &Device;

    /// Sequences that one pass takes.
    fn max_sequences(&self) -> usize {
        usize::MAX
    }

    /// Whether sequences may start with blocks that others have written.
    fn shares_prefixes(&self) -> bool {
        true
    }

    /// How keys and values are stored if nobody asks for anything else.
    fn kv_dtype(&self) -> KvDType;

    /// Bytes of a token's keys and values in all layers.
    fn kv_token_bytes(&self, dtype: KvDType) -> usize;

    /// Reserves the cache, in place of one reserved before.
    ///
    /// # Errors
    /// If there is no memory, or the model cannot store keys and values like that.
    fn reserve(&mut self, cache: &CacheOptions) -> Result<()>;

    /// Computes new tokens and writes their keys and values. Gives the logits behind the rows that are asked for, f32 `(outputs, vocabulary)`, on the model's device.
    ///
    /// # Errors
    /// If the device fails; the cache then holds what it held before, but for places of the new tokens.
    fn forward(&mut self, step: &Step) -> Result<Tensor>;
}

/// What [`Forward::reserve`] reserves.
#[derive(Debug, Clone, Copy)]
pub struct CacheOptions {
    /// Number of blocks.
    pub blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// How keys and values are stored.
    pub dtype: KvDType,
    /// Longest sequence that will come, in tokens.
    pub context: usize,
}

/// A forward pass: new tokens of sequences, behind each other.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// New tokens of all sequences.
    pub tokens: Vec<u32>,
    /// The sequences that they belong to, in their order.
    pub sequences: Vec<StepSequence>,
    /// Rows of `tokens` whose logits are wanted, ascending.
    pub outputs: Vec<u32>,
}

/// A sequence of a [`Step`].
#[derive(Debug, Clone)]
pub struct StepSequence {
    /// Identifies the sequence as long as it lives.
    pub id: u64,
    /// Its blocks, in the order of positions.
    pub blocks: Vec<u32>,
    /// Its tokens, the new ones included.
    pub keys: usize,
    /// New tokens.
    pub rows: usize,
}
