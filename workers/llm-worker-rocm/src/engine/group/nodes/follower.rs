//! A node other than 0: its ranks have a part of the model, and do what the leader says.

use super::command::WireTold;
use super::leader::close_on_failure;
use super::meeting::{lost, Fate, Met};
use super::message::{Loading, Order, Report};
use super::ranks::Part;
use super::wire;
use candle_rocm_collective::rendezvous::{Connection, Meeting};
use std::panic::{catch_unwind, AssertUnwindSafe};
use worker::{Error, Result};

/// The follower's side of a group of nodes.
pub struct Follower {
    meeting: Meeting,
    leader: Connection,
    fate: Fate,
}

impl Follower {
    /// Follows node 0 of nodes that have met.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if one has ended.
    pub fn new(met: Met) -> Result<Self> {
        let Met {
            mut meeting, fate, ..
        } = met;
        let mut connections = meeting.star().map_err(lost)?;
        close_on_failure(&fate, &connections)?;
        match connections.pop() {
            Some(leader) => Ok(Self {
                meeting,
                leader,
                fate,
            }),
            None => Err(Error::Runtime("node 0 follows nobody".to_string())),
        }
    }

    /// What becomes of the group.
    pub fn fate(&self) -> &Fate {
        &self.fate
    }

    /// Loads parts of the model by `load` and computes with them until the leader says that the work is done.
    ///
    /// # Errors
    /// What failed here, which all nodes are told; [`Error::DeviceLost`] with who failed elsewhere.
    pub fn serve(mut self, mut load: impl FnMut(&Loading, Joining) -> Result<Part>) -> Result<()> {
        let mut part: Option<Part> = None;
        loop {
            let order = self.leader.receive(None).map_err(lost);
            let order = order.and_then(|bytes| wire::decode(&bytes));
            match order.map_err(|error| self.cause_of(error))? {
                Order::Load(loading) => {
                    // Two parts at once may have no room.
                    drop(part.take());
                    let joining = Joining {
                        meeting: &mut self.meeting,
                        fate: &self.fate,
                    };
                    let loaded = attempt(|| load(&loading, joining));
                    let loaded = loaded.map_err(|error| self.cause_of(error))?;
                    self.report(&Report::Loaded(loaded.loaded.clone()))?;
                    part = Some(loaded);
                }
                Order::Unload => part = None,
                Order::Command(number, rank, command) => {
                    let Some(part) = &part else {
                        let reason = "node 0 computes before it has loaded".to_string();
                        return Err(self.cause_of(Error::Runtime(reason)));
                    };
                    let told = part.carry_out(number, rank, command);
                    let told = told.map_err(|error| self.cause_of(error))?;
                    for (rank, told) in told {
                        self.report(&Report::Told(rank, WireTold::from(told)))?;
                    }
                    if self.fate.reason().is_some() {
                        let reason = "the group has failed".to_string();
                        return Err(self.cause_of(Error::DeviceLost(reason)));
                    }
                }
                Order::End => return Ok(()),
            }
        }
    }

    fn report(&mut self, report: &Report) -> Result<()> {
        let sent = wire::encode(report).and_then(|bytes| self.leader.send(&bytes).map_err(lost));
        sent.map_err(|error| self.cause_of(error))
    }

    /// What this node failed with, which all others are told, or who is the cause of it.
    fn cause_of(&self, error: Error) -> Error {
        match self.fate.cause() {
            Some(reason) => Error::DeviceLost(reason),
            None => {
                self.fate.fail(&error.to_string());
                error
            }
        }
    }
}

/// What the ranks of a node connect with while they load.
pub struct Joining<'a> {
    pub(super) meeting: &'a mut Meeting,
    pub(super) fate: &'a Fate,
}

impl Joining<'_> {
    /// This node, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        (self.meeting.node(), self.meeting.nodes())
    }
}

/// Does a part of the work.
fn attempt<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|_| Err(Error::Runtime("the computation panicked".to_string())))
}
