//! The model's own head guesses: from the hidden states of each step and the tokens that came behind them.
//!
//! The head has keys and values of its own in the blocks of its sequences, so it reads what the model reads, step by
//! step, whether guesses are wanted or not.

use super::drafter::{Ask, Drafter};
use crate::engine::forward::{Forward, HeadStep, HiddenRows, Step, StepSequence};
use crate::engine::sampling::{self, SamplingRequest};
use candle_core::Result;

/// Guesses by the model's head.
pub(super) struct HeadDrafter {
    /// Where the hidden states of the last step belong.
    parts: Vec<Part>,
    block_size: usize,
    least_probability: f32,
}

/// A sequence's rows in a step.
struct Part {
    id: u64,
    /// The first of its rows.
    row: usize,
    rows: usize,
    /// The position of that row.
    start: usize,
}

/// A sequence that is guessed for.
struct Turn<'a> {
    /// Among all that were asked for.
    index: usize,
    ask: &'a Ask<'a>,
    guesses: Vec<u32>,
    /// Its row among the outputs of the head's last pass.
    output: usize,
    is_open: bool,
}

impl HeadDrafter {
    pub(super) fn new(block_size: usize, least_probability: f32) -> Self {
        Self {
            parts: Vec::new(),
            block_size,
            least_probability,
        }
    }

    /// Has the head read the last step, as far as it was not taken back. Gives logits and turns of those that want
    /// guesses.
    fn read<'a>(
        &mut self,
        forward: &mut dyn Forward,
        asks: &'a [Ask<'a>],
    ) -> Result<Option<(candle_core::Tensor, Vec<Turn<'a>>)>> {
        let mut step = Step::default();
        let (mut hidden, mut turns) = (Vec::new(), Vec::new());
        for part in std::mem::take(&mut self.parts) {
            let Some(index) = asks.iter().position(|ask| ask.id == part.id) else {
                continue;
            };
            let ask = &asks[index];
            // The last token has no hidden state yet; of sequences that lost their blocks nothing counts.
            let end = (part.start + part.rows).min(ask.tokens.len() - 1);
            if end <= part.start || end > ask.computed || !ask.is_plain {
                continue;
            }
            let rows = end - part.start;
            step.tokens
                .extend_from_slice(&ask.tokens[part.start + 1..end + 1]);
            step.sequences.push(StepSequence {
                id: ask.id,
                blocks: ask.blocks.to_vec(),
                keys: end,
                rows,
                ..StepSequence::default()
            });
            hidden.extend((part.row..part.row + rows).map(|row| row as u32));
            if ask.most > 0 && end + 1 == ask.tokens.len() {
                turns.push(Turn {
                    index,
                    ask,
                    guesses: Vec::new(),
                    output: step.outputs.len(),
                    is_open: true,
                });
                step.outputs.push(step.tokens.len() as u32 - 1);
            }
        }
        if step.tokens.is_empty() {
            return Ok(None);
        }
        let hidden = HiddenRows::OfStep(hidden);
        let logits = forward.predict(&HeadStep { step, hidden })?;
        Ok((!turns.is_empty()).then_some((logits, turns)))
    }

    /// Takes a guess for each open turn, from the logits behind its output.
    fn take(&self, turns: &mut [Turn], logits: &candle_core::Tensor) -> Result<()> {
        let mut open: Vec<&mut Turn> = turns.iter_mut().filter(|turn| turn.is_open).collect();
        let least = self.least_probability;
        let requests: Vec<SamplingRequest> = open
            .iter()
            .map(|turn| SamplingRequest {
                options: turn.ask.sampling,
                breakers: None,
                aim: None,
                history: turn.ask.tokens,
                drafts: &turn.guesses,
                generated: turn.ask.generated + turn.guesses.len(),
                position: (turn.ask.generated + turn.guesses.len()) as u32,
                mask: None,
                top_logprobs: (least > 0.0).then_some(0),
            })
            .collect();
        let chosen = sampling::choose(logits, &requests)?;
        for (turn, chosen) in open.iter_mut().zip(chosen) {
            let sure = |logprob: Option<f32>| logprob.is_none_or(|p| p.exp() >= least);
            match chosen {
                Ok(token) if sure(token.logprob) => {
                    turn.guesses.push(token.token);
                    // The next guess lies at a position that needs a block.
                    let position = turn.ask.tokens.len() - 2 + turn.guesses.len();
                    let has_room = position < turn.ask.blocks.len() * self.block_size;
                    turn.is_open = turn.guesses.len() < turn.ask.most && has_room;
                }
                // What is wrong with it does not concern the answer.
                _ => turn.is_open = false,
            }
        }
        Ok(())
    }

    /// A pass behind the guesses so far.
    fn go_on(forward: &mut dyn Forward, turns: &mut [Turn]) -> Result<candle_core::Tensor> {
        let mut step = Step::default();
        let mut hidden = Vec::new();
        for turn in turns.iter_mut().filter(|turn| turn.is_open) {
            hidden.push(turn.output as u32);
            turn.output = step.tokens.len();
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
        let hidden = HiddenRows::OfHead(hidden);
        forward.predict(&HeadStep { step, hidden })
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
        let Some((mut logits, mut turns)) = self.read(forward, asks)? else {
            return Ok(guesses);
        };
        loop {
            self.take(&mut turns, &logits)?;
            if turns.iter().all(|turn| !turn.is_open) {
                break;
            }
            logits = Self::go_on(forward, &mut turns)?;
        }
        for turn in turns {
            guesses[turn.index] = turn.guesses;
        }
        Ok(guesses)
    }

    fn forget(&mut self, _: u64) {}
}
