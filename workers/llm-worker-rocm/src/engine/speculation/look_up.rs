//! Prompt look-up: a sequence goes on as it did when its last tokens came before (the idea of
//! <https://github.com/apoorvumang/prompt-lookup-decoding>).
//!
//! Places are found as by LZ77 encoders: a table has the last place behind each run of a few tokens, by hash, and each
//! place knows the one before it of the same hash. Tokens are indexed once, and of each run only the last few places
//! are compared: the time is linear in the number of tokens.

use super::drafter::{Ask, Drafter};
use crate::engine::forward::Forward;
use candle_core::Result;
use std::collections::HashMap;

/// Places that are compared for a guess.
const MOST_PLACES: usize = 16;
/// Where there is no earlier place.
const NOWHERE: u32 = u32::MAX;

/// Where the runs of a sequence's tokens end.
#[derive(Debug, Default)]
struct Index {
    /// The last place behind a run, by the run's hash.
    last: HashMap<u64, u32>,
    /// For each place the one before it behind a run of the same hash.
    before: Vec<u32>,
}

/// What tells runs apart, mostly.
fn hash(run: &[u32]) -> u64 {
    run.iter().fold(0, |hash: u64, token| {
        (hash.rotate_left(5) ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

impl Index {
    /// Takes in all places but the last one, which guesses are for.
    fn extend(&mut self, tokens: &[u32], shortest: usize) {
        if self.before.len() > tokens.len() {
            // Another text under the same name.
            *self = Self::default();
        }
        for place in self.before.len()..tokens.len() {
            let earlier = match place.checked_sub(shortest) {
                Some(start) => {
                    let key = hash(&tokens[start..place]);
                    self.last.insert(key, place as u32).unwrap_or(NOWHERE)
                }
                None => NOWHERE,
            };
            self.before.push(earlier);
        }
    }

    /// What followed where most of the last tokens came before, at least `shortest` of them and `longest` at most being
    /// compared; of equal places the last one counts.
    fn guess(
        &mut self,
        tokens: &[u32],
        (shortest, longest): (usize, usize),
        most: usize,
    ) -> Vec<u32> {
        self.extend(tokens, shortest);
        let Some(start) = tokens.len().checked_sub(shortest) else {
            return Vec::new();
        };
        let mut place = *self.last.get(&hash(&tokens[start..])).unwrap_or(&NOWHERE);
        let mut best = (shortest - 1, 0);
        for _ in 0..MOST_PLACES {
            if place == NOWHERE || best.0 >= longest {
                break;
            }
            let end = place as usize;
            let pairs = tokens.iter().rev().zip(tokens[..end].iter().rev());
            let same = pairs.take(longest).take_while(|(a, b)| a == b).count();
            if same > best.0 {
                best = (same, end);
            }
            place = self.before[end];
        }
        if best.1 == 0 {
            return Vec::new();
        }
        // Where what follows is not there yet, it is what is guessed itself.
        let period = tokens.len() - best.1;
        let mut guesses: Vec<u32> = Vec::with_capacity(most);
        for i in 0..most {
            let next = match tokens.get(best.1 + i) {
                Some(token) => *token,
                None => guesses[i - period],
            };
            guesses.push(next);
        }
        guesses
    }
}

/// Guesses from the earlier tokens of each sequence.
pub(super) struct LookUps {
    /// Tokens that are compared: at least, and at most.
    lengths: (usize, usize),
    indices: HashMap<u64, Index>,
}

impl LookUps {
    pub(super) fn new(shortest: usize, longest: usize) -> Self {
        let shortest = shortest.max(1);
        Self {
            lengths: (shortest, longest.max(shortest)),
            indices: HashMap::new(),
        }
    }
}

impl Drafter for LookUps {
    fn is_free(&self) -> bool {
        true
    }

    fn guess(&mut self, _: &mut dyn Forward, asks: &[Ask]) -> Result<Vec<Vec<u32>>> {
        let guess = |ask: &Ask| {
            let index = self.indices.entry(ask.id).or_default();
            index.guess(ask.tokens, self.lengths, ask.most)
        };
        Ok(asks.iter().map(guess).collect())
    }

    fn forget(&mut self, id: u64) {
        self.indices.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[u32], lengths: (usize, usize), most: usize) -> Vec<u32> {
        Index::default().guess(tokens, lengths, most)
    }

    #[test]
    fn what_followed_the_longest_match_is_guessed() {
        // "2 3" came twice; "9 2 3" once, and is more like the end.
        let tokens = [9, 2, 3, 7, 8, 1, 2, 3, 5, 5, 9, 2, 3];
        assert_eq!(guess(&tokens, (2, 8), 3), [7, 8, 1]);
        // Compared by two tokens only, the last place counts.
        assert_eq!(guess(&tokens, (2, 2), 3), [5, 5, 9]);
        assert!(guess(&tokens, (4, 8), 3).is_empty());
        assert!(guess(&[1, 2, 3], (2, 8), 3).is_empty());
        assert!(guess(&[1], (2, 8), 3).is_empty());
    }

    #[test]
    fn a_period_goes_on() {
        assert_eq!(guess(&[4, 1, 2, 1, 2], (2, 8), 5), [1, 2, 1, 2, 1]);
        assert_eq!(guess(&[7, 7, 7], (2, 8), 4), [7, 7, 7, 7]);
    }

    #[test]
    fn an_index_that_grows_finds_what_a_new_one_finds() {
        let tokens: Vec<u32> = (0..400u32).map(|i| i * i % 37 % 5).collect();
        let mut grown = Index::default();
        let mut found = 0;
        for end in 1..tokens.len() {
            let expected = guess(&tokens[..end], (3, 12), 6);
            assert_eq!(grown.guess(&tokens[..end], (3, 12), 6), expected);
            found += expected.len();
        }
        assert!(found > 1000, "{found}");
        // Another sequence of the same name.
        assert_eq!(grown.guess(&[4, 1, 2, 1, 2], (2, 8), 2), [1, 2]);
    }
}
