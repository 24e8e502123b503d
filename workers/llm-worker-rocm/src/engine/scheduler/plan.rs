//! What the next step computes.

use super::{Chunk, Scheduler};
use crate::engine::forward::{Forward, Step, StepSequence};
use crate::engine::handle::Shared;
use crate::engine::sequence::Sequence;

/// Parts of a step for each of several devices, while nobody waits for tokens. Devices wait where a step begins and ends:
/// two of them for a ninth of the time.
const PARTS: usize = 4;

/// Rows of a model's steps at most, where `rows` are computed at once.
pub(in crate::engine) fn longest_step(forward: &dyn Forward, rows: usize) -> usize {
    match forward.stages() {
        1 => rows,
        stages => rows.saturating_mul(PARTS * stages),
    }
}

impl Scheduler {
    /// Decides what the next step computes, and takes the blocks for it.
    pub(super) fn plan(&mut self, shared: &Shared) -> Vec<Chunk> {
        self.suspects
            .retain(|suspect| self.running.iter().any(|s| s.id == suspect.id));
        let mut chunks: Vec<Chunk> = Vec::new();
        // Prompts whose probabilities are wanted are read in smaller steps.
        let mut tellable = self.told_rows;
        let rows = |s: &Sequence, room: usize, tellable: usize| {
            let most = room.min(s.next_stop(&self.pool) - s.computed);
            s.ready(s.telling_at_most(tellable, most))
        };
        if let Some(alone) = self.suspects.first().map(|suspect| suspect.id) {
            chunks.extend(
                self.running
                    .iter()
                    .filter(|s| s.id == alone)
                    .map(|s| Chunk {
                        id: alone,
                        rows: rows(s, self.max_step_tokens, tellable),
                        drafts: 0,
                    }),
            );
        } else {
            let mut room = self.room();
            let decoding = self.running.iter().filter(|s| s.pending() == 1);
            let reading = |background: bool| {
                let reading = self.running.iter().filter(|s| s.pending() > 1);
                reading.filter(move |s| s.background == background)
            };
            for sequence in decoding.chain(reading(false)).chain(reading(true)) {
                let drafts = sequence.drafts.tokens().len();
                let rows = match drafts {
                    0 => rows(sequence, room, tellable),
                    _ => (rows(sequence, room, tellable) + drafts).min(room),
                };
                if rows > 0 {
                    tellable -= sequence.told_by(rows).len();
                    // A picture that is computed at once may be longer.
                    room = room.saturating_sub(rows);
                    chunks.push(Chunk {
                        id: sequence.id,
                        rows,
                        drafts,
                    });
                }
            }
        }
        chunks.retain(|chunk| chunk.rows > 0);
        // The oldest first: they take blocks from the youngest.
        chunks.sort_by_key(|chunk| chunk.id);
        for chunk in &chunks {
            self.take_blocks(*chunk, shared);
        }
        // Those that find no slot wait: those that do, or are alone with their state, go on. Guesses wait for nothing.
        let pool = &mut self.pool;
        chunks.retain_mut(|chunk| {
            let mut running = self.running.iter_mut();
            let Some(sequence) = running.find(|s| s.id == chunk.id) else {
                return false;
            };
            if chunk.drafts > 0 && !sequence.take_slots(pool, 1 + chunk.drafts) {
                chunk.rows -= chunk.drafts;
                chunk.drafts = 0;
                sequence.drafts.cut(0);
            }
            chunk.drafts > 0 || sequence.take_slots(pool, 1)
        });
        chunks
    }

    /// Rows of a step at most: more where several devices work on them at the same time, and more still while nobody waits
    /// for the next token of an answer.
    fn room(&self) -> usize {
        let rows = self.max_step_tokens;
        let has_media = |s: &Sequence| s.pending() > 1 && s.media.is_some();
        if self.running.iter().any(has_media) {
            return rows;
        }
        match self.running.iter().any(|s| s.pending() == 1) {
            true => rows.saturating_mul(self.forward.stages()),
            false => longest_step(&*self.forward, rows),
        }
    }

    /// Takes a sequence's blocks for its chunk, from the youngest sequences if there are none left.
    pub(super) fn take_blocks(&mut self, chunk: Chunk, shared: &Shared) {
        while let Some(index) = self.running.iter().position(|s| s.id == chunk.id) {
            let sequence = &mut self.running[index];
            if sequence.take_blocks(&mut self.pool, chunk.rows) {
                return;
            }
            if let Some(mut youngest) = self.running.pop() {
                youngest.give_back(&mut self.pool);
                youngest.log_event("it waits again: older requests took its blocks");
                shared.status().preemptions += 1;
                let place = self.preempted.partition_point(|s| s.id < youngest.id);
                self.preempted.insert(place, youngest);
            }
        }
    }

    pub(super) fn step(&self, chunks: &[Chunk]) -> Step {
        let mut step = Step::default();
        for (sequence, chunk) in self.in_chunks(chunks) {
            let keys = sequence.computed + chunk.rows;
            let known = keys - chunk.drafts;
            let first = step.tokens.len();
            let told = sequence.told_by(chunk.rows);
            let rows = told.clone().map(|place| first + place - sequence.computed);
            step.outputs.extend(rows.map(|row| row as u32));
            step.tokens
                .extend_from_slice(&sequence.tokens[sequence.computed..known]);
            step.tokens.extend_from_slice(sequence.drafts.tokens());
            step.sequences.push(StepSequence {
                id: sequence.id,
                blocks: sequence.blocks.clone(),
                window_blocks: sequence.window_blocks(),
                keys,
                rows: chunk.rows,
                told: told.len(),
                state: sequence.step_state(),
                turned: sequence.turn_of_text(chunk.rows),
            });
            if known == sequence.tokens.len() && sequence.answers() {
                let end = step.tokens.len() as u32;
                step.outputs.extend(end - 1 - chunk.drafts as u32..end);
            }
        }
        step
    }

    pub(super) fn in_chunks<'a>(
        &'a self,
        chunks: &'a [Chunk],
    ) -> impl Iterator<Item = (&'a Sequence, &'a Chunk)> + 'a {
        chunks.iter().filter_map(|chunk| {
            let sequence = self.running.iter().find(|s| s.id == chunk.id)?;
            Some((sequence, chunk))
        })
    }
}
