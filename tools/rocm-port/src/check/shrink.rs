//! Making the input of a finding smaller, as long as the same is found: first sizes, then values towards zeros.
//!
//! What a size may be, a case does not say wholly. So it stays within the conditions, and a multiple of the largest power
//! of two that divides all values that the case gives it; sizes that change together keep to their rows. Grids and blocks
//! follow from sizes, and only with them.

use super::case::Case;
use super::finding::Kind;
use super::judge::{judge, judge_pair, Fault, Outputs};
use super::prepare::{is_allowed, names, Data, Point, Ready};
use super::run::Plan;
use super::session::{Ran, Session, Setup};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

/// Launches at most, and time.
const MOST_TRIES: usize = 200;
const MOST_TIME: Duration = Duration::from_secs(20);
/// Launches of what hangs: each takes the whole limit.
const MOST_HANGS: usize = 6;

/// A smaller input, and what is found with it.
pub(super) struct Smallest {
    pub point: Point,
    pub data: Data,
    pub fault: Fault,
}

pub(super) struct Shrinker<'a> {
    plan: &'a Plan<'a>,
    case: &'a Case,
    kind: Kind,
    setups: Vec<&'a Setup>,
    sessions: Vec<Option<Session>>,
    tries: usize,
    until: Instant,
}

impl<'a> Shrinker<'a> {
    /// For something that a case shows in one setup, or between two.
    pub fn new(plan: &'a Plan, case: &'a Case, kind: Kind, setups: Vec<&'a Setup>) -> Self {
        Shrinker {
            plan,
            case,
            kind,
            sessions: setups.iter().map(|_| None).collect(),
            setups,
            tries: match kind {
                Kind::Hang => MOST_HANGS,
                _ => MOST_TRIES,
            },
            until: Instant::now() + MOST_TIME,
        }
    }

    /// Makes an input smaller; none if it does not show the finding again.
    pub fn shrink(mut self, point: &Point) -> Option<Smallest> {
        let fault = self.fails(point, &Data::new())?;
        let mut smallest = Smallest {
            point: point.clone(),
            data: Data::new(),
            fault,
        };
        self.sizes(&mut smallest);
        self.values(&mut smallest);
        Some(smallest)
    }

    /// The fault with this input, if it is the one that is looked for.
    fn fails(&mut self, point: &Point, data: &Data) -> Option<Fault> {
        if self.tries == 0 || Instant::now() > self.until {
            return None;
        }
        self.tries -= 1;
        // Functions of a case may take for granted what its own sizes are.
        let (case, seed) = (self.case, self.plan.seed);
        let made = catch_unwind(AssertUnwindSafe(|| {
            let allowed = names(case, point).and_then(|names| is_allowed(case, &names));
            (allowed == Ok(true))
                .then(|| Ready::new(case, point, data, seed).ok())
                .flatten()
        }));
        let ready = made.ok().flatten()?;
        let mut outputs: Vec<Outputs> = Vec::new();
        for index in 0..self.setups.len() {
            let ran = self.run(index, &ready)?;
            match judge(&ready, ran) {
                Ok(more) => outputs.push(more),
                Err(faults) => {
                    let is_wanted = |fault: &Fault| fault.kind == self.kind;
                    return faults
                        .into_iter()
                        .find(is_wanted)
                        .filter(|_| self.setups.len() == 1);
                }
            }
        }
        match outputs.as_slice() {
            [one, other] => judge_pair(&ready, self.kind, one, other),
            _ => None,
        }
    }

    fn run(&mut self, index: usize, ready: &Ready) -> Option<Ran> {
        let mut session = match self.sessions[index].take() {
            Some(session) => session,
            None => {
                let plan = self.plan;
                Session::start(plan.program, self.setups[index], &plan.source, plan.limit).ok()?
            }
        };
        let ran = session.run(ready);
        if !matches!(ran, Ran::Died { .. }) {
            self.sessions[index] = Some(session);
        }
        Some(ran)
    }

    fn accept(&mut self, smallest: &mut Smallest, point: Point, data: Data) -> bool {
        let Some(fault) = self.fails(&point, &data) else {
            return false;
        };
        *smallest = Smallest { point, data, fault };
        true
    }

