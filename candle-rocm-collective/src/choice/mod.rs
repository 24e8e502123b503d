//! The choice of a backend for the GPUs of one process: what can carry tensors between them is tried on known sums, and
//! of what works the fastest is taken for each size.
//!
//! What was measured is remembered beside the compiled kernels (`CANDLE_ROCM_CACHE_DIR`), for these GPUs in these places
//! with this version of ROCm: the next start only checks the sums again, of what it then uses.

mod chosen;
mod memory;
mod probe;
mod report;
#[cfg(test)]
mod tests;

use crate::{host, peers, rccl, Communicator, Error};
use candle::{Device, Result};
use chosen::Chosen;
pub use report::{Outcome, Report, Tried};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The environment variable that [`Options::from_env`] reads.
pub const VARIABLE: &str = "CANDLE_ROCM_COLLECTIVE";

/// What is to carry tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Choice {
    /// What works and is the fastest.
    #[default]
    Auto,
    /// Kernels over peers' memory, or an error.
    Peers,
    /// RCCL, or an error.
    Rccl,
    /// The host's memory.
    Host,
}

impl Choice {
    /// Every choice.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Peers, Self::Rccl, Self::Host];

    /// As users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Peers => "peers",
            Self::Rccl => "rccl",
            Self::Host => "host",
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> std::result::Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|choice| choice.as_str() == text);
        found.ok_or_else(|| Error::InvalidArgument {
            op: VARIABLE,
            reason: format!("{text:?} is none of auto, peers, rccl, host"),
        })
    }
}

/// How a backend is chosen.
#[derive(Debug, Clone)]
pub struct Options {
    /// What to use.
    pub choice: Choice,
    /// How long ranks wait for each other once the group is made.
    pub timeout: Duration,
    /// How long a backend may take for all checks, and for all measurements: one that takes longer is ruled out.
    pub patience: Duration,
    /// Bytes of the tensors that are measured, smallest first; those between them go with the nearest.
    pub sizes: Vec<usize>,
    /// Whether to use what was measured before, and to remember what is measured.
    pub remembers: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            choice: Choice::Auto,
            timeout: host::TIMEOUT,
            patience: Duration::from_secs(30),
            sizes: vec![8 << 10, 64 << 10, 512 << 10, 4 << 20],
            remembers: true,
        }
    }
}

impl Options {
    /// The defaults, with the choice that `CANDLE_ROCM_COLLECTIVE` names.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if that is no choice.
    pub fn from_env() -> Result<Self> {
        let choice = match std::env::var(VARIABLE) {
            Ok(text) if !text.is_empty() => text.parse()?,
            _ => Choice::Auto,
        };
        Ok(Self {
            choice,
            ..Self::default()
        })
    }
}

/// A backend that may be chosen.
#[derive(Clone, Copy)]
struct Candidate {
    name: &'static str,
    make: fn(&[Device], Duration) -> Result<Vec<Communicator>>,
}

/// All of them, the one that is preferred if two are alike first.
const CANDIDATES: &[Candidate] = &[
    Candidate {
        name: "peers",
        make: peers::group,
    },
    Candidate {
        name: "rccl",
        make: rccl::group_within,
    },
    Candidate {
        name: "host",
        make: host::group_within,
    },
];

/// A group with a rank for each device, in their order, on the backend that was chosen. Blocks until all candidates have
/// answered or the patience with them is exhausted; to be called from one thread, when the devices have nothing to do.
///
/// # Errors
/// For no device, and [`Error::Unavailable`] if the backend that was asked for does not work, with what is in its way.
pub fn group(devices: &[Device], options: &Options) -> Result<Vec<Communicator>> {
    choose(devices, options, CANDIDATES)
}

fn choose(
    devices: &[Device],
    options: &Options,
    candidates: &[Candidate],
) -> Result<Vec<Communicator>> {
    if devices.len() < 2 {
        return host::group_within(devices, options.timeout);
    }
    let wanted: Vec<Candidate> = candidates
        .iter()
        .copied()
        .filter(|c| options.choice == Choice::Auto || c.name == options.choice.as_str())
        .collect();
    let names: Vec<&str> = wanted.iter().map(|c| c.name).collect();
    let memory = options.remembers && options.choice == Choice::Auto;
    let memory = memory
        .then(|| memory::Memory::of(devices, &names))
        .flatten();
    if let Some(fastest) = memory
        .as_ref()
        .and_then(|m| m.recall(&options.sizes, &names))
    {
        let (used, other): (Vec<_>, Vec<_>) =
            wanted.iter().partition(|c| fastest.contains(&c.name));
        let mut tried = try_all(devices, options, &used);
        if tried.iter().all(|t| t.ranks.is_some()) {
            tried.extend(other.into_iter().map(Attempt::not_tried));
            return finish(devices, options, tried, &fastest, true);
        }
        // Something has changed: as if nothing were known.
    }
    let mut tried = try_all(devices, options, &wanted);
    let working = tried.iter().filter(|t| t.ranks.is_some()).count();
    if working == 0 {
        return Err(nothing_works(options.choice, &tried));
    }
    if working > 1 {
        for candidate in &mut tried {
            candidate.measure(options);
        }
    }
    let fastest = fastest(&tried, &options.sizes);
    let Some(fastest) = fastest else {
        return Err(nothing_works(options.choice, &tried));
    };
    if let Some(memory) = memory.filter(|_| working > 1) {
        memory.remember(&options.sizes, &fastest);
    }
    finish(devices, options, tried, &fastest, false)
}

