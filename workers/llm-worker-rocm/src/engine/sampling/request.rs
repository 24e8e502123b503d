//! What is asked of a row of logits.

use super::aim::AimState;
use super::dry::{self, Breakers};
use crate::engine::api::{Sampler, SamplingOptions};
use std::collections::HashMap;

/// What is asked of a row of logits.
pub(in crate::engine) struct SamplingRequest<'a> {
    pub options: &'a SamplingOptions,
    /// What ends runs of tokens, for [`Dry`](crate::engine::api::Dry).
    pub breakers: Option<&'a Breakers>,
    /// What the options' aim has learned so far.
    pub aim: Option<AimState>,
    /// The sequence so far.
    pub history: &'a [u32],
    /// Guesses behind it, up to the row.
    pub drafts: &'a [u32],
    /// How many of the last tokens of both were generated; all drafts are.
    pub generated: usize,
    /// Place in the random sequence.
    pub position: u32,
    /// The tokens that may come, if not all may.
    pub mask: Option<Vec<u32>>,
    pub top_logprobs: Option<usize>,
    /// Whether these are among the tokens that are left.
    pub after_sampling: bool,
}

/// What becomes of a logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LogitEdit {
    /// Divides positive logits and multiplies negative ones.
    pub factor: f32,
    /// Taken off then.
    pub less: f32,
}

impl LogitEdit {
    pub(super) fn of(self, logit: f32) -> f32 {
        let scaled = match logit > 0.0 {
            true => logit / self.factor,
            false => logit * self.factor,
        };
        scaled - self.less
    }
}

impl SamplingRequest<'_> {
    /// Whether the device cannot choose: samplers in another order than the usual one, an aim, probabilities among the
    /// tokens that are left.
    pub(super) fn needs_host(&self) -> bool {
        let is_unusual = self.aim.is_some() || !self.options.is_usual_order();
        self.options.temperature > 0.0 && is_unusual || self.tells_left()
    }

    /// Whether probabilities among the tokens that are left are asked for.
    pub(super) fn tells_left(&self) -> bool {
        self.after_sampling && self.top_logprobs.is_some()
    }

    /// The samplers that change something: those that come before all that leave tokens out, in the order that one
    /// edit of a logit has, and those behind them.
    pub(super) fn samplers(&self) -> (Vec<Sampler>, Vec<Sampler>) {
        let all = self.options.order.samplers().iter().copied();
        let mut leading: Vec<Sampler> = all.filter(|s| self.options.uses(*s)).collect();
        let editing = leading.iter().take_while(|s| **s <= Sampler::Dry);
        let count = match editing.clone().is_sorted() {
            true => editing.count(),
            false => 1,
        };
        let rest = leading.split_off(count);
        (leading, rest)
    }

    /// What penalties and DRY make of logits, by token.
    pub(super) fn edits(&self, samplers: &[Sampler]) -> HashMap<u32, LogitEdit> {
        let options = self.options;
        const NONE: LogitEdit = LogitEdit {
            factor: 1.0,
            less: 0.0,
        };
        let mut edits: HashMap<u32, LogitEdit> = HashMap::new();
        if samplers.contains(&Sampler::Penalties) {
            if options.repeat_penalty != 1.0 {
                for token in self.last(options.repeat_last_n) {
                    edits.entry(token).or_insert(NONE).factor = options.repeat_penalty;
                }
            }
            if options.frequency_penalty != 0.0 || options.presence_penalty != 0.0 {
                let mut counts: HashMap<u32, u32> = HashMap::new();
                for token in self.last(self.generated) {
                    *counts.entry(token).or_default() += 1;
                }
                for (token, count) in counts {
                    edits.entry(token).or_insert(NONE).less +=
                        count as f32 * options.frequency_penalty + options.presence_penalty;
                }
            }
        }
        if let Some(dry) = options
            .dry
            .as_ref()
            .filter(|_| samplers.contains(&Sampler::Dry))
        {
            let recent: Vec<u32> = self.last(dry.last_n).collect();
            let none = Breakers::default();
            let breakers = self.breakers.unwrap_or(&none);
            for (token, less) in dry::penalties(dry, breakers, &recent) {
                edits.entry(token).or_insert(NONE).less += less;
            }
        }
        edits
    }

    /// The last so many tokens.
    fn last(&self, count: usize) -> impl Iterator<Item = u32> + '_ {
        let all = self.history.len() + self.drafts.len();
        let tokens = self.history.iter().chain(self.drafts).copied();
        tokens.skip(all.saturating_sub(count))
    }
}
