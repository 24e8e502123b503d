//! From a loaded model to a running engine.

use super::api::{DraftSource, EngineOptions, Status};
use super::blocks::BlockPool;
use super::forward::CacheOptions;
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
                (DraftSource::Head, _) if forward.heads() == 0 => {
                    return Err(Error::Usage(
                        "guesses of the model's head are asked for, and it was loaded without one"
                            .to_string(),
                    ))
                }
                (DraftSource::Model, draft) => draft,
                _ => None,
            };
        let Sizes {
            cache,
            draft_states,
            max_sequences,
            left,
        } = Sizes::choose(&*forward, options, draft.as_deref())?;
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
                kv_block_size: cache.block_size,
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
                    state_distance: options.state_distance,
                };
                let cache = CacheOptions {
                    dtype: draft.kv_dtype().into(),
                    states: draft_states,
                    window_blocks: 0,
                    ..cache
                };
                let model = DraftModel::new(draft, cache, options.graphs, limits)
                    .map_err(Error::candle("reserving the draft model's cache"))?;
                Some(model)
            }
            None => None,
        };
        let speculation = Speculation::new(
            options.speculation.clone(),
            &*forward,
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
                    reload,
                    after: options.sleep_after,
                    cache,
                    graphs: options.graphs,
                },
            },
        );
        Engine::spawn(Arc::new(shared), move |shared| scheduler.run(shared))
            .map_err(|error| Error::Runtime(format!("the engine's thread does not start: {error}")))
    }
}
