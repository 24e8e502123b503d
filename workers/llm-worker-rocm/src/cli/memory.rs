//! Arguments that say where weights go.

use crate::engine::api::{ExpertsBy, WeightOptions};
use clap::Args;

/// Where weights go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Weights")]
pub struct MemoryArgs {
    /// Keep the experts of all layers in the host's memory, for mixtures of experts that a GPU has no room for.
    #[arg(long)]
    cpu_moe: bool,

    /// Keep the experts of the first N layers in the host's memory; as few as it takes for the rest to fit if absent.
    #[arg(long, value_name = "N", conflicts_with = "cpu_moe")]
    n_cpu_moe: Option<usize>,

    /// Who computes with experts in the host's memory: cpu, where they are; gpu, which gets the matrices that a step has
    /// chosen; or auto, whoever is the faster for its rows, as measured once and remembered.
    #[arg(long, default_value_t, value_name = "WHO")]
    experts_by: ExpertsBy,

    /// Copy weights that stay on the host, in place of using them where the mapped file has them.
    #[arg(long)]
    no_mmap: bool,

    /// Keep mapped weights in memory, however long they are not used.
    #[arg(long, conflicts_with = "no_mmap")]
    mlock: bool,
}

impl MemoryArgs {
    /// What they come to.
    pub(super) fn options(&self) -> WeightOptions {
        WeightOptions {
            host_experts: match self.cpu_moe {
                true => Some(usize::MAX),
                false => self.n_cpu_moe,
            },
            experts_by: self.experts_by,
            copy: self.no_mmap,
            lock: self.mlock,
            ..WeightOptions::default()
        }
    }
}
