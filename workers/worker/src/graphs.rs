//! Whether repeated work is enqueued as recorded graphs, and when they are given up.

use crate::fault::OutOfMemory;
use candle_core::{Device, Error};
use candle_rocm::known_issues;
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// With less free memory than this, or this part of all, HIP's own allocations for a graph may fail, which ends the
/// process.
const FREE_BYTES: usize = 256 << 20;
const FREE_PART: usize = 16;
/// Shapes whose recording may fail until there are no graphs any more.
const MOST_FAILURES: usize = 3;
/// Times that a shape is recorded until memory suffices.
const MOST_TRIES: usize = 3;

/// Whether launches are recorded and enqueued as graphs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GraphUse {
    /// Unless the installed version of ROCm is known for wrong graphs on the GPU.
    #[default]
    Auto,
    /// Also then.
    On,
    /// Never.
    Off,
}

impl FromStr for GraphUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("{text} is not one of auto, on, off")),
        }
    }
}

impl std::fmt::Display for GraphUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// Whether steps are enqueued as graphs.
#[derive(Debug, Default)]
pub struct Graphs {
    /// What is done in steps, for messages: `decoding`.
    doing: &'static str,
    wanted: bool,
    /// Why there are none although they are wanted.
    off: Option<String>,
    failures: usize,
}

/// Recordings of a shape that were of no use.
#[derive(Debug, Default)]
pub struct Tries(usize);

impl Tries {
    /// Whether it is worth another try.
    pub fn go_on(&self) -> bool {
        self.0 < MOST_TRIES
    }

    fn give_up(&mut self) {
        self.0 = MOST_TRIES;
    }
}

/// Why a shape has no graph, the least of reasons first.
#[derive(Debug)]
pub enum Refusal {
    /// An allocation failed meanwhile.
    Memory(Error),
    /// So few bytes are free.
    Room(usize),
    /// Something else did.
    Failed(Error),
    /// It computes something else.
    Differs(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error.is_out_of_memory() {
            true => Self::Memory(error),
            false => Self::Failed(error),
        }
    }
}

impl From<candle_rocm::Error> for Refusal {
    fn from(error: candle_rocm::Error) -> Self {
        Error::from(error).into()
    }
}

impl Graphs {
    /// Graphs on a device, for what is `doing` named in messages (`decoding`).
    pub fn new(doing: &'static str, graphs: GraphUse, device: &Device) -> Self {
        let mut new = Self {
            doing,
            wanted: graphs != GraphUse::Off && device.is_rocm(),
            off: None,
            failures: 0,
        };
        let issue = match (graphs, device) {
            (GraphUse::Auto, Device::Rocm(device)) => known_issue(device.device()),
            _ => None,
        };
        if let Some(issue) = issue {
            new.turn_off(format!("{issue}; --graph on uses them nevertheless"));
        }
        new
    }

    /// Whether there may be graphs.
    pub fn are_on(&self) -> bool {
        self.wanted && self.off.is_none()
    }

    /// Why there are none although they are wanted.
    pub fn off(&self) -> Option<&str> {
        self.off.as_deref()
    }

    /// From now on there are none.
    pub fn turn_off(&mut self, reason: String) {
        tracing::warn!(
            "{} goes on without graphs, more slowly: {reason}",
            self.doing
        );
        self.off.get_or_insert(reason);
    }

    /// Takes note that a shape has no graph.
    pub fn refused(&mut self, refusal: Refusal, tries: &mut Tries, device: &Device) {
        match refusal {
            Refusal::Room(free) => {
                tries.give_up();
                tracing::warn!(
                    "a step is not recorded as a graph: {} MiB of device memory are free, too few for HIP",
                    free >> 20
                );
            }
            Refusal::Memory(error) => {
                tries.0 += 1;
                tracing::debug!("a step is recorded later: {error}");
                // During the recording nothing could be given back. If this fails, the step will say so.
                if let Device::Rocm(device) = device {
                    let _ = device.device().trim();
                }
            }
            Refusal::Failed(error) => {
                tries.give_up();
                self.failures += 1;
                match self.failures < MOST_FAILURES {
                    true => tracing::warn!("a step cannot be recorded as a graph: {error}"),
                    false => self.turn_off(format!(
                        "{MOST_FAILURES} shapes of steps could not be recorded, the last: {error}"
                    )),
                }
            }
            Refusal::Differs(how) => self.turn_off(format!(
                "{how}: this version of ROCm is not to be trusted with graphs on this GPU"
            )),
        }
    }
}

/// What is known against graphs on a device.
fn known_issue(device: &candle_rocm::Device) -> Option<String> {
    known_issues::forbids_graphs(device).map(|issue| issue.effect.to_string())
}

/// Makes sure that HIP has room for a graph.
///
/// # Errors
/// [`Refusal::Room`], and the device's.
pub fn make_room(device: &candle_rocm::Device) -> Result<(), Refusal> {
    let enough = |(free, total): (usize, usize)| free >= FREE_BYTES.min(total / FREE_PART);
    if enough(device.memory_info()?) {
        return Ok(());
    }
    device.trim()?;
    match device.memory_info()? {
        memory if enough(memory) => Ok(()),
        (free, _) => Err(Refusal::Room(free)),
    }
}
