//! Arguments that say whether steps are recorded.

use crate::graphs::GraphUse;
use clap::Args;

/// Whether the launches of a step are enqueued as one.
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// Whether a step's launches are recorded and enqueued as one graph: on, off, or auto, which is on unless this
    /// version of ROCm is known for wrong graphs on the GPU.
    #[arg(long, default_value_t, value_name = "WHEN")]
    graph: GraphUse,

    /// The same as `--graph off`: enqueue every launch of a step on its own.
    #[arg(long, conflicts_with = "graph")]
    no_graph: bool,
}

impl GraphArgs {
    /// What they come to.
    pub fn graphs(&self) -> GraphUse {
        match self.no_graph {
            true => GraphUse::Off,
            false => self.graph,
        }
    }
}
