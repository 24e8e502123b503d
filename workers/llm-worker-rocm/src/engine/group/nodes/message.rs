//! What nodes say to each other once they have met.

use super::command::{WireCommand, WireTold};
use super::plan::NodePlan;
use crate::engine::api::WeightOptions;
use crate::engine::decoder::{Notes, Unused};
use serde::{Deserialize, Serialize};

/// From the leader.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order<'a> {
    /// Load a part of the model; answered by [`Report::Loaded`].
    Load(Loading),
    /// Give it back.
    Unload,
    /// Have all ranks carry out the command of this number, or the only rank that is named; answered by
    /// [`Report::Told`] of each.
    Command(u64, Option<usize>, WireCommand<'a>),
    /// The work is done.
    End,
}

/// From a follower.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// Its part is loaded.
    Loaded(Loaded),
    /// What a rank says to a command.
    Told(usize, WireTold),
}

/// What comes of loading a part.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Loaded {
    /// What tells its tensors from others.
    pub notes: Notes,
    /// Adapters that have something for none of its matrices.
    pub unused: Unused,
    /// What its weights take on devices with memory of their own, in the host's memory, and of that where the mapped
    /// file has them.
    pub weights: [u64; 3],
}

/// How the model is loaded: the leader's options count.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Loading {
    /// Longest sequence that will come, in tokens; `None` is the model's own.
    pub context: Option<usize>,
    /// Whether the heads that predict further tokens are loaded, too.
    pub head: bool,
    /// Where weights go.
    pub weights: WeightOptions,
    /// Who has which part.
    pub plan: NodePlan,
}
