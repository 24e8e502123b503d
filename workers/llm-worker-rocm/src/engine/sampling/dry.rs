//! Repetitions that a next token would go on with, see [`Dry`].

use crate::engine::api::Dry;
use crate::tokenizer::Tokenizer;
use std::collections::HashMap;

/// Tokens of what follows a token that begins a text which ends runs, at most.
const MOST_TAIL: usize = 20;

/// Tokens that end runs: each with what has to follow it, of which nothing is enough for most.
#[derive(Debug, Default, PartialEq)]
pub(in crate::engine) struct Breakers(HashMap<u32, Vec<Vec<u32>>>);

impl Breakers {
    /// The tokens that spell these texts, alone or as the end of one and the beginning of others.
    pub(in crate::engine) fn new(texts: &[String], tokenizer: &Tokenizer) -> Self {
        let mut heads: HashMap<u32, Vec<Vec<u32>>> = HashMap::new();
        for text in texts {
            let bytes = text.as_bytes();
            // What is left of the text behind a token with its first bytes.
            let mut tails: HashMap<usize, Vec<u32>> = HashMap::new();
            for token in 0..tokenizer.vocab_size() as u32 {
                let spelled = tokenizer.token_bytes(token);
                let mut add = |tail: Vec<u32>| {
                    let tails = heads.entry(token).or_default();
                    if !tails.contains(&tail) {
                        tails.push(tail);
                    }
                };
                if spelled.windows(bytes.len()).any(|part| part == bytes) {
                    add(Vec::new());
                    continue;
                }
                for taken in 1..bytes.len().min(spelled.len() + 1) {
                    if !text.is_char_boundary(taken) || !spelled.ends_with(&bytes[..taken]) {
                        continue;
                    }
                    let tail = tails.entry(taken).or_insert_with(|| {
                        let mut tail = tokenizer.encode(&text[taken..], false).unwrap_or_default();
                        tail.truncate(MOST_TAIL);
                        tail
                    });
                    if !tail.is_empty() {
                        add(tail.clone());
                    }
                }
            }
        }
        Self(heads)
    }

    /// Whether a token ends runs whatever follows it.
    fn is_lone(&self, token: u32) -> bool {
        self.0
            .get(&token)
            .is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// Tokens at the end of `tokens` behind the last text that ends runs.
    fn run(&self, tokens: &[u32]) -> usize {
        let found = (0..tokens.len()).rev().find_map(|place| {
            let tails = self.0.get(&tokens[place])?;
            let behind = &tokens[place + 1..];
            let matching = tails.iter().filter(|tail| behind.starts_with(tail));
            let longest = matching.map(Vec::len).max()?;
            Some(behind.len() - longest)
        });
        found.unwrap_or(tokens.len())
    }
}

/// What is taken off the logits of tokens that would go on with a run of `recent` tokens.
pub(super) fn penalties(dry: &Dry, breakers: &Breakers, recent: &[u32]) -> HashMap<u32, f32> {
    let most = breakers.run(recent);
    let mut longest: HashMap<u32, usize> = HashMap::new();
    if most < dry.allowed_length.max(1) {
        return HashMap::new();
    }
    let lengths = suffix_lengths(recent);
    for (next, length) in recent.iter().skip(1).zip(lengths) {
        let length = length.min(most);
        if length >= dry.allowed_length.max(1) && !breakers.is_lone(*next) {
            let known = longest.entry(*next).or_default();
            *known = length.max(*known);
        }
    }
    let penalty = |length: usize| {
        let exponent = (length - dry.allowed_length) as f32;
        (dry.multiplier * dry.base.powf(exponent)).min(f32::MAX)
    };
    longest
        .into_iter()
        .map(|(token, length)| (token, penalty(length)))
        .collect()
}

/// For each place but the last, how many tokens up to it are the last ones of all: the Z function of the tokens
/// backwards ("Algorithms on Strings, Trees, and Sequences", Gusfield, 1997).
fn suffix_lengths(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let back = |i: usize| tokens[n - 1 - i];
    let mut z = vec![0; n];
    // The part that ends furthest among those that are like the beginning.
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut length = match i < right {
            true => z[i - left].min(right - i),
            false => 0,
        };
        while i + length < n && back(length) == back(i + length) {
            length += 1;
        }
        if i + length > right {
            (left, right) = (i, i + length);
        }
        z[i] = length;
    }
    z.into_iter().skip(1).rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dry() -> Dry {
        Dry {
            base: 2.0,
            ..Dry::new(0.5)
        }
    }

    fn sorted(penalties: HashMap<u32, f32>) -> Vec<(u32, f32)> {
        let mut all: Vec<_> = penalties.into_iter().collect();
        all.sort_by_key(|(token, _)| *token);
        all
    }

    #[test]
    fn suffixes_are_found_as_by_looking() {
        let mut state = 7u32;
        for length in 0..40 {
            let tokens: Vec<u32> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 31
                })
                .collect();
            let plain = |place: usize| {
                let pairs = tokens[..=place].iter().rev().zip(tokens.iter().rev());
                pairs.take_while(|(a, b)| a == b).count()
            };
            let expected: Vec<usize> = (0..tokens.len().saturating_sub(1)).map(plain).collect();
            assert_eq!(suffix_lengths(&tokens), expected, "{tokens:?}");
        }
    }

    #[test]
    fn what_goes_on_with_a_run_is_punished_by_its_length() {
        let none = Breakers::default();
        // 1 2 3 was followed by 3, 2 3 by 5, 3 alone by 4.
        let recent = [1, 2, 3, 3, 4, 2, 3, 5, 1, 2, 3];
        let found = sorted(penalties(&dry(), &none, &recent));
        assert_eq!(found, [(3, 1.0), (5, 0.5)]);
        // Not across what ends runs: 2 3 are left.
        let breakers = |token, tails: &[&[u32]]| {
            let tails = tails.iter().map(|tail| tail.to_vec()).collect();
            Breakers([(token, tails)].into())
        };
        let found = sorted(penalties(&dry(), &breakers(1, &[&[]]), &recent));
        assert_eq!(found, [(3, 0.5), (5, 0.5)]);
        // With what follows, nothing is left; without, it ends nothing.
        assert!(penalties(&dry(), &breakers(1, &[&[2]]), &recent).is_empty());
        let found = sorted(penalties(&dry(), &breakers(1, &[&[3]]), &recent));
        assert_eq!(found, [(3, 1.0), (5, 0.5)]);
        // A token that ends runs goes on with none.
        let found = sorted(penalties(&dry(), &breakers(5, &[&[]]), &recent));
        assert_eq!(found, [(3, 1.0)]);
        assert!(penalties(&dry(), &none, &[]).is_empty());
    }

    #[test]
    fn long_runs_stay_numbers() {
        let recent = vec![1; 4000];
        let found = penalties(&dry(), &Breakers::default(), &recent);
        assert_eq!(found[&1], f32::MAX);
    }
}