    fn sizes(&mut self, smallest: &mut Smallest) {
        // A smaller size of one may make another's smaller values fail.
        for _ in 0..3 {
            let before = smallest.point.clone();
            for (names, rows) in &self.case.sizes {
                let row: Option<Vec<i64>> = names
                    .iter()
                    .map(|n| smallest.point.get(n).copied())
                    .collect();
                let Some(row) = row else { continue };
                let candidates = match names.as_slice() {
                    [_] => smaller(row[0], rows),
                    _ => rows
                        .iter()
                        .filter(|other| other.iter().sum::<i64>() < row.iter().sum())
                        .cloned()
                        .collect(),
                };
                for candidate in candidates {
                    let mut point = smallest.point.clone();
                    point.extend(names.iter().cloned().zip(candidate));
                    if self.accept(smallest, point, Data::new()) {
                        break;
                    }
                }
            }
            if smallest.point == before {
                return;
            }
        }
    }

    fn values(&mut self, smallest: &mut Smallest) {
        let case = self.case;
        for (name, spec) in case.buffers().filter(|(_, spec)| spec.fill.is_random()) {
            let (seed, point) = (self.plan.seed, smallest.point.clone());
            let Ok(ready) = Ready::new(case, &point, &smallest.data, seed) else {
                return;
            };
            let Some(buffer) = ready.buffers.iter().find(|buffer| buffer.name == name) else {
                continue;
            };
            let (length, size) = (buffer.length, spec.dtype.size());
            let simplest = spec.fill.simplest(spec.dtype, &ready.names);
            let mut bytes = buffer.before.clone();
            if bytes.len() != length * size || simplest.len() != size {
                continue;
            }
            let mut chunk = length;
            while chunk > 0 {
                for start in (0..length).step_by(chunk) {
                    let range = start * size..(start + chunk).min(length) * size;
                    let mut simpler = bytes.clone();
                    simpler[range.clone()]
                        .chunks_mut(size)
                        .for_each(|e| e.copy_from_slice(&simplest));
                    if simpler == bytes {
                        continue;
                    }
                    let mut data = smallest.data.clone();
                    data.insert(name.to_string(), simpler.clone());
                    if self.accept(smallest, point.clone(), data) {
                        bytes = simpler;
                    }
                }
                if self.tries == 0 || Instant::now() > self.until {
                    return;
                }
                chunk /= 2;
            }
        }
    }
}

/// Smaller values of a size, the smallest first.
fn smaller(value: i64, rows: &[Vec<i64>]) -> Vec<Vec<i64>> {
    let given = rows.iter().filter_map(|row| row.first().copied());
    let bits = given.clone().fold(0, |bits, value| bits | value);
    let (step, least) = match bits {
        0 => (1, 0),
        bits => (
            1 << bits.trailing_zeros().min(32),
            given.min().unwrap_or(1).clamp(0, 1),
        ),
    };
    let parts = [
        value / 8,
        value / 4,
        value / 2,
        value / 2 + value / 4,
        value - step,
    ];
    let small = (0..=4i64).map(|n| n * step);
    let mut all: Vec<i64> = small
        .chain(parts)
        .filter(|n| n % step == 0 && *n >= least && *n < value)
        .collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|n| vec![n]).collect()
}

#[cfg(test)]
mod tests {
    use super::smaller;

    fn of(value: i64, given: &[i64]) -> Vec<i64> {
        let rows: Vec<Vec<i64>> = given.iter().map(|&n| vec![n]).collect();
        smaller(value, &rows).concat()
    }

    #[test]
    fn sizes_keep_what_they_are_multiples_of() {
        assert_eq!(
            of(1000, &[1, 31, 1000]),
            [1, 2, 3, 4, 125, 250, 500, 750, 999]
        );
        assert_eq!(of(128, &[64, 128]), [64]);
        assert_eq!(of(2, &[0, 2]), [0]);
        assert_eq!(of(1, &[1]), [0i64; 0]);
        assert_eq!(of(0, &[0]), [0i64; 0]);
        assert_eq!(of(96, &[96]), [32, 64]);
    }
}
