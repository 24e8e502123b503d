//! Node 0: it has the engine, and tells the ranks of its followers what to do.

use super::about::About;
use super::command::{WireCommand, WireTold};
use super::meeting::{lost, Fate, Met};
use super::message::{Loaded, Loading, Order, Report};
use super::plan::NodePlan;
use super::wire;
use crate::engine::decoder::PartSizes;
use crate::engine::group::command::{Command, Told};
use crate::engine::group::plan::Rank;
use crate::engine::group::thread::Member;
use candle_rocm_collective::rendezvous::{Connection, Meeting};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use worker::{Error, Result};

/// The leader's side of a group of nodes. Its last handle tells the others that the work is done.
pub struct Leader {
    /// For what each load connects.
    meeting: Mutex<Meeting>,
    /// Nodes 1, 2, …
    followers: Vec<Mutex<Follower>>,
    abouts: Vec<About>,
    fate: Fate,
}

/// A follower, as the leader knows it.
struct Follower {
    connection: Connection,
    /// The number of the last command for all of its ranks.
    number: Option<u64>,
    /// What ranks have said that was not asked for yet.
    told: BTreeMap<usize, WireTold>,
}

impl std::fmt::Debug for Leader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Leader").field(&self.fate).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Leader {
    /// Leads nodes that have met.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if one has ended.
    pub fn new(met: Met) -> Result<Self> {
        let Met {
            mut meeting,
            abouts,
            fate,
        } = met;
        let connections = meeting.star().map_err(lost)?;
        close_on_failure(&fate, &connections)?;
        let follower = |connection| {
            Mutex::new(Follower {
                connection,
                number: None,
                told: BTreeMap::new(),
            })
        };
        Ok(Self {
            meeting: Mutex::new(meeting),
            followers: connections.into_iter().map(follower).collect(),
            abouts,
            fate,
        })
    }

    /// What each node has and runs, this one first.
    pub fn abouts(&self) -> &[About] {
        &self.abouts
    }

    /// Who is to have which part of a model.
    ///
    /// # Errors
    /// [`Error::Usage`] if it cannot be divided between so many.
    pub(crate) fn plan(&self, sizes: &PartSizes) -> Result<NodePlan> {
        NodePlan::choose(sizes, &self.abouts).map_err(Error::Usage)
    }

    /// What becomes of the group.
    pub fn fate(&self) -> &Fate {
        &self.fate
    }

    /// Has the other nodes load their parts, while `own` loads this one's, and waits for all of them. Gives what the
    /// others say as well.
    ///
    /// # Errors
    /// Those of `own`; [`Error::DeviceLost`] with the node that could not.
    pub(super) fn load<T>(
        &self,
        loading: &Loading,
        own: impl FnOnce(&mut Meeting) -> Result<T>,
    ) -> Result<(T, Vec<Loaded>)> {
        let order = wire::encode(&Order::Load(loading.clone()))?;
        for follower in &self.followers {
            self.send(&mut lock(follower), &order)?;
        }
        let own = own(&mut lock(&self.meeting)).map_err(|error| self.cause_of(error))?;
        let loaded = self.followers.iter().map(|follower| {
            let mut follower = lock(follower);
            // Numbers of commands begin anew.
            (follower.number, follower.told) = (None, BTreeMap::new());
            match self.receive(&mut follower)? {
                Report::Loaded(loaded) => Ok(loaded),
                other => Err(self.confused(&follower, &other)),
            }
        });
        Ok((own, loaded.collect::<Result<_>>()?))
    }

    /// What this node failed with, or who is the cause of it. Either way the group has failed: others may have come to
    /// the end of what this one failed in, or wait in it.
    fn cause_of(&self, error: Error) -> Error {
        match self.fate.cause() {
            Some(reason) => Error::DeviceLost(reason),
            None => {
                self.fate.fail(&error.to_string());
                error
            }
        }
    }

    fn send(&self, follower: &mut Follower, order: &[u8]) -> Result<()> {
        let sent = follower.connection.send(order).map_err(lost);
        sent.map_err(|error| self.cause_of(error))
    }

    /// What a follower says next; whether it lives is looked after elsewhere.
    fn receive(&self, follower: &mut Follower) -> Result<Report> {
        let report = follower.connection.receive(None).map_err(lost);
        let report = report.and_then(|bytes| wire::decode(&bytes));
        report.map_err(|error| self.cause_of(error))
    }

    fn confused(&self, follower: &Follower, report: &Report) -> Error {
        let name = self.fate.name(follower.connection.node());
        self.cause_of(Error::DeviceLost(format!(
            "{name} says what was not asked: {report:?}"
        )))
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.fate.reason().is_some() {
            return;
        }
        for follower in &self.followers {
            // Who has ended meanwhile needs no word.
            let _ = wire::encode(&Order::End).map(|end| lock(follower).connection.send(&end));
        }
    }
}

/// Whoever waits at a connection, or for room to send, wakes up when the group fails.
pub(super) fn close_on_failure(fate: &Fate, connections: &[Connection]) -> Result<()> {
    let clones = connections.iter().map(Connection::try_clone);
    let clones: Vec<Connection> = clones
        .collect::<std::result::Result<_, _>>()
        .map_err(lost)?;
    fate.on_failure(move |_| clones.iter().for_each(Connection::close));
    Ok(())
}

/// A rank of another node.
pub(super) struct FarRank {
    pub rank: Rank,
    pub node: usize,
    pub leader: Arc<Leader>,
}

impl FarRank {
    fn follower(&self) -> MutexGuard<'_, Follower> {
        lock(&self.leader.followers[self.node - 1])
    }
}

impl Member for FarRank {
    fn rank(&self) -> &Rank {
        &self.rank
    }

    fn tell(&self, number: u64, command: &Arc<Command>) -> candle_core::Result<()> {
        let mut follower = self.follower();
        // All ranks of a node are told at once what is the same for all.
        let for_one = matches!(**command, Command::Write(..) | Command::Predict(_));
        if !for_one && follower.number.replace(number) == Some(number) {
            return Ok(());
        }
        let order = match &**command {
            Command::Stop => Order::Unload,
            other => {
                let rank = for_one.then_some(self.rank.number);
                Order::Command(number, rank, WireCommand::of(other)?)
            }
        };
        let sent = wire::encode(&order).and_then(|order| self.leader.send(&mut follower, &order));
        sent.map_err(candle_core::Error::wrap)
    }

    fn told(&self) -> candle_core::Result<Told> {
        let mut follower = self.follower();
        loop {
            if let Some(told) = follower.told.remove(&self.rank.number) {
                return told.into();
            }
            match self.leader.receive(&mut follower) {
                Ok(Report::Told(rank, told)) => drop(follower.told.insert(rank, told)),
                Ok(other) => {
                    let error = self.leader.confused(&follower, &other);
                    return Err(candle_core::Error::wrap(error));
                }
                Err(error) => return Err(candle_core::Error::wrap(error)),
            }
        }
    }
}
