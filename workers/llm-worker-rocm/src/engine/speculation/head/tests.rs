use super::*;
use crate::engine::api::{KvDType, KvTypes, SamplingOptions};
use crate::engine::blocks::root;
use crate::engine::forward::{CacheOptions, Predicted};
use candle_core::{Device, Tensor};
use std::collections::{BTreeMap, HashMap};

const VOCABULARY: usize = 64;

/// The token at a position of a sequence.
fn token(id: u64, position: usize) -> u32 {
    ((position * 7 + id as usize * 11 + position * position) % VOCABULARY) as u32
}

/// A hidden state: whose it is, its position, and the head that it is of, counted from 1.
type State = (u64, usize, usize);

/// A model with heads that exists in numbers only: what they are given is what it says it is, and their keys are those
/// of the last tokens that were read.
#[derive(Default)]
struct Mock {
    heads: usize,
    of_step: Vec<State>,
    kept: Vec<State>,
    of_head: Vec<State>,
    /// The token that a head has read at a position of a sequence.
    read: HashMap<State, u32>,
    /// Of so many guesses one is wrong.
    wrong: usize,
    guesses: usize,
}

impl Mock {
    fn computed(&mut self, step: &Step) {
        let rows = step.sequences.iter();
        let rows = rows.flat_map(|s| (s.keys - s.rows..s.keys).map(|at| (s.id, at, 0)));
        self.of_step = rows.collect();
    }
}

impl Forward for Mock {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }

    fn context_length(&self) -> usize {
        1 << 20
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn kv_dtype(&self) -> KvDType {
        KvDType::F32
    }

    fn kv_token_bytes(&self, _: KvTypes) -> usize {
        0
    }

    fn reserve(&mut self, _: &CacheOptions) -> Result<()> {
        Ok(())
    }

    fn forward(&mut self, _: &Step) -> Result<Tensor> {
        unreachable!("steps are not computed")
    }

    fn heads(&self) -> usize {
        self.heads
    }

    fn predict(&mut self, step: &HeadStep, _: Option<&[SampleParams]>) -> Result<Predicted> {
        let given: Vec<State> = match &step.hidden {
            HiddenRows::OfStep(rows) => {
                let all = [&self.of_step[..], &self.kept[..]].concat();
                self.kept = step.keep.iter().map(|row| all[*row as usize]).collect();
                rows.iter().map(|row| all[*row as usize]).collect()
            }
            HiddenRows::OfHead(rows) => {
                rows.iter().map(|row| self.of_head[*row as usize]).collect()
            }
        };
        let mut rows = Vec::new();
        let (mut given, mut tokens) = (given.into_iter(), step.step.tokens.iter());
        for sequence in &step.step.sequences {
            for position in sequence.keys - sequence.rows..sequence.keys {
                let (id, at, head) = given.next().unwrap();
                assert_eq!(id, sequence.id);
                // A lone head goes on from its own output, one position further.
                let further = usize::from(self.heads == 1 && head == 1);
                assert_eq!((at + further, head), (position, step.head + further));
                let row = (id, position, step.head + 1);
                self.read.insert(row, *tokens.next().unwrap());
                rows.push(row);
            }
        }
        assert!(given.next().is_none() && tokens.next().is_none());
        let mut logits = Vec::new();
        for output in &step.step.outputs {
            let (id, position, head) = rows[*output as usize];
            self.guesses += 1;
            let wrong = self.guesses.is_multiple_of(self.wrong);
            let guess = token(id, position + 1 + head) + u32::from(wrong);
            let mut row = vec![0f32; VOCABULARY];
            row[guess as usize % VOCABULARY] = 9.0;
            logits.extend(row);
        }
        self.of_head = rows;
        let shape = (step.step.outputs.len(), VOCABULARY);
        Ok(Predicted {
            output: HeadOutput::Logits(Tensor::from_vec(logits, shape, &Device::Cpu)?),
            graph: false,
        })
    }
}

/// Sequences of which some wait now and then, with prompts in pieces and guesses of which some are wrong: heads are given
/// the right hidden states, and behind each round they have read the right tokens wherever these are known.
#[test]
fn heads_read_what_came_and_what_was_guessed_again() {
    for (heads, wrong) in [(1, 3), (2, 3), (3, 4), (3, 1000), (2, 1)] {
        let sampling = SamplingOptions::greedy();
        let mut model = Mock {
            heads,
            wrong,
            ..Mock::default()
        };
        let mut drafter = HeadDrafter::new(heads, 4, 0.0);
        // Tokens, how many of them are computed, and guesses.
        let mut texts: BTreeMap<u64, (usize, usize, Vec<u32>)> = BTreeMap::new();
        for id in 1..4 {
            texts.insert(id, (9 + 6 * id as usize, 0, Vec::new()));
        }
        let mut accepted = 0;
        for round in 0..40 {
            let mut step = Step::default();
            for (id, (len, computed, guesses)) in &mut texts {
                if (round + id) % 5 == 0 {
                    // It waits, and its guesses are of no use.
                    guesses.clear();
                    continue;
                }
                let rows = (*len - *computed).min(6);
                let drafts = if *computed + rows == *len {
                    guesses.len()
                } else {
                    0
                };
                step.sequences.push(StepSequence {
                    id: *id,
                    keys: *computed + rows + drafts,
                    rows: rows + drafts,
                    ..StepSequence::default()
                });
                let right = (guesses.iter().take(drafts).enumerate())
                    .take_while(|(i, guess)| **guess == token(*id, *len + i))
                    .count();
                accepted += right;
                *computed += rows + right;
                if *computed >= *len {
                    *len = *computed + 1;
                }
            }
            model.computed(&step);
            drafter.computed(&step);
            let of = |id: u64, len: usize| (0..len).map(|at| token(id, at)).collect::<Vec<_>>();
            let all: Vec<(u64, Vec<u32>, usize)> = (texts.iter())
                .map(|(id, (len, computed, _))| (*id, of(*id, *len), *computed))
                .collect();
            let blocks = [0; 64];
            let asks: Vec<Ask> = (all.iter())
                .map(|(id, tokens, computed)| Ask {
                    id: *id,
                    root: root(0),
                    tokens,
                    generated: 0,
                    sampling: &sampling,
                    blocks: &blocks,
                    computed: *computed,
                    most: if computed + 1 == tokens.len() { 3 } else { 0 },
                    is_plain: true,
                    is_read: computed + 1 == tokens.len(),
                })
                .collect();
            let guessed = drafter.guess(&mut model, &asks).unwrap();
            for ((id, tokens, computed), guessed) in all.iter().zip(guessed) {
                if let Some(text) = texts.get_mut(id) {
                    text.2 = guessed;
                }
                for head in 1..=heads {
                    for position in 0..(tokens.len() - head).min(*computed) {
                        let read = model.read.get(&(*id, position, head));
                        let right = Some(&token(*id, position + head));
                        assert_eq!(read, right, "{heads} {round} {id} {position} {head}");
                    }
                }
            }
        }
        let least = if wrong == 1 { 0 } else { 30 };
        assert!(accepted >= least, "{heads} {wrong}: {accepted}");
    }
}
