//! What the user asked for, as every section gets it.

use serde::{Deserialize, Serialize};

/// How thoroughly to look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// A minute instead of five.
    pub quick: bool,
    /// Tiny sizes, for hip-sim.
    pub small: bool,
    /// How long to compute and copy at once, in seconds, if asked for.
    pub soak_seconds: Option<u64>,
    /// Groups of operations to compare; all if empty.
    pub operations: Vec<String>,
    /// How much of the free device memory to test, in percent.
    pub memory_percent: u64,
}

impl Options {
    /// One of three values, by how thoroughly to look.
    pub fn pick<T>(&self, full: T, quick: T, small: T) -> T {
        match self {
            Self { small: true, .. } => small,
            Self { quick: true, .. } => quick,
            _ => full,
        }
    }
}
