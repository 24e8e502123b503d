//! The model's own heads guess: from the hidden states of each step and the tokens that came behind them.
//!
//! Heads have keys and values of their own in the blocks of their sequences, so they read what the model reads, step by
//! step, whether guesses are wanted or not. A lone head guesses on from its own output. Of several, each predicts one
//! token further than the one before, so that it has read guesses in the places of the last tokens: these places are
//! read again with the next step, from hidden states that are kept for that.

use super::drafter::{Ask, Drafter};
use crate::engine::forward::{
    Forward, HeadOutput, HeadStep, HiddenRows, SampleParams, Step, StepSequence,
};
use crate::engine::sampling::{self, SamplingRequest};
use candle_core::Result;

/// Guesses by the model's heads.
pub(super) struct HeadDrafter {
    heads: usize,
    /// Where the hidden states of the last step belong.
    parts: Vec<Part>,
    /// Those of earlier steps that are kept, in their order.
    kept: Vec<Part>,
    block_size: usize,
    least_probability: f32,
}

/// A sequence's rows in a step, or among those that are kept.
#[derive(Clone)]
struct Part {
    id: u64,
    /// The first of its rows.
    row: usize,
    rows: usize,
    /// The position of that row.
    start: usize,
}

/// A sequence that heads read.
struct Turn<'a> {
    /// Among all that were asked for.
    index: usize,
    ask: &'a Ask<'a>,
    /// Positions whose hidden states are read, and these.
    start: usize,
    hidden: Vec<u32>,
    guesses: Vec<u32>,
    /// Its first row, and how many there are, in the last pass.
    row: usize,
    rows: usize,
    /// Whether a guess is wanted behind its last row.
    is_open: bool,
}

impl Turn<'_> {
    /// The position behind those that are read.
    fn end(&self) -> usize {
        self.start + self.hidden.len()
    }

    /// The tokens behind so many of its positions that a head reads which predicts tokens `further` ones further, as
    /// far as they are known or guessed.
    fn tokens(&self, further: usize) -> impl Iterator<Item = u32> + '_ {
        let all = self.ask.tokens.iter().chain(&self.guesses);
        let behind = all.skip(self.start + 1 + further);
        behind.take(self.hidden.len()).copied()
    }
}

impl HeadDrafter {
    pub(super) fn new(heads: usize, block_size: usize, least_probability: f32) -> Self {
        Self {
            heads,
            parts: Vec::new(),
            kept: Vec::new(),
            block_size,
            least_probability,
        }
    }

    /// What of the last step the heads read, as far as it was not taken back, and which rows are kept of it.
    fn turns<'a>(&mut self, asks: &'a [Ask<'a>]) -> (Vec<Turn<'a>>, Vec<u32>) {
        let parts = std::mem::take(&mut self.parts);
        let kept = std::mem::take(&mut self.kept);
        // Rows that are kept lie behind those of the step.
        let of_step: usize = parts.iter().map(|part| part.rows).sum();
        let rows = |part: &Part, before: usize| {
            let first = part.row + before;
            (first..first + part.rows).map(|row| row as u32)
        };
        let (mut turns, mut keep) = (Vec::new(), Vec::new());
        for part in &parts {
            let Some(index) = asks.iter().position(|ask| ask.id == part.id) else {
                continue;
            };
            let ask = &asks[index];
            // The last token has no hidden state yet; of sequences that lost their blocks nothing counts.
            let end = (part.start + part.rows).min(ask.tokens.len() - 1);
            if end <= part.start || end > ask.computed || !ask.is_plain {
                continue;
            }
            let earlier = kept.iter().find(|kept| kept.id == part.id);
            let earlier = earlier.filter(|kept| kept.start + kept.rows == part.start);
            let hidden = earlier.into_iter().flat_map(|kept| rows(kept, of_step));
            let hidden = hidden.chain(rows(part, 0).take(end - part.start));
            let turn = Turn {
                index,
                ask,
                start: earlier.map_or(part.start, |kept| kept.start),
                hidden: hidden.collect(),
                guesses: Vec::new(),
                row: 0,
                rows: 0,
                is_open: ask.most > 0 && end + 1 == ask.tokens.len(),
            };
            let again = turn.hidden.len().min(self.heads - 1);
            self.keep(turn.ask.id, turn.end() - again, again, keep.len());
            keep.extend(&turn.hidden[turn.hidden.len() - again..]);
            turns.push(turn);
        }
        if turns.is_empty() {
            // Nothing is read, and what is kept stays where it is.
            self.kept = kept;
            return (turns, keep);
        }
        // Of sequences that wait their turn.
        for part in &kept {
            let is_read = turns.iter().any(|turn| turn.ask.id == part.id);
            if !is_read && asks.iter().any(|ask| ask.id == part.id) {
                self.keep(part.id, part.start, part.rows, keep.len());
                keep.extend(rows(part, of_step));
            }
        }
        (turns, keep)
    }

