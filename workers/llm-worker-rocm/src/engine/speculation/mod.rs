//! Speculative decoding: next tokens are guessed, and a step checks several guesses at once ("Fast Inference from
//! Transformers via Speculative Decoding", Leviathan et al., <https://arxiv.org/abs/2211.17192>).
//!
//! A sequence's drafts are rows of a step behind its last token. The token of each row is chosen from its logits as
//! without drafts; if it is what the draft says, then the next row was computed behind the right tokens, and its choice
//! counts, too. What a request's seed gives for a position and a token is fixed (`engine::sampling`), so a choice is a
//! function of logits, seed and position: answers do not depend on drafts, greedy ones and sampled ones alike. A draft
//! that is not a random variable of its own is thereby accepted with the probability that the filtered distribution
//! gives it, and else replaced by a sample of the rest of the distribution: rejection sampling as in the paper, coupled
//! through the seed. A draft model chooses by the same numbers, which makes it agree as often as such a coupling can
//! ("Coupling without Communication and Drafter-Invariant Speculative Decoding", Daliri et al.,
//! <https://arxiv.org/abs/2408.07978>).
//!
//! | Module    | Gives                                                            |
//! |-----------|------------------------------------------------------------------|
//! | `drafts`  | the drafts of a sequence, and how many of late were right        |
//! | `drafter` | the border to what guesses                                       |
//! | `look_up` | guesses from earlier tokens of the same sequence                 |
//! | `draft_model`, `text` | guesses from a smaller model, and what it has read   |
//! | `head`    | guesses from the model's own heads                               |
//! | `pace`    | how many drafts pay, by measured times and acceptance            |

mod draft_model;
mod drafter;
mod drafts;
mod head;
mod look_up;
mod pace;
mod text;

pub(super) use draft_model::{DraftModel, Limits as DraftLimits};
pub(super) use drafter::{Ask, Memory};
pub(super) use drafts::Drafts;

use super::api::{DraftFigures, DraftSource, GeneratedToken, SpeculationOptions};
use super::forward::{Forward, Step};
use candle_core::Result;
use drafter::Drafter;
use drafts::Rate;
use head::HeadDrafter;
use look_up::LookUps;
use pace::{Candidate, Pace};
use std::time::{Duration, Instant};

/// What is assumed of the first drafts.
const FIRST_PROBABILITY: f64 = 0.5;

/// What guesses at next tokens, and how many of them pay.
pub(super) struct Speculation {
    options: SpeculationOptions,
    drafter: Option<Box<dyn Drafter>>,
    pace: Pace,
    /// How often drafts of any sequence were right of late.
    rate: Rate,
    pub figures: DraftFigures,
    /// What the guesses for the coming step took, and how many there are for a sequence at most.
    guessing: Duration,
    guesses: usize,
}

impl Speculation {
    /// For answers of `forward`, whose cache has blocks of `block_size`.
    pub(super) fn new(
        options: SpeculationOptions,
        forward: &dyn Forward,
        block_size: usize,
        model: Option<DraftModel>,
    ) -> Self {
        let drafter: Option<Box<dyn Drafter>> = match options.source {
            DraftSource::Off => None,
            DraftSource::LookUp => Some(Box::new(LookUps::new(
                options.shortest_match,
                options.longest_match,
            ))),
            DraftSource::Model => model.map(|model| Box::new(model) as Box<dyn Drafter>),
            DraftSource::Head => Some(Box::new(HeadDrafter::new(
                forward.heads(),
                block_size,
                options.least_probability,
            ))),
        };
        Self {
            drafter: drafter.filter(|_| forward.can_take_back() && options.max > 0),
            options,
            pace: Pace::default(),
            rate: Rate::default(),
            figures: DraftFigures::default(),
            guessing: Duration::ZERO,
            guesses: 0,
        }
    }

    /// Whether anything is guessed.
    pub(super) fn is_on(&self) -> bool {
        self.drafter.is_some()
    }

    /// Whether sequences whose prompts are read are asked about, too.
    pub(super) fn reads_steps(&self) -> bool {
        self.drafter.as_ref().is_some_and(|d| d.reads_steps())
    }

    /// Most drafts of a sequence.
    pub(super) fn most(&self) -> usize {
        self.options.max
    }

