//! A rank's end of a communicator.

use super::call::Call;
use super::hub::{Error, Hub, Reply, Ticket};
use super::wire::{Answers, Link};
use crate::sim::sim;
use hip_abi::rccl::{Failure, Outcome};
use hip_abi::Registry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

pub(super) struct Comm {
    pub rank: usize,
    pub size: usize,
    pub device: usize,
    link: Link,
    is_aborted: AtomicBool,
    /// What ended it, once a call has learnt of it.
    failed: Mutex<Option<Failure>>,
}

/// Calls with what the rank brings to each.
pub(super) type Calls = Vec<(Call, Vec<u8>)>;

/// Calls of a communicator that were posted.
enum Posted<'a> {
    Here(&'a Arc<Hub>, Vec<Ticket>),
    There(Answers<'a>),
}

pub(super) fn comms() -> &'static Registry<Comm> {
    static COMMS: OnceLock<Registry<Comm>> = OnceLock::new();
    COMMS.get_or_init(Registry::default)
}

impl Comm {
    pub fn new(rank: usize, size: usize, device: usize, link: Link) -> Arc<Comm> {
        Arc::new(Comm {
            rank,
            size,
            device,
            link,
            is_aborted: AtomicBool::new(false),
            failed: Mutex::default(),
        })
    }

    pub fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::SeqCst)
    }

    /// Waits until all ranks have joined.
    pub fn meet(&self) -> Result<(), Error> {
        match &self.link {
            Link::Here(hub) => hub.meet(self.rank, || self.is_aborted()),
            Link::There(there) => there.joined(),
        }
    }

    fn post(&self, calls: Calls) -> Result<Posted<'_>, Error> {
        Ok(match &self.link {
            Link::Here(hub) => {
                let post = |(call, data)| hub.post(self.rank, call, data);
                Posted::Here(hub, calls.into_iter().map(post).collect())
            }
            Link::There(there) => Posted::There(there.send(calls)?),
        })
    }

    fn wait(&self, posted: Posted) -> Result<Vec<Answer>, Error> {
        match posted {
            Posted::Here(hub, tickets) => {
                let wait = |ticket: &Ticket| hub.wait(self.rank, *ticket, || self.is_aborted());
                let replies: Result<Vec<Reply>, Error> = tickets.iter().map(wait).collect();
                if replies.is_err() {
                    hub.forget(&tickets);
                }
                Ok(replies?.into_iter().map(Answer::Here).collect())
            }
            Posted::There(answers) => Ok(answers.read()?.into_iter().map(Answer::There).collect()),
        }
    }

    /// What has gone wrong so far, also with other ranks.
    pub fn async_error(&self) -> Option<Failure> {
        let known = *self.failed.lock().unwrap_or_else(|e| e.into_inner());
        let asked = || match &self.link {
            Link::Here(hub) => hub.failure(self.rank),
            Link::There(there) => there.ask(),
        };
        known.or_else(|| asked().map(|error| self.learn(error)))
    }

    /// Remembers what ended the communicator.
    pub fn learn(&self, error: Error) -> Failure {
        let failure = match self.is_aborted() {
            true => Failure::InternalError,
            false => error.status,
        };
        // What a rank of this process found out is told already.
        if error.is_finding && matches!(self.link, Link::There(_)) {
            sim().reports.add(format!("RCCL: {}", error.message));
        }
        super::error::set(&error.message);
        *self.failed.lock().unwrap_or_else(|e| e.into_inner()) = Some(failure);
        failure
    }

    /// Takes part no more.
    pub fn leave(&self) {
        match &self.link {
            Link::Here(hub) => {
                hub.leave(self.rank, "has destroyed its communicator", false);
                hub.deliver();
            }
            Link::There(there) => there.leave(),
        }
    }

    /// Ends what waits, here and on other ranks.
    pub fn abort(&self) {
        self.is_aborted.store(true, Ordering::SeqCst);
        match &self.link {
            Link::Here(hub) => hub.leave(self.rank, "has aborted its communicator", true),
            Link::There(there) => there.end(),
        }
    }
}

/// What a call brought.
pub(super) enum Answer {
    Here(Reply),
    There(Vec<u8>),
}

impl Answer {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Answer::Here(reply) => reply.bytes(),
            Answer::There(bytes) => bytes,
        }
    }
}

/// Makes the calls of a group: all are posted before the first is waited for. Answers are in the order of the calls.
pub(super) fn exchange(calls: Vec<(Arc<Comm>, Call, Vec<u8>)>) -> Outcome<Vec<Answer>> {
    let mut batches: Vec<(Arc<Comm>, Vec<usize>, Calls)> = Vec::new();
    let count = calls.len();
    for (place, (comm, call, data)) in calls.into_iter().enumerate() {
        match batches.iter_mut().find(|(c, ..)| Arc::ptr_eq(c, &comm)) {
            Some((_, places, calls)) => {
                places.push(place);
                calls.push((call, data));
            }
            None => batches.push((comm, vec![place], vec![(call, data)])),
        }
    }
    let mut answers: Vec<Option<Answer>> = (0..count).map(|_| None).collect();
    let (mut posted, mut failed) = (Vec::new(), None);
    for (comm, places, calls) in &mut batches {
        match comm.post(std::mem::take(calls)) {
            Ok(own) => posted.push((&*comm, &*places, own)),
            Err(error) => failed = Some(comm.learn(error)),
        }
    }
    for (comm, places, own) in posted {
        match comm.wait(own) {
            Ok(own) => places
                .iter()
                .zip(own)
                .for_each(|(place, answer)| answers[*place] = Some(answer)),
            Err(error) => failed = Some(comm.learn(error)),
        }
    }
    match failed {
        None => Ok(answers.into_iter().flatten().collect()),
        Some(failure) => Err(failure),
    }
}
