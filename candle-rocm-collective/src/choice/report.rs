//! What was found out of backends, for people.

use std::fmt;
use std::time::Duration;

/// What was tried, and what was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The candidates, in the order of preference.
    pub tried: Vec<Tried>,
    /// Bytes of the tensors that were measured.
    pub sizes: Vec<usize>,
    /// For each of them the backend that is used for such tensors.
    pub fastest: Vec<&'static str>,
    /// Whether it was measured at an earlier start, and only the sums were checked now.
    pub was_remembered: bool,
}

/// A candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    /// Its name.
    pub name: &'static str,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its sums are right.
    Works {
        /// The time of an all-reduce of so many bytes of f32; empty if it was not measured now.
        times: Vec<(usize, Duration)>,
    },
    /// It cannot be used.
    RuledOut {
        /// What is in its way, or what it did wrong.
        reason: String,
    },
    /// It was slower at an earlier start.
    NotTried,
}

/// Bytes in the largest unit that divides them.
fn bytes(count: usize) -> String {
    match count {
        n if n > 0 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n > 0 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => format!("{n} B"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for Tried { name, outcome } in &self.tried {
            match outcome {
                Outcome::Works { times } if times.is_empty() => {
                    writeln!(f, "{name}: sums are right")?
                }
                Outcome::Works { times } => {
                    let times = times.iter().map(|&(size, time)| {
                        format!("{} in {:.1} us", bytes(size), time.as_secs_f64() * 1e6)
                    });
                    writeln!(f, "{name}: {}", times.collect::<Vec<_>>().join(", "))?;
                }
                Outcome::RuledOut { reason } => writeln!(f, "{name}: ruled out, {reason}")?,
                Outcome::NotTried => writeln!(f, "{name}: not tried, it was slower before")?,
            }
        }
        let all_alike = self.fastest.windows(2).all(|pair| pair[0] == pair[1]);
        let taken = match self.fastest.first() {
            Some(name) if all_alike => (*name).to_string(),
            _ => {
                let sizes = self.sizes.iter().zip(&self.fastest);
                let sizes = sizes.map(|(&size, name)| format!("{name} near {}", bytes(size)));
                sizes.collect::<Vec<_>>().join(", ")
            }
        };
        let remembered = if self.was_remembered {
            " (measured before)"
        } else {
            ""
        };
        write!(f, "taken: {taken}{remembered}")
    }
}
