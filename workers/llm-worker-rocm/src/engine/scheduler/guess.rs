//! Drafts of the sequences that the next step goes on with.

use super::Scheduler;
use crate::engine::api::Failure;
use crate::engine::device::{self, DeviceFault};
use crate::engine::handle::Shared;
use crate::engine::speculation::{Ask, Drafts};

impl Scheduler {
    /// Guesses the next tokens of sequences that are read to their end, and chooses which guesses the next step checks.
    /// Gives whether the device still works.
    pub(super) fn guess(&mut self, shared: &Shared) -> bool {
        for sequence in &mut self.running {
            sequence.drafts.clear();
        }
        // Those of a step that failed run as simply as can be.
        if !self.speculation.is_on() || !self.suspects.is_empty() {
            return true;
        }
        let room = self.max_step_tokens;
        let all = self.speculation.reads_steps();
        let asked = (self.running.iter()).filter(|sequence| all || sequence.pending() == 1);
        let asks: Vec<(Ask, &Drafts)> = asked
            .map(|sequence| {
                let most = match sequence.pending() {
                    1 => sequence.useful_drafts(self.context),
                    _ => 0,
                };
                let most = most.min(self.speculation.most());
                (sequence.ask(most), &sequence.drafts)
            })
            .collect();
        if asks.is_empty() || asks.len() >= room {
            return true;
        }
        let (asks, drafts): (Vec<Ask>, Vec<&Drafts>) = asks.into_iter().unzip();
        let guessed = self.speculation.guess(&mut *self.forward, &asks, &drafts);
        let ids: Vec<u64> = asks.iter().map(|ask| ask.id).collect();
        let guessed = match guessed {
            Ok(guessed) => guessed,
            Err(error) => {
                let fault = device::diagnose_model(&*self.forward, &error);
                if let DeviceFault::Lost(reason) = fault {
                    self.end(Failure::DeviceLost(reason), shared);
                    return false;
                }
                // The answers come without.
                self.speculation.turn_off(&error);
                return true;
            }
        };
        let mut rows = room - ids.len();
        let mut blocks = self.spare_blocks();
        for (id, (guesses, count)) in ids.into_iter().zip(guessed) {
            let Some(sequence) = self.running.iter_mut().find(|s| s.id == id) else {
                continue;
            };
            sequence.take_drafts(guesses, count.min(rows), &self.end_tokens);
            // Nobody loses blocks to a guess.
            let size = self.pool.block_size();
            let own = sequence
                .tokens
                .len()
                .div_ceil(size)
                .max(sequence.blocks.len());
            sequence
                .drafts
                .cut((own + blocks) * size - sequence.tokens.len());
            let drafts = sequence.drafts.tokens().len();
            blocks -= (sequence.tokens.len() + drafts)
                .div_ceil(size)
                .saturating_sub(own);
            rows -= drafts;
        }
        true
    }

    /// Blocks that are left when all sequences have what their tokens take.
    fn spare_blocks(&self) -> usize {
        let size = self.pool.block_size();
        let missing = self.running.iter().map(|sequence| {
            let needed = sequence.tokens.len().div_ceil(size);
            needed.saturating_sub(sequence.blocks.len())
        });
        self.pool.available().saturating_sub(missing.sum())
    }
}
