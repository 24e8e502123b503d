//! A step through the model, and the choice of tokens behind it.

use super::Scheduler;
use crate::engine::api::{Failure, GeneratedToken, PromptToken};
use crate::engine::device;
use crate::engine::forward::{DecodeOutput, SampleParams, Step};
use crate::engine::sampling;
use crate::engine::sequence::Sequence;
use candle_core::Tensor;
use std::time::Instant;

/// What a step brings for a sequence that it reads to its end.
pub(super) struct Taken {
    pub id: u64,
    /// The next tokens: one, and one more for each draft that was right.
    pub tokens: Vec<GeneratedToken>,
    /// Why there are no more.
    pub failure: Option<Failure>,
}

/// What a step brings.
pub(super) struct Computed {
    /// For sequences that it reads to their end.
    pub taken: Vec<Taken>,
    /// For those whose prompts' probabilities are wanted.
    pub told: Vec<Told>,
}

/// The probabilities of a part of a sequence's prompt.
pub(super) struct Told {
    pub id: u64,
    pub tokens: Vec<PromptToken>,
}

/// A sequence whose next tokens are being chosen.
struct Turn {
    /// Among the running ones.
    index: usize,
    /// The first of its rows of logits.
    row: usize,
    taken: Taken,
    /// Whether the next row may be computed behind the right tokens.
    is_open: bool,
}

impl Turn {
    /// The next of its rows: one for each token that was taken.
    fn next(&self) -> usize {
        self.taken.tokens.len()
    }

    /// Takes the token that was chosen behind the next row.
    fn take(
        &mut self,
        sequence: &mut Sequence,
        chosen: Result<GeneratedToken, Failure>,
        end: &[u32],
    ) {
        let followed = chosen.and_then(|chosen| Ok((sequence.follow(&chosen, end)?, chosen)));
        match followed {
            Ok((goes_on, chosen)) => {
                let draft = sequence.drafts.tokens().get(self.next());
                self.is_open = goes_on && draft == Some(&chosen.token);
                self.taken.tokens.push(chosen);
            }
            Err(failure) => {
                self.is_open = false;
                self.taken.failure = Some(failure);
            }
        }
    }
}

impl Scheduler {
    /// Runs the model and chooses tokens for the sequences that are read to their end.
    pub(super) fn compute(&mut self, step: &Step) -> candle_core::Result<Computed> {
        self.choose_adapters(step)?;
        let output = match self.step_media(step)? {
            Some(media) => DecodeOutput::Logits(self.forward.forward_media(step, &media)?, None),
            None if step.is_decode() => self.decode(step)?,
            None if step.tokens.len() > self.max_step_tokens => {
                let logits = self.forward.forward_in_parts(step, self.max_step_tokens)?;
                DecodeOutput::Logits(logits, None)
            }
            None => DecodeOutput::Logits(self.forward.forward(step)?, None),
        };
        let turns = self.turns(step);
        match output {
            DecodeOutput::Tokens(answer) => Ok(Computed {
                taken: self.take_chosen(turns, sampling::read(&answer)?),
                told: Vec::new(),
            }),
            DecodeOutput::Logits(logits, answer) => {
                // Before the choice, which may change logits.
                let told = self.tell(step, &logits)?;
                let taken = self.choose(turns, &logits)?;
                // What the device has found wrong meanwhile.
                answer.map_or(Ok(()), |answer| answer.wait().map(drop))?;
                Ok(Computed { taken, told })
            }
        }
    }

    /// The probabilities of the prompts' tokens that a step's logits tell.
    fn tell(&self, step: &Step, logits: &Tensor) -> candle_core::Result<Vec<Told>> {
        let mut row = 0;
        let (mut given, mut told) = (Vec::new(), Vec::new());
        for s in &step.sequences {
            let Some(sequence) = self.running.iter().find(|r| r.id == s.id) else {
                continue;
            };
            if s.told > 0 {
                given.extend(sequence.given(row, s.rows));
                told.push((s.id, s.told));
            }
            row += s.told + self.outputs_behind(sequence, s.keys);
        }
        let mut all = sampling::report(logits, &given)?.into_iter();
        let told = told.into_iter().map(|(id, count)| Told {
            id,
            tokens: all.by_ref().take(count).collect(),
        });
        Ok(told.collect())
    }

    /// How many rows of logits a step that ends with the token `keys` wants for a sequence's next tokens.
    fn outputs_behind(&self, sequence: &Sequence, keys: usize) -> usize {
        let drafts = sequence.drafts.tokens().len();
        match keys == sequence.tokens.len() + drafts && sequence.answers() {
            true => 1 + drafts,
            false => 0,
        }
    }

