//! What is asked of a row of logits.

use crate::engine::api::SamplingOptions;
use std::collections::HashMap;

/// What is asked of a row of logits.
pub(in crate::engine) struct SamplingRequest<'a> {
    pub options: &'a SamplingOptions,
    /// The sequence so far.
    pub history: &'a [u32],
    /// Guesses behind it, up to the row.
    pub drafts: &'a [u32],
    /// How many of the last tokens of both were generated; all drafts are.
    pub generated: usize,
    /// The tokens that may come, if not all may.
    pub mask: Option<Vec<u32>>,
    pub top_logprobs: Option<usize>,
}

impl SamplingRequest<'_> {
    /// Recent tokens, for the repeat penalty.
    fn recent(&self) -> impl Iterator<Item = u32> + '_ {
        self.last(self.options.repeat_last_n)
    }

    fn generated(&self) -> impl Iterator<Item = u32> + '_ {
        self.last(self.generated)
    }

    /// The last so many tokens.
    fn last(&self, count: usize) -> impl Iterator<Item = u32> + '_ {
        let all = self.history.len() + self.drafts.len();
        let tokens = self.history.iter().chain(self.drafts).copied();
        tokens.skip(all.saturating_sub(count))
    }
}

/// How the repeat, frequency and presence penalties change logits, by token: what divides or multiplies, and what is
/// taken off.
pub(super) fn penalties(request: &SamplingRequest) -> HashMap<u32, (f32, f32)> {
    let options = request.options;
    let mut changes: HashMap<u32, (f32, f32)> = HashMap::new();
    if options.repeat_penalty != 1.0 {
        for token in request.recent() {
            changes.insert(token, (options.repeat_penalty, 0.0));
        }
    }
    if options.frequency_penalty != 0.0 || options.presence_penalty != 0.0 {
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for token in request.generated() {
            *counts.entry(token).or_default() += 1;
        }
        for (token, count) in counts {
            changes.entry(token).or_insert((1.0, 0.0)).1 =
                count as f32 * options.frequency_penalty + options.presence_penalty;
        }
    }
    changes
}
