//! The drafts of a sequence.

use crate::engine::api::{DraftCount, GeneratedToken};

/// Weight of what was known of drafts before, against one that was just judged.
const DECAY: f64 = 0.95;
/// Drafts that what is known of other sequences counts for.
const PRIOR_WEIGHT: f64 = 2.0;

/// How often drafts were right of late: each counts less than those behind it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate {
    right: f64,
    judged: f64,
}

impl Rate {
    pub(super) fn note(&mut self, right: bool) {
        self.right = self.right * DECAY + f64::from(u8::from(right));
        self.judged = self.judged * DECAY + 1.0;
    }

    /// The probability that a draft behind right ones is right, `prior` if nothing is known.
    pub(super) fn probability(&self, prior: f64) -> f64 {
        (self.right + PRIOR_WEIGHT * prior) / (self.judged + PRIOR_WEIGHT)
    }
}

/// Guesses at a sequence's next tokens, and what became of earlier ones.
#[derive(Debug, Default)]
pub(in crate::engine) struct Drafts {
    guesses: Vec<u32>,
    /// So many of them are rows of the next step.
    checked: usize,
    pub(super) rate: Rate,
    pub count: DraftCount,
}

impl Drafts {
    /// Those that the next step checks.
    pub(in crate::engine) fn tokens(&self) -> &[u32] {
        &self.guesses[..self.checked]
    }

    pub(in crate::engine) fn set(&mut self, guesses: Vec<u32>) {
        self.checked = guesses.len();
        self.guesses = guesses;
    }

    /// Leaves at most so many to be checked.
    pub(in crate::engine) fn cut(&mut self, count: usize) {
        self.checked = self.checked.min(count);
    }

    pub(in crate::engine) fn clear(&mut self) {
        self.set(Vec::new());
    }

    /// What is known of the guesses now that these tokens have come, in their order: of those behind the first wrong
    /// one, and of those that no token stands against, nothing is.
    pub(super) fn judge<'a>(
        &'a self,
        taken: &'a [GeneratedToken],
    ) -> impl Iterator<Item = bool> + 'a {
        let mut right = true;
        let pairs = self.guesses.iter().zip(taken);
        pairs.map_while(move |(guess, token)| {
            let known = right;
            right = *guess == token.token;
            known.then_some(right)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_judged_up_to_the_first_wrong_one() {
        let taken = |tokens: &[u32]| -> Vec<GeneratedToken> {
            let token = |token: &u32| GeneratedToken {
                token: *token,
                logprob: None,
                top: Vec::new(),
                share: None,
            };
            tokens.iter().map(token).collect()
        };
        let mut drafts = Drafts::default();
        drafts.set(vec![1, 2, 3]);
        drafts.cut(1);
        assert_eq!(drafts.tokens(), [1]);
        // One that was not checked is judged, too, when its token has come.
        for (tokens, expected) in [
            (&[1, 2, 3, 4][..], &[true, true, true][..]),
            (&[1, 5], &[true, false]),
            (&[7, 2], &[false]),
            (&[1], &[true]),
        ] {
            let judged: Vec<bool> = drafts.judge(&taken(tokens)).collect();
            assert_eq!(judged, expected, "{tokens:?}");
        }
    }

    #[test]
    fn a_rate_follows_what_happens() {
        let mut rate = Rate::default();
        assert_eq!(rate.probability(0.5), 0.5);
        (0..100).for_each(|_| rate.note(true));
        assert!(rate.probability(0.5) > 0.9);
        (0..30).for_each(|_| rate.note(false));
        assert!(rate.probability(0.5) < 0.3);
    }
}
