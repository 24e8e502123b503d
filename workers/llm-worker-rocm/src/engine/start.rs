//! From a loaded model to a running engine.

use super::api::{DraftSource, EngineOptions, Status};
use super::blocks::BlockPool;
use super::device;
use super::forward::{CacheOptions, Forward};
use super::handle::{Engine, Limits, Shared};
use super::loaded::LoadedModel;
use super::scheduler::Scheduler;
use super::speculation::{DraftLimits, DraftModel, Speculation};
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
        let draft =
            match (options.speculation.source, model.draft) {
                (DraftSource::Model, None) => return Err(Error::Usage(
                    "guesses of a draft model are asked for without one; name it by --draft-model"
                        .to_string(),
                )),
                (DraftSource::Head, _) if !forward.has_head() => {
                    return Err(Error::Usage(
                        "guesses of the model's head are asked for, and it was loaded without one"
                            .to_string(),
                    ))
                }
                (DraftSource::Model, draft) => draft,
                _ => None,
            };
        for (name, value) in [
            ("the block size", options.block_size),
            ("the number of sequences", options.max_sequences),
            ("the number of tokens of a step", options.max_step_tokens),
            ("the context", options.context.unwrap_or(1)),
            ("the number of blocks", options.kv_blocks.unwrap_or(1)),
            ("the number of states", options.states.unwrap_or(1)),
            ("the distance of states", options.state_distance),
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
        let mut max_sequences = options.max_sequences.min(forward.max_sequences());
        let keep = options.prefix_cache && forward.shares_prefixes();
        let room = device::room_for_cache(forward.device());
        let state_bytes = forward.state_bytes();
        let drafts = match options.speculation.source {
            DraftSource::Off => 0,
            _ => options.speculation.max,
        };
        let states = match (state_bytes, options.states) {
            (0, _) => 0,
            (_, Some(states)) => states,
            (bytes, None) => useful_states(max_sequences, drafts, keep, room, bytes),
        };
        if state_bytes > 0 {
            if states == 0 {
                return Err(Error::Runtime(format!(
                    "there is no memory left for the recurrent state of a sequence, which takes {state_bytes} bytes; use a smaller model or another device"
                )));
            }
            if states < max_sequences {
                tracing::warn!("{states} sequences run at once: there is no room for the recurrent state of more");
                max_sequences = states;
            }
        }
        let room = room.map(|room| room.saturating_sub((states * state_bytes) as u64));
        let draft_bytes = draft.as_ref().map_or(0, |d| d.kv_token_bytes(d.kv_dtype()));
        let block_bytes = ((forward.kv_token_bytes(dtype) + draft_bytes) * size).max(1);
        let blocks = match options.kv_blocks {
            Some(blocks) => blocks,
            None => {
                let useful = context.div_ceil(size).saturating_mul(max_sequences);
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
            states,
        };
        forward
            .reserve(&cache)
            .map_err(Error::candle("reserving the cache of keys and values"))?;
        forward.set_graphs(options.graphs);
        let shared = Shared::new(
            Limits {
                vocab_size: forward.vocab_size(),
                adapters: forward.adapters(),
                context,
                max_waiting: options.max_waiting,
                max_sequences,
            },
            Status {
                kv_blocks_total: blocks,
                states_total: states,
                ..Status::default()
            },
        );
        let model_of_drafts = match draft {
            Some(draft) => {
                let limits = DraftLimits {
                    context,
                    step_tokens: options.max_step_tokens,
                    least_probability: options.speculation.least_probability,
                    vocab_size: forward.vocab_size(),
                };
                let cache = CacheOptions {
                    dtype: draft.kv_dtype(),
                    states: 0,
                    ..cache
                };
                Some(draft_model(draft, &cache, options, limits)?)
            }
            None => None,
        };
        let speculation = Speculation::new(
            options.speculation.clone(),
            forward.can_take_back(),
            size,
            model_of_drafts,
        );
        let scheduler = Scheduler::new(
            forward,
            BlockPool::new(blocks, size, keep).with_states(states, options.state_distance),
            model.end_tokens,
            context,
            max_sequences,
            options.max_step_tokens,
            speculation,
        );
        Engine::spawn(Arc::new(shared), move |shared| scheduler.run(shared))
            .map_err(|error| Error::Runtime(format!("the engine's thread does not start: {error}")))
    }
}

/// Makes a smaller model ready to guess.
fn draft_model(
    mut forward: Box<dyn Forward>,
    cache: &CacheOptions,
    options: &EngineOptions,
    limits: DraftLimits,
) -> Result<DraftModel> {
    forward
        .reserve(cache)
        .map_err(Error::candle("reserving the draft model's cache"))?;
    forward.set_graphs(options.graphs);
    Ok(DraftModel::new(forward, cache, limits))
}

/// Checkpoints of recurrent state that a sequence has use for.
const CHECKPOINTS: usize = 8;

/// Slots of recurrent state of so many bytes, where nobody says how many: one for each sequence, if half of the room for
/// the cache suffices, and checkpoints in an eighth of it; in another one as many as each sequence has guesses.
fn useful_states(
    sequences: usize,
    drafts: usize,
    keep: bool,
    room: Option<u64>,
    bytes: usize,
) -> usize {
    let fit = |part: u64| room.map_or(usize::MAX, |room| (room / part) as usize / bytes);
    let checkpoints = match keep {
        true => (sequences * CHECKPOINTS).min(fit(8)),
        false => 0,
    };
    sequences.min(fit(2)) + checkpoints + (sequences * drafts).min(fit(8))
}

#[cfg(test)]
mod tests {
    use super::useful_states;

    #[test]
    fn states_take_half_of_the_room_and_checkpoints_an_eighth_at_most() {
        assert_eq!(useful_states(4, 0, true, None, 1000), 36);
        assert_eq!(useful_states(4, 0, false, None, 1000), 4);
        assert_eq!(useful_states(4, 0, true, Some(80_000), 1000), 4 + 10);
        assert_eq!(useful_states(4, 0, true, Some(6000), 1000), 3);
        assert_eq!(useful_states(4, 0, true, Some(1500), 1000), 0);
        assert_eq!(useful_states(4, 7, false, None, 1000), 32);
        assert_eq!(useful_states(4, 7, false, Some(80_000), 1000), 4 + 10);
    }
}
