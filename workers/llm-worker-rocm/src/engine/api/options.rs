//! How an engine runs.

use super::cache::{KvDType, KvRotation, KvTypes};
use super::speculation::SpeculationOptions;
use std::time::Duration;
use worker::graphs::GraphUse;

/// How an engine runs.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// Longest sequence in tokens, prompt and answer together; `None` is the model's own, as far as memory goes.
    pub context: Option<usize>,
    /// Whether a sequence that reaches the context goes on: it keeps so many of its first tokens, drops the older half of
    /// the others, and is computed anew. An answer without [`max_tokens`](super::Request::max_tokens) then has no end
    /// but the model's own.
    pub context_shift: Option<usize>,
    /// Blocks of the cache of keys and values; `None` is as many as fit into free memory, or as full sequences can use.
    pub kv_blocks: Option<usize>,
    /// Tokens of a block.
    pub block_size: usize,
    /// How keys and values are stored; `None` is f16 on a GPU (bf16 for a bf16 model) and f32 on the CPU.
    pub kv_dtype: Option<KvDType>,
    /// How keys are stored, if that is not as `kv_dtype` says.
    pub key_dtype: Option<KvDType>,
    /// How values are stored, if that is not as `kv_dtype` says.
    pub value_dtype: Option<KvDType>,
    /// Whether keys and values turn before they are stored.
    pub kv_rotation: KvRotation,
    /// Whether layers with a sliding window keep all keys and values, not only those that the window reaches.
    pub full_windows: bool,
    /// Slots of recurrent state, for models that have such: each sequence that runs needs one, the others are
    /// checkpoints of prefixes. `None` is as many as are of use, within an eighth of the memory for the cache.
    pub states: Option<usize>,
    /// Tokens between the checkpoints of a long prompt.
    pub state_distance: usize,
    /// Most sequences that run at once.
    pub max_sequences: usize,
    /// Most tokens of a step: what prompts are cut into.
    pub max_step_tokens: usize,
    /// Most requests that wait.
    pub max_waiting: usize,
    /// Whether keys and values of equal prefixes are shared among requests.
    pub prefix_cache: bool,
    /// How long nothing is asked until weights and cache are given back, where the model can be loaded again.
    pub sleep_after: Option<Duration>,
    /// Whether steps of one new token for each sequence are recorded and enqueued as one graph, on devices that have
    /// graphs.
    pub graphs: GraphUse,
    /// Whether next tokens are guessed, and how.
    pub speculation: SpeculationOptions,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: None,
            context_shift: None,
            kv_blocks: None,
            block_size: 16,
            kv_dtype: None,
            key_dtype: None,
            value_dtype: None,
            kv_rotation: KvRotation::Auto,
            full_windows: false,
            states: None,
            state_distance: 2048,
            max_sequences: 16,
            max_step_tokens: 512,
            max_waiting: 64,
            prefix_cache: true,
            sleep_after: None,
            graphs: GraphUse::Auto,
            speculation: SpeculationOptions::default(),
        }
    }
}

impl EngineOptions {
    /// How keys and values are stored, where `own` is what the model and its device like best.
    pub fn kv_types(&self, own: KvDType) -> KvTypes {
        let both = self.kv_dtype.unwrap_or(own);
        KvTypes {
            keys: self.key_dtype.unwrap_or(both),
            values: self.value_dtype.unwrap_or(both),
            rotation: self.kv_rotation,
        }
    }
}
