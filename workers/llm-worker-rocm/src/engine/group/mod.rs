//! One model on several devices: a rank for each, of which one answers.
//!
//! A [`SplitPlan`] tells which blocks a stage has and which devices it is on. Stages follow one another: the stream, and
//! what else blocks hand on, goes from each to the next by a [`link`]. All ranks are told the same [`Command`]s in the
//! same order; each carries its part out by itself (`rank`), the one that answers in the thread of whoever calls
//! (`forward`), the others in threads of their own (`thread`). Long steps are cut into `pieces`, so that stages work at
//! the same time. A rank that panics, loses its device or stands still ends the group (`watch`).

pub(crate) mod command;
pub(crate) mod failure;
mod forward;
pub(crate) mod link;
mod load;
pub mod nodes;
mod pieces;
mod plan;
mod rank;
pub(crate) mod thread;
pub(crate) mod watch;

pub(crate) use load::{load, own_stream};
pub use plan::{Rank, SplitPlan, StagePlan};