    fn keep(&mut self, id: u64, start: usize, rows: usize, row: usize) {
        if rows > 0 {
            self.kept.push(Part {
                id,
                row,
                rows,
                start,
            });
        }
    }

    /// A pass of a head over all that there is to read of the turns.
    fn read(
        &self,
        forward: &mut dyn Forward,
        turns: &mut [Turn],
        head: usize,
        keep: Vec<u32>,
    ) -> Result<()> {
        let mut step = Step::default();
        let mut hidden: Vec<u32> = Vec::new();
        for turn in turns.iter_mut() {
            let tokens: Vec<u32> = turn.tokens(head).collect();
            let (before, rows) = (turn.row as u32, tokens.len());
            match head {
                0 => hidden.extend(&turn.hidden),
                _ => hidden.extend(before..before + rows as u32),
            }
            turn.is_open &= rows == turn.hidden.len();
            (turn.row, turn.rows) = (step.tokens.len(), rows);
            if rows == 0 {
                continue;
            }
            step.tokens.extend(tokens);
            step.sequences.push(StepSequence {
                id: turn.ask.id,
                blocks: turn.ask.blocks.to_vec(),
                keys: turn.start + rows,
                rows,
                ..StepSequence::default()
            });
            if turn.is_open {
                step.outputs.push(step.tokens.len() as u32 - 1);
            }
        }
        if step.tokens.is_empty() {
            return Ok(());
        }
        let hidden = match head {
            0 => HiddenRows::OfStep(hidden),
            _ => HiddenRows::OfHead(hidden),
        };
        let step = HeadStep {
            head,
            step,
            hidden,
            keep,
        };
        self.predict(forward, turns, &step)
    }

    /// Passes of a lone head until no turn is open.
    fn go_on_while_open(&self, forward: &mut dyn Forward, turns: &mut [Turn]) -> Result<()> {
        loop {
            for turn in &mut *turns {
                turn.is_open &= self.has_room(turn);
            }
            if turns.iter().all(|turn| !turn.is_open) {
                return Ok(());
            }
            self.go_on(forward, turns)?;
        }
    }

    /// A pass of a lone head behind the guesses so far.
    fn go_on(&self, forward: &mut dyn Forward, turns: &mut [Turn]) -> Result<()> {
        let mut step = Step::default();
        let mut hidden = Vec::new();
        for turn in turns.iter_mut().filter(|turn| turn.is_open) {
            hidden.push((turn.row + turn.rows - 1) as u32);
            (turn.row, turn.rows) = (step.tokens.len(), 1);
            step.outputs.push(step.tokens.len() as u32);
            step.tokens.extend(turn.guesses.last());
            step.sequences.push(StepSequence {
                id: turn.ask.id,
                blocks: turn.ask.blocks.to_vec(),
                keys: turn.ask.tokens.len() - 1 + turn.guesses.len(),
                rows: 1,
                ..StepSequence::default()
            });
        }
        let step = HeadStep {
            step,
            hidden: HiddenRows::OfHead(hidden),
            ..HeadStep::default()
        };
        self.predict(forward, turns, &step)
    }

