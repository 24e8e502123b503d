//! What ranks are told, and what they answer: plain data, so that it can go to other hosts, too.

use super::plan::Rank;
use crate::engine::api::{AdapterUse, GraphUse, KvTypes};
use crate::engine::decoder::Layout;
use crate::engine::forward::{
    CacheOptions, CachePart, Decoded, HeadStep, Predicted, SampleParams, Step,
};
use crate::engine::media::StepMedia;
use crate::engine::snapshots::Place;
use candle_core::{Result, Tensor};
use std::sync::Arc;

/// What all ranks are told to do, in the same order.
#[derive(Debug, Clone)]
pub enum Command {
    /// A forward pass; see [`Forward::forward`](crate::engine::forward::Forward::forward).
    Pass {
        /// The step.
        step: Step,
        /// What some of its rows have besides their tokens.
        media: Option<Arc<StepMedia>>,
        /// What its sequences want of adapters, in their order; empty if there are no adapters.
        uses: Vec<Arc<[AdapterUse]>>,
        /// Rows that are computed at once at most.
        rows: usize,
    },
    /// A pass of few rows; see [`Forward::decode`](crate::engine::forward::Forward::decode).
    Decode {
        /// The step.
        step: Step,
        /// As in [`Command::Pass`].
        uses: Vec<Arc<[AdapterUse]>>,
    },
    /// A pass of a head; see [`Forward::predict`](crate::engine::forward::Forward::predict).
    Predict(HeadStep),
    /// Reserves the cache.
    Reserve(CacheOptions),
    /// Whether to use graphs.
    SetGraphs(GraphUse),
    /// Tells what the rank has of a cache of this kind.
    Measure(KvTypes),
    /// Tells what a place of the cache holds.
    Read(Place),
    /// Overwrites a place of the cache, which has so many bytes on this rank.
    Write(Place, Arc<[u8]>),
    /// Ends the rank.
    Stop,
}

impl Command {
    /// Whether a rank has anything to do with it.
    pub fn concerns(&self, rank: &Rank) -> bool {
        match self {
            Self::Predict(_) => rank.is_last(),
            _ => true,
        }
    }
}

/// What a rank answers.
#[derive(Debug)]
pub enum Told {
    /// It is done: by a rank that has nothing to say.
    Done,
    /// Logits, `(outputs, vocabulary)`, of a [`Command::Pass`].
    Logits(Tensor),
    /// What comes of a [`Command::Decode`].
    Decoded(Decoded),
    /// What comes of a [`Command::Predict`].
    Predicted(Predicted),
    /// How the memory is laid out that [`Command::Reserve`] has reserved.
    Reserved(Layout),
    /// What the rank has of a cache, and the keys before its own that a token sees in its layers with a sliding window.
    Measured(CachePart, Option<usize>),
    /// What a place holds.
    Bytes(Vec<u8>),
}

/// Does what ranks are told.
pub trait Obey: Send {
    /// Carries a command out, the one of this number; `samples` has how to choose tokens, if somebody wants them of this
    /// rank.
    ///
    /// # Errors
    /// If that fails.
    fn obey(
        &mut self,
        number: u64,
        command: &Command,
        samples: Option<&[SampleParams]>,
    ) -> Result<Told>;

    /// Takes note that a command has failed: whoever waits for this rank's part of it is told.
    fn fail(&mut self, number: u64, reason: &str);
}
