//! How many drafts pay: a model of what steps cost by their rows and what drafts bring by how often they were right.
//!
//! A step's time by its number of rows is measured as it goes, with a running mean for each number; between measured
//! numbers it is taken to grow evenly. Drafts are given out one after another to the sequence whose next one is most
//! likely right, and as many of them are taken as give the most tokens a second. Now and then a step without drafts, or
//! one with some where they do not pay, shows whether what was measured still holds.

use std::collections::BTreeMap;
use std::time::Duration;

/// First steps of a number of rows that are not measured: they compile kernels and record graphs.
const WARM_UPS: u32 = 2;
/// Steps that a mean looks back.
const MEMORY: u32 = 8;
/// A step counts as at most so many times the mean.
const MOST_OUTLYING: f64 = 4.0;
/// By how much drafts have to raise the rate of tokens.
const LEAST_GAIN: f64 = 1.03;
/// Steps with drafts between those without.
const BASE_EVERY: u32 = 64;
/// Steps without drafts between those that try some, at first and at most.
const TRY_EVERY: (u32, u32) = (128, 1024);

/// A running mean of times in seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    count: u32,
    value: f64,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        self.count = self.count.saturating_add(1);
        match self.count.saturating_sub(WARM_UPS) {
            0 => {}
            1 => self.value = seconds,
            measured => {
                let seconds = seconds.min(MOST_OUTLYING * self.value);
                self.value += (seconds - self.value) / f64::from(measured.min(MEMORY));
            }
        }
    }

    fn get(&self) -> Option<f64> {
        (self.count > WARM_UPS).then_some(self.value)
    }
}

/// A sequence that could have drafts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    /// How likely a draft behind right ones is right.
    pub probability: f64,
    pub most: usize,
}

/// What is known of times.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Time of a step, by its rows.
    steps: BTreeMap<usize, Mean>,
    /// Time of one guess for each sequence.
    guess: Mean,
    /// Steps since one without drafts, and since one with some.
    since_base: u32,
    since_drafts: u32,
    /// Steps until drafts are tried again.
    patience: u32,
}

impl Pace {
    /// Takes in what a step of so many rows took that read no prompts, and what its guesses took, at most `guesses` for
    /// a sequence. `drafts` is how many rows were drafts.
    pub(super) fn measured(
        &mut self,
        (rows, drafts, guesses): (usize, usize, usize),
        step: Duration,
        guessing: Duration,
    ) {
        self.steps.entry(rows).or_default().add(step.as_secs_f64());
        if guesses > 0 {
            let each = guessing.as_secs_f64() / guesses as f64;
            self.guess.add(each);
        }
        if drafts > 0 {
            self.since_base = self.since_base.saturating_add(1);
            self.since_drafts = 0;
        } else {
            self.since_base = 0;
            self.since_drafts = self.since_drafts.saturating_add(1);
        }
    }

    /// Seconds of a step, as far as anything is known; like the largest measured one beyond it.
    fn step(&self, rows: usize) -> Option<f64> {
        let known = |(rows, mean): (&usize, &Mean)| Some((*rows as f64, mean.get()?));
        let below = self.steps.range(..=rows).rev().find_map(known);
        let above = self.steps.range(rows..).find_map(known);
        match (below, above) {
            (Some((a, low)), Some((b, high))) if b > a => {
                Some(low + (high - low) * (rows as f64 - a) / (b - a))
            }
            (Some((_, low)), _) => Some(low),
            (None, high) => high.map(|(_, high)| high),
        }
    }

    /// How many drafts each sequence should have in a step of these sequences.
    pub(super) fn counts(&mut self, candidates: &[Candidate]) -> Vec<usize> {
        let none = vec![0; candidates.len()];
        let base = candidates.len();
        let measured = self.steps.get(&base).and_then(Mean::get);
        let Some(base_time) = measured.filter(|_| self.since_base < BASE_EVERY) else {
            return none;
        };
        let (best, gain) = self.best(candidates, base, base_time);
        if gain >= LEAST_GAIN {
            self.patience = TRY_EVERY.0;
            return best;
        }
        let patience = self.patience.max(TRY_EVERY.0);
        if self.since_drafts < patience {
            return none;
        }
        self.patience = (2 * patience).min(TRY_EVERY.1);
        best
    }

