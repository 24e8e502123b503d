//! Pictures and sounds of prompts: encoded between steps, one at a time, so that others wait for one at most.

use super::{Chunk, Scheduler};
use crate::engine::api::Failure;
use crate::engine::device::{self, DeviceFault};
use crate::engine::forward::Step;
use crate::engine::handle::Shared;
use crate::engine::media::StepMedia;
use std::panic::{catch_unwind, AssertUnwindSafe};

impl Scheduler {
    /// Encodes the item that is needed next, if there is one. Gives whether to go on: not if the device is lost.
    pub(super) fn encode_next(&mut self, shared: &Shared) -> bool {
        let most = self.max_step_tokens;
        let needed = self
            .running
            .iter()
            .enumerate()
            .find_map(|(index, sequence)| {
                let media = sequence.media.as_ref()?;
                let span = media.missing(sequence.computed, most)?;
                Some((index, media.item(span).clone()))
            });
        let Some((index, item)) = needed else {
            return true;
        };
        let (store, forward) = (&mut self.media, &mut *self.forward);
        let outcome = catch_unwind(AssertUnwindSafe(|| store.features(forward, &item)));
        let fault = match outcome {
            Ok(Ok(features)) => {
                if let Some(media) = &mut self.running[index].media {
                    media.take(&item.key, &features);
                }
                return true;
            }
            Ok(Err(error)) => device::diagnose_model(&*self.forward, &error),
            Err(_) => DeviceFault::Other("the encoder panicked".to_string()),
        };
        if let DeviceFault::Lost(reason) = fault {
            self.end(Failure::DeviceLost(reason), shared);
            return false;
        }
        let alone = Chunk {
            id: self.running[index].id,
            rows: 0,
            drafts: 0,
        };
        self.suspect(&[alone], fault, shared);
        true
    }

    /// What a step's rows have besides their tokens, if any has something.
    pub(super) fn step_media(&self, step: &Step) -> candle_core::Result<Option<StepMedia>> {
        let mut media = StepMedia::default();
        let mut turned = false;
        let mut row = 0;
        for (index, part) in step.sequences.iter().enumerate() {
            let start = part.keys - part.rows;
            let sequence = self.running.iter().find(|s| s.id == part.id);
            let own = sequence.and_then(|s| s.media.as_ref());
            if let Some(own) = own {
                own.add(&mut media, (index, row), (start, part.rows))?;
            }
            let turns = own.and_then(|own| own.turns(start, part.rows));
            // Text behind pictures says so itself.
            turned |= turns.is_some() && part.turned.is_none();
            let plain = || (start..part.keys).map(|place| [place as u32; 3]).collect();
            media.turns.extend(turns.unwrap_or_else(plain));
            row += part.rows;
        }
        if !turned {
            media.turns.clear();
        }
        Ok((!media.is_empty()).then_some(media))
    }
}
