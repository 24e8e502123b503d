//! Where a model's weights are.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Where weights go when a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightOptions {
    /// Layers, from the first on, whose experts stay in the host's memory; `None` is as few as it takes for the rest to
    /// fit onto the device.
    pub host_experts: Option<usize>,
    /// Who computes with experts in the host's memory.
    pub experts_by: ExpertsBy,
    /// Whether weights on the host are copied, in place of being used where the mapped file has them.
    pub copy: bool,
    /// Whether pages of mapped weights are kept in memory.
    pub lock: bool,
    /// Bytes of each of the two places on the device where experts of the host come, unless those of one token take more.
    pub place_bytes: usize,
}

impl Default for WeightOptions {
    fn default() -> Self {
        Self {
            host_experts: None,
            experts_by: ExpertsBy::default(),
            copy: false,
            lock: false,
            place_bytes: 256 << 20,
        }
    }
}

/// Who computes with experts in the host's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpertsBy {
    /// Whoever is the faster for the rows of a step, by measurement.
    #[default]
    Measured,
    /// The CPU.
    Host,
    /// The GPU, which gets the matrices of the experts that a step has chosen.
    Device,
}

impl FromStr for ExpertsBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Measured),
            "cpu" => Ok(Self::Host),
            "gpu" => Ok(Self::Device),
            _ => Err(format!("{text} is not one of auto, cpu, gpu")),
        }
    }
}

impl std::fmt::Display for ExpertsBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Measured => "auto",
            Self::Host => "cpu",
            Self::Device => "gpu",
        })
    }
}

/// How much the weights take, as files have them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// On a device with memory of its own.
    pub device: u64,
    /// In the host's memory.
    pub host: u64,
    /// Of these, the ones that are used where the mapped file has them.
    pub mapped: u64,
}
