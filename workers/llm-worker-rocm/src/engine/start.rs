//! From a loaded model to a running engine.

use super::api::{EngineOptions, Status};
use super::blocks::BlockPool;
use super::device;
use super::forward::CacheOptions;
use super::handle::{Engine, Limits, Shared};
use super::loaded::LoadedModel;
use super::scheduler::Scheduler;
use std::sync::Arc;
use worker::{Error, Result};

impl Engine {
    /// Starts the thread that runs a model. Blocks of the cache are reserved now: as many as `options` say, or as are
    /// of use and fit.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that make no sense, [`Error::Runtime`] if memory does not suffice for a single
    /// block, [`Error::Candle`] if the device fails.
    pub fn start(model: LoadedModel, options: &EngineOptions) -> Result<Self> {
        let mut forward = model.forward;
        for (name, value) in [
            ("the block size", options.block_size),
            ("the number of sequences", options.max_sequences),
            ("the number of tokens of a step", options.max_step_tokens),
            ("the context", options.context.unwrap_or(1)),
            ("the number of blocks", options.kv_blocks.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(Error::Usage(format!("{name} must be above 0")));
            }
        }
        let own = forward.context_length();
        let context = options.context.unwrap_or(own);
        if context > own {
            return Err(Error::Usage(format!(
                "a context of {context} tokens; this model takes at most {own}"
            )));
        }
        let size = options.block_size;
        let dtype = options.kv_dtype.unwrap_or_else(|| forward.kv_dtype());
        let max_sequences = options.max_sequences.min(forward.max_sequences());
        let block_bytes = (forward.kv_token_bytes(dtype) * size).max(1);
        let blocks = match options.kv_blocks {
            Some(blocks) => blocks,
            None => {
                let useful = context.div_ceil(size).saturating_mul(max_sequences);
                let room = device::room_for_cache(forward.device());
                let fit = room.map_or(useful, |room| room as usize / block_bytes);
                useful.min(fit)
            }
        };
        if blocks == 0 {
            return Err(Error::Runtime(format!(
                "there is no memory left for the cache of keys and values: a block of {size} tokens takes {block_bytes} bytes; use a smaller model or another device"
            )));
        }
        let context = context.min(blocks.saturating_mul(size));
        let cache = CacheOptions {
            blocks,
            block_size: size,
            dtype,
            context,
            states: max_sequences,
        };
        forward
            .reserve(&cache)
            .map_err(Error::candle("reserving the cache of keys and values"))?;
        forward.set_graphs(options.graphs);
        let keep = options.prefix_cache && forward.shares_prefixes();
        let shared = Shared::new(
            Limits {
                vocab_size: forward.vocab_size(),
                context,
                max_waiting: options.max_waiting,
                max_sequences,
            },
            Status {
                kv_blocks_total: blocks,
                ..Status::default()
            },
        );
        let scheduler = Scheduler::new(
            forward,
            BlockPool::new(blocks, size, keep),
            model.end_tokens,
            context,
            max_sequences,
            options.max_step_tokens,
        );
        Engine::spawn(Arc::new(shared), move |shared| scheduler.run(shared))
            .map_err(|error| Error::Runtime(format!("the engine's thread does not start: {error}")))
    }
}
