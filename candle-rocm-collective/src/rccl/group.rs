//! What the ranks of a process have in common, and who watches over them.

use super::comm::Comm;
use super::ledger::Ledger;
use crate::lifeline::Lifeline;
use crate::{host, Error};
use candle_rocm::sys::rccl::{RcclResult, REMOTE_ERROR};
use candle_rocm::{Device, Event, Stream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long is waited for ranks before the group is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// For the group to come up.
    pub start: Duration,
    /// For the first collectives, by which it is proved.
    pub proof: Duration,
    /// For any later one, with the work before it on the stream.
    pub collective: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(120),
            proof: Duration::from_secs(60),
            collective: Duration::from_secs(120),
        }
    }
}

/// Between two looks of the thread that watches.
const LOOK: Duration = Duration::from_millis(50);
/// How long signs of life may take to tell which rank is gone, after RCCL noticed that one is.
const VERDICT: Duration = Duration::from_secs(6);

/// What often is the reason that RCCL waits for ever.
pub fn hint() -> String {
    "GPUs that do not reach each other, or lack PCIe atomics, can make RCCL wait for ever: try NCCL_PROTO=Simple, \
     a kernel that was booted with iommu=pt, NCCL_P2P_DISABLE=1 (through the host's memory), and between hosts \
     NCCL_SOCKET_IFNAME=INTERFACE; NCCL_DEBUG=INFO shows what RCCL chose; the other backends do without RCCL"
        .to_string()
}

/// The ranks of this process.
#[derive(Debug)]
pub struct Group {
    pub size: usize,
    /// How long a collective may take, in milliseconds.
    timeout: AtomicU64,
    pub members: Vec<Member>,
    pub ledger: Mutex<Ledger>,
    failure: OnceLock<Error>,
    lifeline: Option<Lifeline>,
}

/// A rank of this process.
#[derive(Debug)]
pub struct Member {
    pub rank: usize,
    pub device: Device,
    pub comm: Arc<Comm>,
    mark: Mark,
}

/// The last collective of a rank, as long as it is not known to be done.
#[derive(Debug)]
struct Mark {
    event: Event,
    last: Mutex<Option<Last>>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    op: &'static str,
    since: Instant,
    /// Whether RCCL's call has come back, and the event stands behind it on the stream.
    is_enqueued: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// A rank with its communicator.
    pub fn new(rank: usize, device: Device, comm: Comm) -> candle_rocm::Result<Self> {
        let mark = Mark {
            event: Event::new(&device)?,
            last: Mutex::new(None),
        };
        Ok(Self {
            rank,
            device,
            comm: Arc::new(comm),
            mark,
        })
    }

    /// Notes that a call of RCCL begins, which may itself wait for other ranks.
    pub fn begin(&self, op: &'static str) {
        *lock(&self.mark.last) = Some(Last {
            op,
            since: Instant::now(),
            is_enqueued: false,
        });
    }

    /// Notes that a collective was enqueued on a stream; none if it was recorded in a graph, which tells nothing.
    pub fn mark(&self, op: &'static str, stream: Option<&Stream>) -> candle_rocm::Result<()> {
        let mut last = lock(&self.mark.last);
        *last = None;
        if let Some(stream) = stream {
            self.mark.event.record(stream)?;
            *last = Some(Last {
                op,
                since: Instant::now(),
                is_enqueued: true,
            });
        }
        Ok(())
    }

    /// Whether the last collective is done.
    pub fn is_done(&self) -> candle_rocm::Result<bool> {
        let mut last = lock(&self.mark.last);
        let is_done = match &*last {
            None => true,
            Some(last) => last.is_enqueued && self.mark.event.is_done()?,
        };
        if is_done {
            *last = None;
        }
        Ok(is_done)
    }

    /// The last collective and since when it has been waited for, if it is not done.
    fn overdue(&self, limit: Duration) -> Option<(&'static str, Duration)> {
        let last = (*lock(&self.mark.last))?;
        // The GPU is asked only when it matters.
        let waited = last.since.elapsed();
        (waited > limit && !self.is_done().unwrap_or(false)).then_some((last.op, waited))
    }
}

