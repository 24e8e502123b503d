//! What the ranks of a communicator have asked for and not been answered.
//!
//! Collectives are matched by their number: the n-th of each rank is the n-th of all. Messages between two ranks are
//! matched in their order, and a message has arrived when it was asked for, so that what deadlocks on GPUs does not end
//! here either.

use super::call::{Call, Kind};
use super::reduce::reduce;
use crate::sim::sim;
use hip_abi::rccl::{Failure, Op};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) struct Error {
    pub status: Failure,
    pub message: String,
    /// Whether it shows a mistake of the program.
    pub is_finding: bool,
}

impl Error {
    pub fn new(status: Failure, message: impl Into<String>) -> Error {
        Error {
            status,
            message: message.into(),
            is_finding: false,
        }
    }

    pub fn finding(status: Failure, message: impl Into<String>) -> Error {
        let is_finding = true;
        Error {
            is_finding,
            ..Error::new(status, message)
        }
    }
}

/// A result, or the part of one that is a rank's.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    whole: Arc<Vec<u8>>,
    start: usize,
    end: usize,
}

impl Reply {
    fn new(bytes: Vec<u8>) -> Reply {
        let end = bytes.len();
        Reply {
            whole: Arc::new(bytes),
            start: 0,
            end,
        }
    }

    fn part(&self, start: usize, bytes: usize) -> Reply {
        Reply {
            whole: self.whole.clone(),
            start,
            end: start + bytes,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.whole[self.start..self.end]
    }
}

/// A call that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket(u64);

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In this process, on this device.
    Here(usize),
    Elsewhere,
}

#[derive(Default)]
pub(super) struct Member {
    pub place: Option<Place>,
    /// Number of its next collective.
    pub next: u64,
    pub left: Option<Error>,
}

/// A call with what its rank brought.
pub(super) struct Posted {
    pub rank: usize,
    pub call: Call,
    pub data: Vec<u8>,
    pub ticket: Ticket,
}

/// Messages from one rank to another that have not met what asks for them, or the other way round.
#[derive(Default)]
struct Mail {
    sends: VecDeque<Posted>,
    recvs: VecDeque<Posted>,
}

#[derive(Default)]
pub(super) struct State {
    pub members: Vec<Member>,
    /// Collectives that not all have come to, by number.
    rounds: HashMap<u64, Vec<Posted>>,
    mail: HashMap<(usize, usize), Mail>,
    /// What was posted and not taken, with its outcome.
    pub tickets: HashMap<Ticket, (usize, Option<Result<Reply, Error>>)>,
    next_ticket: u64,
    /// Why nothing works any more.
    pub failure: Option<Error>,
    /// Outcomes that are on their way to other processes.
    pub undelivered: usize,
}

impl State {
    /// Takes note of a call of a rank.
    pub fn ticket(&mut self, rank: usize) -> Ticket {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.tickets.insert(ticket, (rank, None));
        ticket
    }

    /// The outcome of a call.
    pub fn finish(&mut self, ticket: Ticket, outcome: Result<Reply, Error>) {
        if let Some((rank, slot @ None)) = self.tickets.get_mut(&ticket) {
            *slot = Some(outcome);
            self.undelivered += (self.members[*rank].place == Some(Place::Elsewhere)) as usize;
        }
    }

    /// Ends everything that waits, and all that comes later.
    pub fn fail(&mut self, error: Error) {
        if self.failure.is_some() {
            return;
        }
        if error.is_finding {
            sim().reports.add(format!("RCCL: {}", error.message));
        }
        self.failure = Some(error.clone());
        self.rounds.clear();
        self.mail.clear();
        let waiting: Vec<Ticket> = (self.tickets.iter())
            .filter(|(_, (_, outcome))| outcome.is_none())
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in waiting {
            self.finish(ticket, Err(error.clone()));
        }
    }

    /// Ends what waits for a rank that has left.
    pub fn give_up(&mut self, rank: usize, error: &Error) {
        let lacks = |calls: &Vec<Posted>| calls.iter().all(|posted| posted.rank != rank);
        let rounds: Vec<u64> = (self.rounds.iter())
            .filter(|(_, calls)| lacks(calls))
            .map(|(number, _)| *number)
            .collect();
        let pairs: Vec<(usize, usize)> = (self.mail.keys().copied())
            .filter(|(from, to)| *from == rank || *to == rank)
            .collect();
        let calls = (rounds
            .iter()
            .filter_map(|number| self.rounds.remove(number)))
        .flatten();
        let mail = (pairs.iter().filter_map(|pair| self.mail.remove(pair)))
            .flat_map(|mail| mail.sends.into_iter().chain(mail.recvs));
        for posted in calls.chain(mail).collect::<Vec<_>>() {
            self.finish(posted.ticket, Err(error.clone()));
        }
    }