    /// Computes a pass, and takes a guess for each open turn.
    fn predict(
        &self,
        forward: &mut dyn Forward,
        turns: &mut [Turn],
        step: &HeadStep,
    ) -> Result<()> {
        let mut open: Vec<&mut Turn> = turns.iter_mut().filter(|turn| turn.is_open).collect();
        let least = self.least_probability;
        let generated = |turn: &Turn| turn.ask.generated + turn.guesses.len();
        let samples: Vec<SampleParams> = open
            .iter()
            .map(|turn| SampleParams {
                options: turn.ask.sampling,
                position: generated(turn) as u32,
            })
            .collect();
        let plain = samples.iter().all(|s| s.options.takes_only_logits());
        let predicted = forward.predict(step, plain.then_some(&samples))?;
        if open.is_empty() {
            return Ok(());
        }
        let chosen: Vec<_> = match predicted.output {
            HeadOutput::Tokens {
                tokens,
                probabilities,
            } => {
                let mut all = sampling::read(&tokens)?;
                if least > 0.0 {
                    let logarithms = probabilities.wait()?.into_iter().map(f32::from_bits);
                    for (chosen, logarithm) in all.iter_mut().zip(logarithms) {
                        if let Ok(token) = chosen {
                            token.logprob = Some(logarithm);
                        }
                    }
                }
                let outputs = step.step.outputs.iter();
                outputs.map(|row| all[*row as usize].clone()).collect()
            }
            HeadOutput::Logits(logits) => {
                let requests: Vec<SamplingRequest> = open
                    .iter()
                    .map(|turn| SamplingRequest {
                        options: turn.ask.sampling,
                        breakers: None,
                        aim: None,
                        history: turn.ask.tokens,
                        drafts: &turn.guesses,
                        generated: generated(turn),
                        position: generated(turn) as u32,
                        mask: None,
                        top_logprobs: (least > 0.0).then_some(0),
                        after_sampling: false,
                    })
                    .collect();
                sampling::choose(&logits, &requests)?
            }
        };
        for (turn, chosen) in open.iter_mut().zip(chosen) {
            let sure = |logprob: Option<f32>| logprob.is_none_or(|p| p.exp() >= least);
            match chosen {
                Ok(token) if sure(token.logprob) => {
                    turn.guesses.push(token.token);
                    turn.is_open = turn.guesses.len() < turn.ask.most;
                }
                // What is wrong with it does not concern the answer.
                _ => turn.is_open = false,
            }
        }
        Ok(())
    }

    /// Whether a lone head's next guess lies at a position that has a block.
    fn has_room(&self, turn: &Turn) -> bool {
        let position = turn.ask.tokens.len() - 2 + turn.guesses.len();
        position < turn.ask.blocks.len() * self.block_size
    }
}

impl Drafter for HeadDrafter {
    fn is_free(&self) -> bool {
        false
    }

    fn reads_steps(&self) -> bool {
        true
    }

    fn computed(&mut self, step: &Step) {
        let mut row = 0;
        let part = |s: &StepSequence| {
            row += s.rows;
            Part {
                id: s.id,
                row: row - s.rows,
                rows: s.rows,
                start: s.keys - s.rows,
            }
        };
        self.parts = step.sequences.iter().map(part).collect();
    }

    fn guess(&mut self, forward: &mut dyn Forward, asks: &[Ask]) -> Result<Vec<Vec<u32>>> {
        let mut guesses = vec![Vec::new(); asks.len()];
        let (mut turns, keep) = self.turns(asks);
        if turns.is_empty() {
            return Ok(guesses);
        }
        self.read(forward, &mut turns, 0, keep)?;
        for head in 1..self.heads {
            self.read(forward, &mut turns, head, Vec::new())?;
        }
        if self.heads == 1 {
            self.go_on_while_open(forward, &mut turns)?;
        }
        for turn in turns {
            guesses[turn.index] = turn.guesses;
        }
        Ok(guesses)
    }

    fn forget(&mut self, id: u64) {
        // Another text may come under the same name.
        self.kept.retain(|part| part.id != id);
        self.parts.retain(|part| part.id != id);
    }

    fn sleep(&mut self) {
        self.parts.clear();
        self.kept.clear();
    }
}

#[cfg(test)]
mod tests;
