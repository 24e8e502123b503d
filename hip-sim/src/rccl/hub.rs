//! Where the ranks of a communicator meet: in the memory of the process whose rank made its id. Ranks of that process
//! come here themselves, others through a connection each ([`super::wire`]).
//!
//! A rank posts its calls and then waits for each; [`super::state`] brings those of all ranks together.

use super::call::{Call, Kind};
pub(super) use super::state::{Error, Place, Reply, Ticket};
use super::state::{Member, Posted, State};
use crate::sim::sim;
use hip_abi::rccl::Failure;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often a rank that waits looks for what nobody tells it.
const LOOK: Duration = Duration::from_millis(50);
/// What one look counts at most towards a limit: the process may have been stopped.
const LONGEST_LOOK: Duration = Duration::from_millis(200);
/// How long a rank waits until the others have been sent the same result.
const DELIVERY: Duration = Duration::from_millis(200);

/// A communicator.
#[derive(Default)]
pub(super) struct Hub {
    state: Mutex<State>,
    news: Condvar,
}

impl Hub {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes a rank in. True if it was the last.
    pub fn join(&self, rank: usize, size: usize, place: Place) -> Result<bool, Error> {
        let mut state = self.state();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.members.is_empty() {
            state.members.resize_with(size, Member::default);
        }
        let known = state.members.len();
        let usage = |message: String| Error::finding(Failure::InvalidUsage, message);
        let refused = if known != size {
            Some(usage(format!(
                "ncclCommInitRank: rank {rank} says that there are {size} ranks, another one {known}"
            )))
        } else if state.members[rank].place.is_some() {
            Some(usage(format!("ncclCommInitRank: rank {rank} comes twice")))
        } else if place != Place::Elsewhere && state.members.iter().any(|m| m.place == Some(place))
        {
            Some(usage(format!(
                "ncclCommInitRank: rank {rank} uses the GPU of another rank ({place:?})"
            )))
        } else {
            None
        };
        if let Some(error) = refused {
            state.fail(error.clone());
            self.news.notify_all();
            return Err(error);
        }
        state.members[rank].place = Some(place);
        self.news.notify_all();
        Ok(state.members.iter().all(|m| m.place.is_some()))
    }

    /// Waits until all ranks have joined.
    pub fn meet(&self, rank: usize, is_gone: impl FnMut() -> bool) -> Result<(), Error> {
        self.wait_for(rank, is_gone, |state| {
            let missing = state.members.iter().position(|m| m.place.is_none());
            match (&state.failure, missing) {
                (Some(failure), _) => Ok(Err(failure.clone())),
                (None, None) => Ok(Ok(())),
                (None, Some(missing)) => {
                    Err(format!("rank {missing} does not come to ncclCommInitRank"))
                }
            }
        })
    }

    /// Posts a call of a rank.
    pub fn post(&self, rank: usize, call: Call, data: Vec<u8>) -> Ticket {
        let mut state = self.state();
        let ticket = state.ticket(rank);
        let posted = Posted {
            rank,
            call,
            data,
            ticket,
        };
        match (state.failure.clone(), call.kind) {
            (Some(failure), _) => state.finish(ticket, Err(failure)),
            (None, Kind::Send(peer)) => state.mail(posted, rank, peer),
            (None, Kind::Recv(peer)) => state.mail(posted, peer, rank),
            (None, _) => state.round(posted),
        }
        self.news.notify_all();
        ticket
    }

    /// Waits for the outcome of a call that this rank has posted.
    pub fn wait(
        &self,
        rank: usize,
        ticket: Ticket,
        is_gone: impl FnMut() -> bool,
    ) -> Result<Reply, Error> {
        let outcome = self.wait_for(rank, is_gone, |state| {
            let done = state
                .tickets
                .get_mut(&ticket)
                .and_then(|(_, outcome)| outcome.take());
            match done {
                None => Err(state.missing(ticket)),
                Some(outcome) => {
                    state.tickets.remove(&ticket);
                    Ok(outcome)
                }
            }
        });
        if matches!(self.state().members.get(rank), Some(m) if m.place != Some(Place::Elsewhere)) {
            self.deliver();
        }
        outcome
    }

    /// Waits a moment until ranks in other processes have their outcomes, too: this process may end after its own.
    pub fn deliver(&self) {
        let state = self.state();
        let _ = self
            .news
            .wait_timeout_while(state, DELIVERY, |state| state.undelivered > 0);
    }

    /// An outcome has gone to another process, or never will.
    pub fn delivered(&self) {
        let mut state = self.state();
        state.undelivered = state.undelivered.saturating_sub(1);
        self.news.notify_all();
    }

    /// Nobody waits for these calls any more.
    pub fn forget(&self, tickets: &[Ticket]) {
        let mut state = self.state();
        for ticket in tickets {
            if let Some((rank, Some(_))) = state.tickets.remove(ticket) {
                state.undelivered -= (state.members[rank].place == Some(Place::Elsewhere)) as usize;
            }
        }
        self.news.notify_all();
    }

    /// A rank takes part no more. What needs it fails; with `ends_all` everything does.
    pub fn leave(&self, rank: usize, message: &str, ends_all: bool) {
        let mut state = self.state();
        let error = Error::new(Failure::RemoteError, format!("rank {rank} {message}"));
        match state.members.get_mut(rank) {
            Some(member) if member.left.is_none() => member.left = Some(error.clone()),
            _ => return,
        }
        match ends_all {
            true => state.fail(error),
            false => state.give_up(rank, &error),
        }
        self.news.notify_all();
    }

    /// Why the communicator is of no use any more, for a rank of it.
    pub fn failure(&self, rank: usize) -> Option<Error> {
        let state = self.state();
        let mut others = (state.members.iter().enumerate()).filter(|(other, _)| *other != rank);
        (state.failure.clone()).or_else(|| others.find_map(|(_, member)| member.left.clone()))
    }

    /// Waits until `look` finds something; what it does not find is a finding after the limit.
    fn wait_for<T>(
        &self,
        rank: usize,
        mut is_gone: impl FnMut() -> bool,
        mut look: impl FnMut(&mut State) -> Result<Result<T, Error>, String>,
    ) -> Result<T, Error> {
        let limit = sim().config.spin_limit;
        let (mut waited, mut last) = (Duration::ZERO, Instant::now());
        let mut state = self.state();
        loop {
            let missing = match look(&mut state) {
                Ok(found) => return found,
                Err(missing) => missing,
            };
            if is_gone() {
                return Err(Error::new(
                    Failure::InternalError,
                    "the communicator was aborted",
                ));
            }
            if waited >= limit {
                let error = Error::finding(
                    Failure::RemoteError,
                    format!("rank {rank} waits for {limit:?} (HIP_SIM_SPIN_LIMIT): {missing}"),
                );
                state.fail(error.clone());
                self.news.notify_all();
                return Err(error);
            }
            state = match self.news.wait_timeout(state, LOOK) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
            waited += last.elapsed().min(LONGEST_LOOK);
            last = Instant::now();
        }
    }
}
