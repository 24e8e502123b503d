//! What comes of a step, and how sequences end.

use super::compute::{Computed, Taken, Told};
use super::{count_finished, refuse, Chunk, Scheduler, Suspect};
use crate::engine::api::{Failure, FinishReason};
use crate::engine::device::DeviceFault;
use crate::engine::handle::Shared;
use crate::engine::sampling::not_a_number;
use crate::engine::sequence::Sequence;

impl Scheduler {
    /// Takes a step's outcome into the sequences.
    pub(super) fn deliver(&mut self, chunks: &[Chunk], computed: Computed, shared: &Shared) {
        let Computed { taken, told } = computed;
        let mut prompt_tokens = 0;
        for chunk in chunks {
            if let Some(sequence) = self.running.iter_mut().find(|s| s.id == chunk.id) {
                let read = sequence.prompt.saturating_sub(sequence.computed);
                prompt_tokens += read.min(chunk.rows) as u64;
                if chunk.drafts > 0 {
                    // What becomes of its rows is seen below.
                    continue;
                }
                sequence.advance(&mut self.pool, chunk.rows, chunk.rows);
                sequence.tell_progress();
                let computed = sequence.computed;
                if let Some(media) = &mut sequence.media {
                    media.forget(computed);
                }
                self.suspects
                    .retain(|suspect| suspect.id != chunk.id || suspect.until > computed);
            }
        }
        shared.status().prompt_tokens += prompt_tokens;
        for told in told {
            self.tell_prompt(told, shared);
        }
        // Those that are to be read and not answered.
        for chunk in chunks {
            let is_read = |s: &Sequence| s.id == chunk.id && !s.answers() && s.pending() == 0;
            if let Some(index) = self.running.iter().position(is_read) {
                self.finish(index, FinishReason::Length, shared);
            }
        }
        for taken in taken {
            let chunk = chunks.iter().find(|chunk| chunk.id == taken.id);
            let index = self.running.iter().position(|s| s.id == taken.id);
            if let (Some(chunk), Some(index)) = (chunk, index) {
                self.take(index, *chunk, taken, shared);
            }
        }
    }

    /// Tells the probabilities of a prompt's tokens, unless the model has computed none.
    fn tell_prompt(&mut self, told: Told, shared: &Shared) {
        let Some(index) = self.running.iter().position(|s| s.id == told.id) else {
            return;
        };
        match told.tokens.iter().any(|token| token.logprob.is_nan()) {
            true => self.fail(index, not_a_number(), shared),
            false => self.running[index].tell(told.tokens),
        }
    }

    /// Takes the next tokens of a sequence: all but the last one were drafts, and are computed.
    fn take(&mut self, index: usize, chunk: Chunk, taken: Taken, shared: &Shared) {
        let sequence = &mut self.running[index];
        self.speculation.judge(&mut sequence.drafts, &taken.tokens);
        let (before, mut reason) = (sequence.tokens.len(), None);
        for token in taken.tokens {
            shared.status().generated_tokens += 1;
            reason = sequence.push(token, &self.end_tokens, self.context);
            if reason.is_some() {
                break;
            }
        }
        if chunk.drafts > 0 {
            let accepted = (sequence.tokens.len() - before).saturating_sub(1);
            let kept = chunk.rows - chunk.drafts + accepted;
            sequence.advance(&mut self.pool, chunk.rows, kept);
            sequence.give_back_surplus(&mut self.pool);
        }
        match (reason, taken.failure) {
            (Some(FinishReason::Context), _) if self.shift(index) => {
                shared.status().context_shifts += 1;
            }
            (Some(reason), _) => self.finish(index, reason, shared),
            (None, Some(failure)) => self.fail(index, failure, shared),
            (None, None) => {}
        }
    }

    /// Drops tokens of a sequence that has reached the context, if that is wanted. Gives whether it can go on.
    fn shift(&mut self, index: usize) -> bool {
        let sequence = &mut self.running[index];
        let shifted = self
            .context_shift
            .is_some_and(|keep| sequence.shift(&mut self.pool, keep));
        if shifted {
            sequence.drafts.clear();
            self.speculation.forget(sequence.id);
        }
        shifted
    }

    pub(super) fn finish(&mut self, index: usize, reason: FinishReason, shared: &Shared) {
        let mut sequence = self.running.remove(index);
        self.slots.end(&sequence);
        sequence.give_back(&mut self.pool);
        self.speculation.forget(sequence.id);
        // Figures first: whoever sees the event sees them, too.
        count_finished(&sequence, shared);
        self.publish(shared);
        sequence.finish(reason);
    }

    pub(super) fn fail(&mut self, index: usize, failure: Failure, shared: &Shared) {
        let mut sequence = self.running.remove(index);
        self.slots.end(&sequence);
        sequence.give_back(&mut self.pool);
        self.speculation.forget(sequence.id);
        shared.status().requests_failed += 1;
        self.publish(shared);
        sequence.fail(failure);
    }

    /// A step failed: a lone sequence is at fault; of several, each has to run alone.
    pub(super) fn suspect(&mut self, chunks: &[Chunk], fault: DeviceFault, shared: &Shared) {
        if let [chunk] = chunks {
            let failure = match fault {
                DeviceFault::Memory(text) => Failure::OutOfMemory(text),
                DeviceFault::Lost(text) => Failure::DeviceLost(text),
                DeviceFault::Other(text) => Failure::Internal(text),
            };
            if let Some(index) = self.running.iter().position(|s| s.id == chunk.id) {
                self.fail(index, failure, shared);
            }
            return;
        }
        self.suspects.clear();
        for chunk in chunks {
            if let Some(sequence) = self.running.iter_mut().find(|s| s.id == chunk.id) {
                self.suspects.push(Suspect {
                    id: chunk.id,
                    until: sequence.computed + chunk.rows,
                });
                if self.pool.is_recurrent() {
                    // Some layers may have changed its state.
                    sequence.start_over(&mut self.pool);
                }
            }
        }
    }

    /// Ends those that left the queue and found no blocks: for whoever sent them, they wait still.
    pub(super) fn fail_unstarted(&mut self, failure: &Failure, shared: &Shared) {
        self.preempted.retain(|sequence| {
            if !sequence.has_started() {
                shared.status().requests_failed += 1;
                sequence.fail(failure.clone());
            }
            sequence.has_started()
        });
    }

    pub(super) fn fail_all(&mut self, failure: &Failure, shared: &Shared) {
        let mut ended: Vec<Sequence> = self.running.drain(..).collect();
        ended.extend(self.preempted.drain(..));
        for sequence in &mut ended {
            self.slots.end(sequence);
            sequence.give_back(&mut self.pool);
            self.speculation.forget(sequence.id);
        }
        shared.status().requests_failed += ended.len() as u64;
        self.publish(shared);
        for sequence in ended {
            sequence.fail(failure.clone());
        }
    }

    /// Ends everything for good.
    pub(super) fn end(&mut self, failure: Failure, shared: &Shared) {
        if let Failure::DeviceLost(reason) = &failure {
            shared.status().lost = Some(reason.clone());
        }
        let waiting = std::mem::take(&mut shared.queue().waiting);
        for waiting in waiting {
            refuse(&waiting, failure.clone(), shared);
        }
        self.fail_all(&failure, shared);
    }
}
