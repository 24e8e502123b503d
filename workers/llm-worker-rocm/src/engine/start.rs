//! From a loaded model to a running engine.

use super::api::{DraftSource, EngineOptions, Status};
use super::blocks::BlockPool;
use super::forward::{CacheOptions, Forward};
use super::handle::{Engine, Limits, Shared};
use super::loaded::{LoadedModel, Reload};
use super::scheduler::{Scheduler, Settings, Sleep};
use super::sizes::Sizes;
use super::speculation::{DraftLimits, DraftModel, Speculation};
use std::sync::Arc;
use worker::{Error, Result};

impl Engine {
    /// Starts the thread that runs a model. Blocks of the cache and slots of recurrent state are reserved now: as many as
    /// `options` say, or as are of use and fit.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that make no sense, [`Error::Runtime`] if memory does not suffice for a single
    /// block, [`Error::Candle`] if the device fails.
    pub fn start(model: LoadedModel, options: &EngineOptions) -> Result<Self> {
        Self::start_reloadable(model, options, None)
    }

    /// As [`Engine::start`], of a model that can sleep, as `reload` loads it again.
    ///
    /// # Errors
    /// Those of [`Engine::start`].
    pub fn start_reloadable(
        model: LoadedModel,
        options: &EngineOptions,
        reload: Option<Reload>,
    ) -> Result<Self> {
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
        let lone = draft.is_none();
        let draft_bytes = draft
            .as_ref()
            .map_or(0, |d| d.kv_token_bytes(d.kv_dtype().into()));
        let Sizes {
            cache,
            max_sequences,
            left,
        } = Sizes::choose(&*forward, options, draft_bytes)?;
        forward
            .reserve(&cache)
            .map_err(Error::candle("reserving the cache of keys and values"))?;
        forward.set_graphs(options.graphs);
        let keep = options.prefix_cache;
        let shared = Shared::new(
            Limits {
                vocab_size: forward.vocab_size(),
                adapters: forward.adapters(),
                context: cache.context,
                max_waiting: options.max_waiting,
                max_sequences,
            },
            Status {
                kv_blocks_total: cache.blocks,
                kv_window_blocks_total: cache.window_blocks,
                states_total: cache.states,
                ..Status::default()
            },
            model.tokenizer,
        );
        let model_of_drafts = match draft {
            Some(draft) => {
                let limits = DraftLimits {
                    context: cache.context,
                    step_tokens: options.max_step_tokens,
                    least_probability: options.speculation.least_probability,
                    vocab_size: forward.vocab_size(),
                };
                let cache = CacheOptions {
                    dtype: draft.kv_dtype().into(),
                    states: 0,
                    window_blocks: 0,
                    ..cache
                };
                Some(draft_model(draft, &cache, options, limits)?)
            }
            None => None,
        };
        let speculation = Speculation::new(
            options.speculation.clone(),
            forward.can_take_back(),
            cache.block_size,
            model_of_drafts,
        );
        let pool = BlockPool::new(cache.blocks, cache.block_size, keep)
            .with_states(cache.states, options.state_distance)
            .with_windows(cache.window_blocks, left);
        let scheduler = Scheduler::new(
            forward,
            pool,
            speculation,
            Settings {
                end_tokens: model.end_tokens,
                context: cache.context,
                max_sequences,
                max_step_tokens: options.max_step_tokens,
                context_shift: options.context_shift,
                sleep: Sleep {
                    // A draft model would stay.
                    reload: reload.filter(|_| lone),
                    after: options.sleep_after,
                    cache,
                    graphs: options.graphs,
                },
                saves: lone,
            },
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