/// A candidate that was tried.
struct Attempt {
    name: &'static str,
    /// If it works.
    ranks: Option<Vec<Communicator>>,
    outcome: Outcome,
}

impl Attempt {
    fn not_tried(candidate: &Candidate) -> Self {
        Self {
            name: candidate.name,
            ranks: None,
            outcome: Outcome::NotTried,
        }
    }

    fn rule_out(&mut self, reason: String) {
        self.ranks = None;
        self.outcome = Outcome::RuledOut { reason };
    }

    fn measure(&mut self, options: &Options) {
        let Some(ranks) = &self.ranks else {
            return;
        };
        match probe::measure(ranks, &options.sizes, options.patience) {
            Ok(times) => self.outcome = Outcome::Works { times },
            Err(reason) => self.rule_out(reason),
        }
    }
}

fn try_all(
    devices: &[Device],
    options: &Options,
    candidates: &[impl AsRef<Candidate>],
) -> Vec<Attempt> {
    let try_one = |candidate: &Candidate| {
        let mut tried = Attempt::not_tried(candidate);
        match (candidate.make)(devices, options.patience) {
            Err(error) => tried.rule_out(reason_of(candidate.name, &error)),
            Ok(ranks) => match probe::check(&ranks, options.patience) {
                Err(reason) => tried.rule_out(reason),
                Ok(()) => {
                    tried.ranks = Some(ranks);
                    tried.outcome = Outcome::Works { times: Vec::new() };
                }
            },
        }
        tried
    };
    candidates.iter().map(|c| try_one(c.as_ref())).collect()
}

impl AsRef<Candidate> for Candidate {
    fn as_ref(&self) -> &Candidate {
        self
    }
}

/// Why a backend cannot be made, without its name twice.
fn reason_of(name: &str, error: &candle::Error) -> String {
    match Error::of(error) {
        Some(Error::Unavailable { backend, reason }) if *backend == name => reason.clone(),
        _ => error.to_string(),
    }
}

/// What a backend that graphs cannot record has to be faster by: the launches of a whole decode step depend on it.
const WITHOUT_GRAPHS: u32 = 2;

/// For each size the name of what was fastest; the first that works where nothing was measured; none if nothing works.
fn fastest(tried: &[Attempt], sizes: &[usize]) -> Option<Vec<&'static str>> {
    let working = || tried.iter().filter(|t| t.ranks.is_some());
    let of_size = |at: usize| {
        let time = |t: &&Attempt| {
            let Outcome::Works { times } = &t.outcome else {
                return Duration::MAX;
            };
            let ranks = t.ranks.iter().flatten();
            let in_graphs = ranks.take(1).all(Communicator::is_capturable);
            let factor = if in_graphs { 1 } else { WITHOUT_GRAPHS };
            times
                .get(at)
                .map_or(Duration::MAX, |&(_, time)| time * factor)
        };
        // Of those that are alike the first.
        Some(working().min_by_key(time)?.name)
    };
    (0..sizes.len().max(1)).map(of_size).collect()
}

fn nothing_works(choice: Choice, tried: &[Attempt]) -> candle::Error {
    let reasons = tried.iter().map(|t| match &t.outcome {
        Outcome::RuledOut { reason } if choice == Choice::Auto => format!("{}: {reason}", t.name),
        Outcome::RuledOut { reason } => reason.clone(),
        Outcome::Works { .. } | Outcome::NotTried => t.name.to_string(),
    });
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    let error = Error::Unavailable {
        backend: match choice {
            Choice::Auto => "no backend",
            named => named.as_str(),
        },
        reason: match reasons.is_empty() {
            true => "this build has no such backend".to_string(),
            false => reasons,
        },
    };
    error.into()
}

/// The group of what was chosen, with the time-out of its use.
fn finish(
    devices: &[Device],
    options: &Options,
    tried: Vec<Attempt>,
    fastest: &[&'static str],
    was_remembered: bool,
) -> Result<Vec<Communicator>> {
    let used: Vec<&Attempt> = tried
        .iter()
        .filter(|t| t.ranks.is_some() && fastest.contains(&t.name))
        .collect();
    let by_size = fastest
        .iter()
        .filter_map(|name| used.iter().position(|t| t.name == *name));
    let by_size: Vec<usize> = by_size.collect();
    let report = Arc::new(Report {
        tried: tried
            .iter()
            .map(|t| Tried {
                name: t.name,
                outcome: t.outcome.clone(),
            })
            .collect(),
        sizes: options.sizes.clone(),
        fastest: fastest.to_vec(),
        was_remembered,
    });
    let rank = |(rank, device): (usize, &Device)| {
        let carriers = used.iter().filter_map(|t| t.ranks.as_ref()).map(|ranks| {
            let carrier = ranks[rank].carrier().clone();
            carrier.set_timeout(options.timeout);
            carrier
        });
        let chosen = Chosen::new(carriers.collect(), &by_size, &options.sizes, report.clone());
        Communicator::new(rank, devices.len(), device.clone(), Arc::new(chosen))
    };
    Ok(devices.iter().enumerate().map(rank).collect())
}