    /// The sequences that a step reads to their end, in the order of its outputs.
    fn turns(&self, step: &Step) -> Vec<Turn> {
        let mut row = 0;
        let mut turns = Vec::new();
        for s in &step.sequences {
            let Some(index) = self.running.iter().position(|r| r.id == s.id) else {
                continue;
            };
            row += s.told;
            let outputs = self.outputs_behind(&self.running[index], s.keys);
            if outputs == 0 {
                continue;
            }
            turns.push(Turn {
                index,
                row,
                taken: Taken {
                    id: s.id,
                    tokens: Vec::new(),
                    failure: None,
                },
                is_open: true,
            });
            row += outputs;
        }
        turns
    }

    /// Takes tokens that were chosen for all rows at once, as far as nothing but logits decides.
    fn take_chosen(
        &mut self,
        turns: Vec<Turn>,
        chosen: Vec<Result<GeneratedToken, Failure>>,
    ) -> Vec<Taken> {
        let mut chosen = chosen.into_iter();
        let all = turns.into_iter().map(|mut turn| {
            let sequence = &mut self.running[turn.index];
            let rows = 1 + sequence.drafts.tokens().len();
            for chosen in chosen.by_ref().take(rows) {
                if turn.is_open {
                    turn.take(sequence, chosen, &self.end_tokens);
                    turn.is_open &= !sequence.is_constrained();
                }
            }
            turn.taken
        });
        all.collect()
    }

    /// Chooses tokens by logits: of all rows of a sequence at once, or of one behind the other where each token decides
    /// what may come next.
    fn choose(&mut self, mut turns: Vec<Turn>, logits: &Tensor) -> candle_core::Result<Vec<Taken>> {
        while turns.iter().any(|turn| turn.is_open) {
            // Turns and rows of this round.
            let mut round: Vec<(usize, usize)> = Vec::new();
            let mut masks = Vec::new();
            for (i, turn) in turns.iter_mut().enumerate().filter(|(_, t)| t.is_open) {
                let sequence = &mut self.running[turn.index];
                let first = turn.next();
                let last = match sequence.goes_by_token() {
                    true => first,
                    false => sequence.drafts.tokens().len(),
                };
                match sequence.mask() {
                    Ok(mask) => {
                        round.extend((first..=last).map(|row| (i, row)));
                        masks.extend((first..=last).map(|_| mask.clone()));
                    }
                    Err(failure) => {
                        turn.is_open = false;
                        turn.taken.failure = Some(failure);
                    }
                }
            }
            if round.is_empty() {
                break;
            }
            let rows: Vec<u32> = round
                .iter()
                .map(|(i, row)| (turns[*i].row + row) as u32)
                .collect();
            let requests: Vec<_> = round
                .iter()
                .zip(masks)
                .map(|((i, row), mask)| self.running[turns[*i].index].sampling_request(*row, mask))
                .collect();
            let chosen = if rows.len() == logits.dim(0)? {
                sampling::choose(logits, &requests)?
            } else {
                let rows = Tensor::new(rows.as_slice(), logits.device())?;
                sampling::choose(&logits.index_select(&rows, 0)?, &requests)?
            };
            for ((i, row), chosen) in round.into_iter().zip(chosen) {
                let turn = &mut turns[i];
                if turn.is_open && row == turn.next() {
                    let sequence = &mut self.running[turn.index];
                    turn.take(sequence, chosen, &self.end_tokens);
                }
            }
        }
        Ok(turns.into_iter().map(|turn| turn.taken).collect())
    }

    /// Computes a step of few new tokens for each sequence, and keeps account of what that takes.
    fn decode(&mut self, step: &Step) -> candle_core::Result<DecodeOutput> {
        let mut samples: Option<Vec<SampleParams>> = Some(Vec::with_capacity(step.tokens.len()));
        for s in &step.sequences {
            let sequence = self.running.iter().find(|r| r.id == s.id);
            let rows = (0..s.rows).map(|row| sequence?.sample_params(row));
            let rows: Option<Vec<SampleParams>> = rows.collect();
            samples = samples.zip(rows).map(|(mut samples, rows)| {
                samples.extend(rows);
                samples
            });
        }
        let (before, start) = (device::launches(self.forward.device()), Instant::now());
        let decoded = self.forward.decode(step, samples.as_deref())?;
        self.decode.enqueue += start.elapsed();
        self.decode.launches += device::launches(self.forward.device()) - before;
        self.decode.steps += 1;
        self.decode.graphs += u64::from(decoded.graph);
        Ok(decoded.output)
    }
}
