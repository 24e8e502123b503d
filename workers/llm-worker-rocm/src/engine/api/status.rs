//! Figures of an engine.

use super::WeightBytes;
use std::time::Duration;
use worker::device::BufferMemory;

/// A moment's figures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Requests that have blocks.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Prompt tokens of these, whether the prefix cache has them or not.
    pub waiting_tokens: usize,
    /// Adapters of requests that have blocks, by their places among the model's, in order.
    pub adapters_running: Vec<usize>,
    /// Adapters of requests in the queue, likewise.
    pub adapters_waiting: Vec<usize>,
    /// Tokens of a block of the cache.
    pub kv_block_size: usize,
    /// Blocks of the cache of keys and values.
    pub kv_blocks_total: usize,
    /// Blocks that running requests hold.
    pub kv_blocks_used: usize,
    /// Blocks that are kept for prefixes and free to reuse.
    pub kv_blocks_cached: usize,
    /// Blocks of layers with a sliding window; 0 if these have the same blocks as the others.
    pub kv_window_blocks_total: usize,
    /// Of these, the ones that running requests hold.
    pub kv_window_blocks_used: usize,
    /// Of these, the ones that are kept for prefixes and free to reuse.
    pub kv_window_blocks_cached: usize,
    /// Slots of recurrent state; 0 for a model without.
    pub states_total: usize,
    /// Slots that running requests hold.
    pub states_used: usize,
    /// Slots that are kept as checkpoints of prefixes and free to reuse.
    pub states_cached: usize,
    /// Prompt tokens that were computed, those of the prefix cache left out.
    pub prompt_tokens: u64,
    /// Tokens that were chosen.
    pub generated_tokens: u64,
    /// Prompt tokens that the prefix cache had.
    pub prefix_hit_tokens: u64,
    /// Requests that lost their blocks to others and were computed anew.
    pub preemptions: u64,
    /// Times that a request reached the context and dropped tokens to go on.
    pub context_shifts: u64,
    /// Requests that ended with an answer.
    pub requests_finished: u64,
    /// Requests that ended without one.
    pub requests_failed: u64,
    /// Requests whose ticket was dropped before their end.
    pub requests_cancelled: u64,
    /// Steps of one new token for each sequence, and of guesses behind it.
    pub decode: DecodeFigures,
    /// Guessed tokens.
    pub drafts: DraftFigures,
    /// Why steps are not enqueued as graphs although that was asked for.
    pub without_graphs: Option<String>,
    /// What the weights take.
    pub weights: WeightBytes,
    /// Device memory in use by this process.
    pub device_bytes_used: Option<u64>,
    /// Device memory in all.
    pub device_bytes_total: Option<u64>,
    /// The same of each device, where there are several.
    pub devices: Vec<DeviceMemory>,
    /// What the engine's buffers have taken of it.
    pub buffers: Option<BufferMemory>,
    /// Whether weights and cache were given back until the next request.
    pub asleep: bool,
    /// Why the device is gone, if it is.
    pub lost: Option<String>,
}

/// The memory of one of several devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// `rocm:N`.
    pub name: String,
    /// Bytes in use.
    pub used: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What steps of one new token for each sequence, and of guesses behind it, have cost the host, on a device that works
/// on its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodeFigures {
    /// How many there were.
    pub steps: u64,
    /// Of these, the ones that were enqueued as a graph.
    pub graphs: u64,
    /// Launches that they took. A graph counts as one.
    pub launches: u64,
    /// Time until the device had its work.
    pub enqueue: Duration,
}

impl std::ops::Sub for DecodeFigures {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            steps: self.steps - before.steps,
            graphs: self.graphs - before.graphs,
            launches: self.launches - before.launches,
            enqueue: self.enqueue - before.enqueue,
        }
    }
}

/// What guesses at next tokens have come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftFigures {
    /// Times that a sequence had guesses in a step.
    pub drafts: u64,
    /// Guesses that steps have checked.
    pub drafted: u64,
    /// Of these, the ones that were right and became part of an answer.
    pub accepted: u64,
}

impl std::ops::Sub for DraftFigures {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            drafts: self.drafts - before.drafts,
            drafted: self.drafted - before.drafted,
            accepted: self.accepted - before.accepted,
        }
    }
}
