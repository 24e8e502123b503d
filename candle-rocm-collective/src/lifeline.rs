//! Signs of life between nodes: who notices that a process has ended, hangs or gave up, and tells the others.

use crate::rendezvous::{Connection, Meeting};
use crate::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two signs of life.
const BEAT: Duration = Duration::from_secs(1);
/// A node that is silent for so long hangs or is unreachable. Together with the way over node 0 that is within 5 s.
const SILENCE: Duration = Duration::from_secs(4);

const ALIVE: u8 = 0;
const FAILED: u8 = 1;
const LEAVES: u8 = 2;

/// What is called once when a rank fails.
type Alarm = Box<dyn FnOnce(&Error) + Send>;

/// Watches over the nodes of a group from the moment it is made until it is dropped, which the others take for an
/// orderly end. All nodes make one at the same time.
///
/// Node 0 hears of every node and tells the others; if it goes itself, all notice.
#[derive(Debug)]
pub struct Lifeline {
    shared: Arc<Shared>,
}

struct Shared {
    /// By node: its first rank; behind them the number of ranks.
    first_ranks: Vec<usize>,
    state: Mutex<State>,
    ended: Condvar,
    /// What can be written to each node that this one is connected to.
    writers: Vec<Mutex<Connection>>,
}

#[derive(Default)]
struct State {
    failure: Option<Error>,
    alarms: Vec<Alarm>,
    is_over: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("first_ranks", &self.first_ranks)
            .field("failure", &self.lock().failure)
            .finish_non_exhaustive()
    }
}

impl Lifeline {
    /// Begins to watch; `ranks` is how many ranks each node has, the same list on all of them.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if a node is not reached, [`Error::NodeFailed`].
    pub fn new(meeting: &mut Meeting, ranks: &[usize]) -> Result<Self, Error> {
        let mut first_ranks = vec![0];
        for ranks in ranks {
            first_ranks.push(first_ranks[first_ranks.len() - 1] + ranks);
        }
        let connections = meeting.star()?;
        let writers = connections.iter().map(Connection::try_clone);
        let writers: Vec<Connection> = writers.collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            first_ranks,
            state: Mutex::default(),
            ended: Condvar::new(),
            writers: writers.into_iter().map(Mutex::new).collect(),
        });
        for connection in connections {
            let shared = shared.clone();
            std::thread::spawn(move || shared.listen(connection));
        }
        let beating = shared.clone();
        std::thread::spawn(move || beating.beat());
        Ok(Self { shared })
    }

    /// What has failed, if anything has.
    pub fn failure(&self) -> Option<Error> {
        self.shared.lock().failure.clone()
    }

    /// Has something called when a rank fails: at once if one has already.
    pub fn on_failure(&self, alarm: impl FnOnce(&Error) + Send + 'static) {
        let mut state = self.shared.lock();
        match state.failure.clone() {
            None => state.alarms.push(Box::new(alarm)),
            Some(failure) => {
                drop(state);
                alarm(&failure);
            }
        }
    }

    /// Tells all nodes that a rank has failed.
    pub fn fail(&self, rank: usize, reason: &str) {
        self.shared.fail(rank, reason, None);
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.ended.notify_all();
        self.shared.tell(&[LEAVES], None);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a failure, once, and passes it on to all but the node that told of it.
    fn fail(&self, rank: usize, reason: &str, told_by: Option<usize>) {
        let mut state = self.lock();
        if state.failure.is_some() {
            return;
        }
        let failure = Error::RankFailed {
            rank,
            size: self.first_ranks.last().copied().unwrap_or_default(),
            reason: reason.to_string(),
        };
        state.failure = Some(failure.clone());
        let alarms = std::mem::take(&mut state.alarms);
        drop(state);
        let rank = (rank as u32).to_le_bytes();
        self.tell(&[&[FAILED][..], &rank, reason.as_bytes()].concat(), told_by);
        for alarm in alarms {
            alarm(&failure);
        }
    }

    fn tell(&self, message: &[u8], but: Option<usize>) {
        for writer in &self.writers {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            if Some(writer.node()) != but {
                // Who is gone is noticed by whoever listens to it.
                let _ = writer.send(message);
            }
        }
    }

    fn beat(&self) {
        let mut state = self.lock();
        while !state.is_over {
            drop(state);
            self.tell(&[ALIVE], None);
            let waited = self
                .ended
                .wait_timeout_while(self.lock(), BEAT, |state| !state.is_over);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Listens to a node until it leaves or fails, or this one leaves.
    fn listen(&self, mut connection: Connection) {
        let node = connection.node();
        let own = |reason: &str| self.fail(self.first_ranks[node], reason, Some(node));
        loop {
            let received = connection.receive(Some(SILENCE));
            if self.lock().is_over {
                return;
            }
            match received.as_deref() {
                Ok([ALIVE]) => {}
                Ok([LEAVES]) => return,
                Ok([FAILED, said @ ..]) => {
                    let Some((rank, reason)) = said.split_first_chunk() else {
                        return own("it sent a message that is cut off");
                    };
                    let rank = u32::from_le_bytes(*rank) as usize;
                    self.fail(rank, &String::from_utf8_lossy(reason), Some(node));
                }
                Ok(_) => return own("it is of another version"),
                Err(Error::NodeSilent { .. }) => {
                    return own(&format!(
                        "node {node} gave no sign of life for {SILENCE:?}: it hangs, or its host is not reachable"
                    ))
                }
                Err(error) => return own(&error.to_string()),
            }
        }
    }
}
