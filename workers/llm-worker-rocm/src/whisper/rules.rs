//! What may come next: tokens of time in pairs that never go back, none of those that are never said.
//!
//! <https://github.com/openai/whisper/blob/main/whisper/decoding.py>

use super::tokens::Words;

/// Leaves the logits of what may follow `said`, the tokens of the answer so far; the others become minus infinity.
pub(super) fn apply(words: &Words, said: &[u32], logits: &mut [f32]) {
    const NEVER: f32 = f32::NEG_INFINITY;
    let first_time = words.first_time as usize;
    for &token in &words.suppressed {
        logits[token as usize] = NEVER;
    }
    if said.is_empty() {
        for &token in &words.suppressed_first {
            logits[token as usize] = NEVER;
        }
    }
    logits[words.timeless as usize] = NEVER;
    let is_time = |token: &u32| words.time(*token).is_some();
    let (last, before) = (said.last(), said.len().checked_sub(2).map(|i| &said[i]));
    let after_time = last.is_some_and(is_time);
    let after_two = before.is_none_or(is_time);
    match (after_time, after_two) {
        // A stretch begins: text.
        (true, true) => logits[first_time..].fill(NEVER),
        // A stretch has ended: the next one begins, or nothing follows.
        (true, false) => logits[..words.end as usize].fill(NEVER),
        _ => {}
    }
    if let Some(latest) = said.iter().rev().find(|&token| is_time(token)) {
        // The time at which one ends may be that at which the next one begins; none lasts no time.
        let least = match after_time && !after_two {
            true => *latest as usize,
            false => *latest as usize + 1,
        };
        let least = least.min(logits.len());
        logits[first_time..least].fill(NEVER);
    }
    if said.is_empty() {
        logits[..first_time].fill(NEVER);
        let behind = (words.last_first_time as usize).saturating_add(1);
        if let Some(late) = logits.get_mut(behind..) {
            late.fill(NEVER);
        }
    }
    // If times together are more likely than any other token, it is one.
    let (texts, times) = logits.split_at_mut(first_time);
    let best = texts.iter().copied().fold(NEVER, f32::max);
    if log_sum(times) > best {
        texts.fill(NEVER);
    }
}

/// The logarithm of the sum of the exponentials.
pub(super) fn log_sum(logits: &[f32]) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return largest;
    }
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    largest + sum.ln() as f32
}