    /// Guesses nothing from now on.
    pub(super) fn turn_off(&mut self, error: &candle_core::Error) {
        tracing::warn!("answers go on without speculative decoding: {error}");
        self.drafter = None;
    }

    /// Guesses for a step of the sequences of `asks`. Gives for each its guesses, and how many of them the step should
    /// check. `drafts` are those of the step before.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn guess(
        &mut self,
        forward: &mut dyn Forward,
        asks: &[Ask],
        drafts: &[&Drafts],
    ) -> Result<Vec<(Vec<u32>, usize)>> {
        let Some(drafter) = &mut self.drafter else {
            return Ok(Vec::new());
        };
        let prior = self.rate.probability(FIRST_PROBABILITY);
        let mut candidates: Vec<Candidate> = asks
            .iter()
            .zip(drafts)
            .filter(|(ask, _)| ask.is_read)
            .map(|(ask, drafts)| Candidate {
                probability: drafts.rate.probability(prior),
                most: ask.most,
            })
            .collect();
        let start = Instant::now();
        let adaptive = self.options.adaptive;
        let mut asks = asks.to_vec();
        if adaptive && !drafter.is_free() {
            let counts = self.pace.counts(&candidates);
            let read = asks.iter_mut().filter(|ask| ask.is_read);
            for (ask, count) in read.zip(counts) {
                ask.most = count;
            }
        }
        let guesses = match drafter.reads_steps() || asks.iter().any(|ask| ask.most > 0) {
            true => drafter.guess(forward, &asks)?,
            false => vec![Vec::new(); asks.len()],
        };
        self.guesses = guesses.iter().map(Vec::len).max().unwrap_or(0);
        self.guessing = match drafter.is_free() {
            true => Duration::ZERO,
            false => start.elapsed(),
        };
        let enough = |guesses: &Vec<u32>| match guesses.len() >= self.options.min {
            true => guesses.len(),
            false => 0,
        };
        let counts = if adaptive && drafter.is_free() {
            for (candidate, guesses) in candidates.iter_mut().zip(&guesses) {
                candidate.most = enough(guesses);
            }
            self.pace.counts(&candidates)
        } else {
            guesses.iter().map(enough).collect()
        };
        Ok(guesses.into_iter().zip(counts).collect())
    }

    /// Takes in what a step took that was computed.
    pub(super) fn computed(&mut self, step: &Step, took: Duration) {
        let Some(drafter) = &mut self.drafter else {
            return;
        };
        drafter.computed(step);
        if !step.is_decode() {
            return;
        }
        let rows = step.tokens.len();
        let drafts = rows - step.sequences.len();
        self.pace
            .measured((rows, drafts, self.guesses), took, self.guessing);
    }

    /// Judges the drafts of a sequence whose next tokens have come, and forgets them.
    pub(super) fn judge(&mut self, drafts: &mut Drafts, taken: &[GeneratedToken]) {
        let judged: Vec<bool> = drafts.judge(taken).collect();
        for right in judged {
            drafts.rate.note(right);
            self.rate.note(right);
        }
        let checked = drafts.tokens().len();
        if checked > 0 {
            let accepted = taken.len().saturating_sub(1).min(checked);
            drafts.count.drafted += checked;
            drafts.count.accepted += accepted;
            self.figures.drafts += 1;
            self.figures.drafted += checked as u64;
            self.figures.accepted += accepted as u64;
        }
        drafts.clear();
    }

    /// A sequence has ended.
    pub(super) fn forget(&mut self, id: u64) {
        if let Some(drafter) = &mut self.drafter {
            drafter.forget(id);
        }
    }

    /// The memory of a draft model, if there is one.
    pub(super) fn memory(&mut self) -> Option<Memory<'_>> {
        self.drafter.as_mut()?.memory()
    }

    /// Gives up what it has of sequences, and the weights and memory of a draft model.
    pub(super) fn sleep(&mut self) {
        if let Some(drafter) = &mut self.drafter {
            drafter.sleep();
        }
    }

    /// Takes its draft model again, if there was one.
    ///
    /// # Errors
    /// If there is none, or no room for its memory.
    pub(super) fn wake_up(&mut self, model: Option<Box<dyn Forward>>) -> Result<()> {
        match &mut self.drafter {
            Some(drafter) => drafter.wake_up(model),
            None => Ok(()),
        }
    }
}