    /// The best numbers of drafts that are not all 0, and by what they multiply the rate of tokens.
    fn best(&self, candidates: &[Candidate], base: usize, base_time: f64) -> (Vec<usize>, f64) {
        let guess = self.guess.get().unwrap_or(0.0);
        let mut counts = vec![0; candidates.len()];
        let mut best = (counts.clone(), 0.0);
        // That the next draft of each sequence is right, with all before it.
        let mut chances: Vec<f64> = candidates.iter().map(|c| c.probability).collect();
        let (mut tokens, mut rows) = (base as f64, base);
        loop {
            let open = (0..counts.len()).filter(|i| counts[*i] < candidates[*i].most);
            let Some(next) = open.max_by(|a, b| chances[*a].total_cmp(&chances[*b])) else {
                return best;
            };
            counts[next] += 1;
            tokens += chances[next];
            chances[next] *= candidates[next].probability;
            rows += 1;
            let longest = counts.iter().max().copied().unwrap_or(0);
            let time = self.step(rows).unwrap_or(base_time) + guess * longest as f64;
            let gain = (tokens / time) / (base as f64 / base_time);
            if gain > best.1 {
                best = (counts.clone(), gain);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::drafts::Rate;
    use super::*;

    /// A machine that exists in numbers only: time of a step by its rows and time of a guess, in milliseconds, and how
    /// often drafts are right.
    struct Machine {
        step: fn(usize) -> f64,
        guess: f64,
        right: f64,
    }

    /// Milliseconds that a token of one of `sequences` takes, with drafts and without, behind a warm-up.
    fn per_token(machine: &Machine, sequences: usize, most: usize) -> (f64, f64) {
        let mut pace = Pace::default();
        let mut rates = vec![Rate::default(); sequences];
        let mut random = 7u64;
        let mut chance = move || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 40) as f64 / f64::from(1 << 24)
        };
        let (mut time, mut tokens) = (0.0, 0);
        for step in 0..3000 {
            let candidate = |rate: &Rate| Candidate {
                probability: rate.probability(0.5),
                most,
            };
            let candidates: Vec<Candidate> = rates.iter().map(candidate).collect();
            let counts = pace.counts(&candidates);
            let drafts: usize = counts.iter().sum();
            let longest = counts.iter().max().copied().unwrap_or(0);
            let rows = sequences + drafts;
            let (took, guessing) = ((machine.step)(rows), machine.guess * longest as f64);
            let milliseconds = |ms: f64| Duration::from_secs_f64(ms / 1e3);
            let (took_time, guess_time) = (milliseconds(took), milliseconds(guessing));
            pace.measured((rows, drafts, longest), took_time, guess_time);
            let mut came = sequences;
            for (rate, count) in rates.iter_mut().zip(&counts) {
                for _ in 0..*count {
                    let right = chance() < machine.right;
                    rate.note(right);
                    if !right {
                        break;
                    }
                    came += 1;
                }
            }
            if step >= 200 {
                time += took + guessing;
                tokens += came;
            }
        }
        let without = (machine.step)(sequences) / sequences as f64;
        (time / tokens as f64, without)
    }

    #[test]
    fn drafts_that_are_right_pay_where_rows_are_cheap() {
        let memory_bound = Machine {
            step: |rows| 10.0 + 0.2 * rows as f64,
            guess: 0.0,
            right: 0.8,
        };
        let (with, without) = per_token(&memory_bound, 1, 7);
        assert!(with < without / 2.5, "{with} for {without}");
        let (with, without) = per_token(&memory_bound, 4, 7);
        assert!(with < without / 2.0, "{with} for {without}");
        // A draft model that takes a tenth of the time.
        let (with, without) = per_token(
            &Machine {
                guess: 1.0,
                ..memory_bound
            },
            1,
            7,
        );
        assert!(with < without / 1.7, "{with} for {without}");
    }

    #[test]
    fn drafts_are_off_where_they_do_not_pay() {
        for (machine, sequences) in [
            // Each row takes as long as the first.
            ((|rows| 10.0 * rows as f64) as fn(usize) -> f64, 1),
            (|rows| 10.0 * rows as f64, 5),
            // Several rows take another path.
            (|rows| if rows == 1 { 10.0 } else { 40.0 }, 1),
        ] {
            for (right, guess) in [(0.9, 5.0), (0.5, 0.0), (0.02, 3.0)] {
                let machine = Machine {
                    step: machine,
                    guess,
                    right,
                };
                let (with, without) = per_token(&machine, sequences, 7);
                assert!(with < 1.03 * without, "{right}: {with} for {without}");
            }
        }
        // Rows are cheap, drafts are wrong.
        let (with, without) = per_token(
            &Machine {
                step: |rows| 10.0 + 0.5 * rows as f64,
                guess: 2.0,
                right: 0.02,
            },
            1,
            7,
        );
        assert!(with < 1.03 * without, "{with} for {without}");
    }

    #[test]
    fn the_likelier_sequence_gets_the_drafts() {
        let mut pace = Pace::default();
        // Up to four rows are as cheap as two.
        for rows in [2, 4, 5] {
            let step = Duration::from_millis(if rows <= 4 { 10 } else { 50 });
            (0..5).for_each(|_| pace.measured((rows, 0, 0), step, Duration::ZERO));
        }
        let candidate = |probability, most| Candidate { probability, most };
        let counts = pace.counts(&[candidate(0.2, 7), candidate(0.9, 7)]);
        assert_eq!(counts, [0, 2]);
        let counts = pace.counts(&[candidate(0.2, 7), candidate(0.9, 1)]);
        assert_eq!(counts, [1, 1]);
        assert_eq!(pace.counts(&[candidate(0.9, 7)]), [0], "unmeasured");
        assert_eq!(pace.counts(&[candidate(0.9, 7), candidate(0.9, 0)]), [2, 0]);
    }

    #[test]
    fn a_slow_step_now_and_then_changes_little() {
        let mut mean = Mean::default();
        mean.add(9.0);
        mean.add(9.0);
        assert_eq!(mean.get(), None);
        (0..20).for_each(|_| mean.add(1.0));
        mean.add(1000.0);
        assert!(mean.get().unwrap() < 1.5);
    }
}
