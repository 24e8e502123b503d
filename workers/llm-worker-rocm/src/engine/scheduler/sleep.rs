//! Weights and cache are given back while nothing is asked, and loaded again for the next request.

use super::Scheduler;
use crate::engine::api::{Failure, GraphUse, KvDType, KvTypes};
use crate::engine::forward::{CacheOptions, Forward, Step};
use crate::engine::handle::Shared;
use crate::engine::loaded::Reload;
use crate::engine::media::MediaStore;
use candle_core::{bail, Device, Result, Tensor};
use std::time::Duration;
use worker::device::release_unused;

/// How a model sleeps and wakes.
pub(in crate::engine) struct Sleep {
    /// Loads it again; without, it never sleeps.
    pub reload: Option<Reload>,
    /// How long nothing is asked before it falls asleep.
    pub after: Option<Duration>,
    pub cache: CacheOptions,
    pub graphs: GraphUse,
}

/// In place of a model that sleeps.
struct Asleep {
    vocab_size: usize,
    context_length: usize,
    kv_dtype: KvDType,
    device: Device,
}

impl Forward for Asleep {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context_length(&self) -> usize {
        self.context_length
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn kv_dtype(&self) -> KvDType {
        self.kv_dtype
    }

    fn kv_token_bytes(&self, _: KvTypes) -> usize {
        0
    }

    fn reserve(&mut self, _: &CacheOptions) -> Result<()> {
        bail!("the model sleeps")
    }

    fn forward(&mut self, _: &Step) -> Result<Tensor> {
        bail!("the model sleeps")
    }
}

impl Scheduler {
    /// How long to wait until it falls asleep, if it does.
    pub(super) fn until_sleep(&self) -> Option<Duration> {
        let can = self.sleep.reload.is_some() && !self.asleep;
        self.sleep.after.filter(|_| can)
    }

    /// Gives weights and cache back, and forgets what the cache knows.
    pub(super) fn fall_asleep(&mut self, shared: &Shared) -> std::result::Result<(), Failure> {
        if self.asleep {
            return Ok(());
        }
        if self.sleep.reload.is_none() {
            return Err(Failure::Invalid(
                "this model cannot be loaded again, so it does not sleep".to_string(),
            ));
        }
        let count = self.running.len() + self.preempted.len();
        if count > 0 {
            return Err(Failure::Invalid(format!("{count} requests run")));
        }
        let model = &self.forward;
        let asleep = Asleep {
            vocab_size: model.vocab_size(),
            context_length: model.context_length(),
            kv_dtype: model.kv_dtype(),
            device: model.device().clone(),
        };
        self.forward = Box::new(asleep);
        self.speculation.sleep();
        if let Err(error) = release_unused(self.forward.device()) {
            tracing::warn!("{error}");
        }
        self.pool.clear();
        self.slots.clear();
        self.media = MediaStore::new();
        self.asleep = true;
        tracing::info!("the model sleeps: its memory is given back until the next request");
        // The figures of memory, too.
        self.memory_seen = None;
        self.publish(shared);
        Ok(())
    }

    /// Loads the model again.
    pub(super) fn wake_up(&mut self, shared: &Shared) -> std::result::Result<(), Failure> {
        if !self.asleep {
            return Ok(());
        }
        let woken = (self.sleep.reload.as_ref())
            .ok_or_else(|| "it cannot be loaded again".to_string())
            .and_then(|reload| reload().map_err(|error| error.to_string()))
            .and_then(|model| {
                let mut forward = model.forward;
                let reserved = forward.reserve(&self.sleep.cache);
                reserved
                    .and_then(|()| self.speculation.wake_up(model.draft))
                    .map_err(|error| error.to_string())
                    .map(|()| forward)
            });
        match woken {
            Ok(mut forward) => {
                forward.set_graphs(self.sleep.graphs);
                self.forward = forward;
                self.asleep = false;
                tracing::info!("the model is awake");
                self.memory_seen = None;
                self.publish(shared);
                Ok(())
            }
            Err(reason) => {
                // Of a draft model, too, that may be there by now.
                self.speculation.sleep();
                Err(Failure::Internal(format!(
                    "the model sleeps and could not be loaded again: {reason}"
                )))
            }
        }
    }
}