    /// A call between two ranks.
    pub fn mail(&mut self, posted: Posted, from: usize, to: usize) {
        let other = if posted.rank == from { to } else { from };
        if let Some(error) = self.members[other].left.clone() {
            return self.finish(posted.ticket, Err(error));
        }
        let mail = self.mail.entry((from, to)).or_default();
        match posted.call.kind {
            Kind::Send(_) => mail.sends.push_back(posted),
            _ => mail.recvs.push_back(posted),
        }
        if mail.sends.is_empty() || mail.recvs.is_empty() {
            return;
        }
        let (Some(send), Some(recv)) = (mail.sends.pop_front(), mail.recvs.pop_front()) else {
            return;
        };
        if (send.call.dtype, send.call.count) != (recv.call.dtype, recv.call.count) {
            let message = format!(
                "rank {from} calls {}, but rank {to} calls {}",
                send.call, recv.call
            );
            let error = Error::finding(Failure::InvalidUsage, message);
            return self.fail(error);
        }
        self.finish(recv.ticket, Ok(Reply::new(send.data)));
        self.finish(send.ticket, Ok(Reply::new(Vec::new())));
    }

    /// A call of all ranks.
    pub fn round(&mut self, posted: Posted) {
        let size = self.members.len();
        let member = &mut self.members[posted.rank];
        let number = member.next;
        member.next += 1;
        // Only a rank that had not come before it left is missed.
        let left = |m: &Member| m.left.clone().filter(|_| m.next <= number);
        if let Some(error) = self.members.iter().find_map(left) {
            return self.finish(posted.ticket, Err(error));
        }
        let calls = self.rounds.entry(number).or_default();
        if let Some(other) = calls.iter().find(|other| other.call != posted.call) {
            let message = format!(
                "collective {number} of a communicator is {} on rank {}, but {} on rank {}",
                other.call, other.rank, posted.call, posted.rank
            );
            return self.fail(Error::finding(Failure::InvalidUsage, message));
        }
        calls.push(posted);
        if calls.len() < size {
            return;
        }
        let mut calls = self.rounds.remove(&number).unwrap_or_default();
        calls.sort_by_key(|posted| posted.rank);
        let call = calls[0].call;
        let own = call.count * call.dtype.bytes();
        let mut datas = calls
            .iter_mut()
            .map(|posted| std::mem::take(&mut posted.data));
        let (reply, is_split) = match call.kind {
            Kind::AllReduce(op) => (reduced(datas, &call, op), false),
            Kind::ReduceScatter(op) => (reduced(datas, &call, op), true),
            Kind::Broadcast { root } => (datas.nth(root).unwrap_or_default(), false),
            _ => (datas.flatten().collect(), false),
        };
        let reply = Reply::new(reply);
        for Posted { rank, ticket, .. } in calls {
            let part = match is_split {
                true => reply.part(rank * own, own),
                false => reply.clone(),
            };
            self.finish(ticket, Ok(part));
        }
    }

    /// What a call waits for, in words.
    pub fn missing(&self, ticket: Ticket) -> String {
        let pending = (self.rounds.values().flatten())
            .chain(
                self.mail
                    .values()
                    .flat_map(|mail| mail.sends.iter().chain(&mail.recvs)),
            )
            .find(|posted| posted.ticket == ticket);
        let Some(posted) = pending else {
            return "for an answer".to_string();
        };
        let come = |rank: usize| {
            let mut rounds = self.rounds.values();
            let round = rounds.find(|calls| calls.iter().any(|p| p.ticket == ticket));
            round.is_some_and(|calls| calls.iter().any(|p| p.rank == rank))
        };
        let who = match posted.call.kind {
            Kind::Send(peer) | Kind::Recv(peer) => vec![peer],
            _ => (0..self.members.len())
                .filter(|rank| !come(*rank))
                .collect(),
        };
        format!(
            "it calls {}, to which rank {who:?} does not come",
            posted.call
        )
    }
}

fn reduced(datas: impl Iterator<Item = Vec<u8>>, call: &Call, op: Op) -> Vec<u8> {
    datas
        .reduce(|mut sum, next| {
            reduce(&mut sum, &next, call.dtype, op);
            sum
        })
        .unwrap_or_default()
}