impl Group {
    /// The ranks of this process, watched over from now on.
    pub fn new(
        size: usize,
        timeout: Duration,
        members: Vec<Member>,
        lifeline: Option<Lifeline>,
    ) -> Arc<Self> {
        let ranks = members.iter().map(|member| member.rank).collect();
        let group = Arc::new(Self {
            size,
            timeout: AtomicU64::new(host::milliseconds(timeout)),
            members,
            ledger: Mutex::new(Ledger::new(ranks)),
            failure: OnceLock::new(),
            lifeline,
        });
        if let Some(lifeline) = &group.lifeline {
            let alarmed = Arc::downgrade(&group);
            lifeline.on_failure(move |failure| {
                if let Some(group) = alarmed.upgrade() {
                    group.give_up(failure.clone());
                }
            });
        }
        let watched = Arc::downgrade(&group);
        std::thread::spawn(move || watch(&watched));
        group
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.load(Ordering::Relaxed))
    }

    /// Lets collectives take so long from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout
            .store(host::milliseconds(timeout), Ordering::Relaxed);
    }

    /// Why the group is of no further use, if so.
    pub fn check(&self) -> Result<(), Error> {
        self.failure
            .get()
            .map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Notes something in the ledger; what does not fit together ends the group, as some ranks have begun already.
    pub fn note(&self, note: impl FnOnce(&mut Ledger) -> Result<(), Error>) -> Result<(), Error> {
        let noted = note(&mut lock(&self.ledger));
        noted.map_err(|error| self.fail(error))
    }

    /// Ends the group on all nodes; the error that ended it first.
    pub fn fail(&self, error: Error) -> Error {
        let error = self.give_up(error);
        if let Some(lifeline) = &self.lifeline {
            let rank = match &error {
                Error::RankFailed { rank, .. } | Error::TimedOut { rank, .. } => *rank,
                _ => self.members.first().map_or(0, |member| member.rank),
            };
            match &error {
                Error::RankFailed { reason, .. } => lifeline.fail(rank, reason),
                other => lifeline.fail(rank, &other.to_string()),
            }
        }
        error
    }

    /// Ends the group because a call of a rank gave an error. That somebody else is gone is noticed by several at once,
    /// and signs of life tell who it is: they are waited for.
    pub fn fail_with(&self, rank: usize, op: &str, result: RcclResult, words: &str) -> Error {
        let begun = Instant::now();
        while result == REMOTE_ERROR && self.lifeline.is_some() && begun.elapsed() < VERDICT {
            if let Err(known) = self.check() {
                return known;
            }
            std::thread::sleep(LOOK);
        }
        self.fail(Error::RankFailed {
            rank,
            size: self.size,
            reason: format!("{op}: RCCL reports {words}"),
        })
    }

    /// Ends the ranks of this process; the error that ended them first.
    fn give_up(&self, error: Error) -> Error {
        let first = self.failure.get_or_init(|| error);
        for member in &self.members {
            // RCCL's abort waits for the GPU, and may wait for the others' aborts.
            let comm = member.comm.clone();
            std::thread::spawn(move || comm.abort());
        }
        first.clone()
    }

    /// The error for a collective of the `at`th rank that does not end.
    fn stalled(&self, at: usize, op: &'static str, waited: Duration) -> Error {
        match lock(&self.ledger).behind(at) {
            Some(rank) => Error::TimedOut {
                rank,
                size: self.size,
                op,
                waited,
            },
            None => Error::Stalled {
                op,
                size: self.size,
                waited,
                hint: hint(),
            },
        }
    }
}

/// Looks for errors and for collectives that do not end, as long as there is the group and it has not failed.
fn watch(group: &Weak<Group>) {
    while let Some(group) = group.upgrade() {
        if group.check().is_err() {
            return;
        }
        for (at, member) in group.members.iter().enumerate() {
            if let Some((result, words)) = member.comm.asynchronous_error() {
                group.fail_with(member.rank, "in the background", result, &words);
                return;
            }
            if let Some((op, waited)) = member.overdue(group.timeout()) {
                group.fail(group.stalled(at, op, waited));
                return;
            }
        }
        drop(group);
        std::thread::sleep(LOOK);
    }
}
