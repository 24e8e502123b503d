//! What goes wrong between ranks.

use candle::DType;
use std::time::Duration;

/// Why a collective gave no result. Reaches callers inside a [`candle::Error`]; [`Error::of`] finds it there.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A rank has given up, or was told to; the group is of no further use.
    #[error("rank {rank} of {size} has failed: {reason}")]
    RankFailed {
        /// The rank that failed.
        rank: usize,
        /// Number of ranks.
        size: usize,
        /// What it said.
        reason: String,
    },
    /// A rank did not come to a collective that this one waits in.
    #[error("rank {rank} of {size} did not come to {op} within {waited:?}: it hangs, or takes part in another call")]
    TimedOut {
        /// The rank that is missing.
        rank: usize,
        /// Number of ranks.
        size: usize,
        /// The collective.
        op: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// A collective does not end, and it is not known which rank is missing.
    #[error("{op} of {size} ranks did not end within {waited:?}: {hint}")]
    Stalled {
        /// The collective, or the coming up of the group.
        op: &'static str,
        /// Number of ranks.
        size: usize,
        /// How long was waited.
        waited: Duration,
        /// What often is the reason, and what to try.
        hint: String,
    },
    /// Elements that cannot be reduced.
    #[error("{op} is not available for {dtype:?}: {reason}")]
    UnsupportedDType {
        /// The collective.
        op: &'static str,
        /// The dtype.
        dtype: DType,
        /// Why not, and what to do.
        reason: &'static str,
    },
    /// Ranks brought tensors that do not belong together.
    #[error("{op}: rank {rank} came with {found}, this rank with {expected}")]
    Mismatch {
        /// The collective.
        op: &'static str,
        /// The other rank.
        rank: usize,
        /// What it brought.
        found: String,
        /// What this one brought.
        expected: String,
    },
    /// Nodes did not find each other.
    #[error("no rendezvous at {address}: {reason}")]
    Rendezvous {
        /// Where they were to meet, or who was to say so.
        address: String,
        /// What went wrong and what to do.
        reason: String,
    },
    /// Another node's process is gone.
    #[error("node {node} has failed: {reason}")]
    NodeFailed {
        /// The node.
        node: usize,
        /// How that was noticed.
        reason: String,
    },
    /// Another node said nothing for as long as it was listened to.
    #[error("node {node} sent nothing for {waited:?}")]
    NodeSilent {
        /// The node.
        node: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// A backend that was asked for cannot be used here.
    #[error("{backend} cannot carry tensors between these devices: {reason}")]
    Unavailable {
        /// The backend.
        backend: &'static str,
        /// What is in its way.
        reason: String,
    },
    /// An argument that no group could use.
    #[error("{op}: {reason}")]
    InvalidArgument {
        /// The collective.
        op: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    /// The error of a collective inside one of candle, if there is one.
    pub fn of(error: &candle::Error) -> Option<&Self> {
        match error {
            candle::Error::Io(inner) => inner.get_ref()?.downcast_ref(),
            candle::Error::Context { inner, .. } | candle::Error::WithPath { inner, .. } => {
                Self::of(inner)
            }
            candle::Error::WithBacktrace { inner, .. } => Self::of(inner),
            _ => None,
        }
    }
}

impl From<Error> for candle::Error {
    fn from(error: Error) -> Self {
        // What candle has for errors of other kinds keeps their text only.
        Self::Io(std::io::Error::other(error))
    }
}
