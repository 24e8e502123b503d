//! A rank's connections to all others, and what has come over them.

use crate::lifeline::Lifeline;
use crate::{host, Error};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a frame belongs to. Calls of one kind are answered in the order in which they were made; the kinds do not wait
/// for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A collective.
    Collective,
    /// A send that the other rank receives.
    Send,
    /// The rank leaves in order; nothing comes after it.
    Leave,
}

/// What one rank hands to another.
#[derive(Debug)]
pub struct Frame {
    /// The call and the tensor, in words that both sides compare.
    pub what: String,
    /// The tensor, or a part of it.
    pub bytes: Vec<u8>,
}

/// The largest frame, in bytes: more is the nonsense of a stranger.
const FRAME_BYTES: u64 = 1 << 40;

/// A rank's connections to all others. A thread for each takes what comes, so that no rank's sends wait for another's.
#[derive(Debug)]
pub struct Links {
    rank: usize,
    /// In milliseconds.
    timeout: AtomicU64,
    inbox: Arc<Inbox>,
    writers: Vec<Option<Mutex<TcpStream>>>,
    lifeline: Arc<Lifeline>,
}

#[derive(Debug)]
struct Inbox {
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// By rank.
    collective: Vec<VecDeque<Frame>>,
    sent: Vec<VecDeque<Frame>>,
    /// Who has left in order.
    left: Vec<bool>,
    failure: Option<Error>,
}

impl Links {
    /// Takes the streams to all ranks, none for this one.
    pub fn new(
        rank: usize,
        streams: Vec<Option<TcpStream>>,
        timeout: Duration,
        lifeline: Arc<Lifeline>,
    ) -> Result<Self, Error> {
        let size = streams.len();
        let queues = || (0..size).map(|_| VecDeque::new()).collect();
        let inbox = Arc::new(Inbox {
            size,
            state: Mutex::new(State {
                collective: queues(),
                sent: queues(),
                left: vec![false; size],
                failure: None,
            }),
            changed: Condvar::new(),
        });
        for (from, stream) in streams.iter().enumerate() {
            let Some(stream) = stream else { continue };
            let broken = |error: std::io::Error| Error::RankFailed {
                rank: from,
                size,
                reason: error.to_string(),
            };
            let limited = stream.set_write_timeout(Some(timeout));
            let reader = limited.and_then(|()| stream.try_clone()).map_err(broken)?;
            let inbox = inbox.clone();
            std::thread::spawn(move || inbox.listen(from, reader));
        }
        let alarmed = inbox.clone();
        lifeline.on_failure(move |failure| alarmed.fail(failure.clone()));
        Ok(Self {
            rank,
            timeout: AtomicU64::new(host::milliseconds(timeout)),
            inbox,
            writers: streams.into_iter().map(|s| s.map(Mutex::new)).collect(),
            lifeline,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.inbox.size
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout.load(Ordering::Relaxed))
    }

    /// Waits so long for others from now on.
    pub fn set_timeout(&self, timeout: Duration) {
        self.timeout
            .store(host::milliseconds(timeout), Ordering::Relaxed);
        for writer in self.writers.iter().flatten() {
            let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            // The limit of before is a limit as well.
            let _ = writer.set_write_timeout(Some(self.timeout().max(Duration::from_millis(1))));
        }
    }

    /// Why the group is of no further use, if so.
    pub fn check(&self) -> Result<(), Error> {
        self.inbox.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// Hands a frame to another rank.
    pub fn send(&self, to: usize, kind: Kind, what: &str, bytes: &[u8]) -> Result<(), Error> {
        if let Some(failure) = &self.inbox.lock().failure {
            return Err(failure.clone());
        }
        let Some(writer) = &self.writers[to] else {
            return Ok(());
        };
        let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
        let written = write(&writer, kind, what, bytes);
        written.map_err(|error| {
            // A frame that is cut off makes the connection useless.
            let _ = writer.shutdown(Shutdown::Both);
            let reason = match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    format!("it took nothing of {what} for {:?}", self.timeout())
                }
                _ => error.to_string(),
            };
            self.fail(to, reason)
        })
    }

    /// Waits for the next frame of a rank.
    pub fn receive(&self, op: &'static str, from: usize, kind: Kind) -> Result<Frame, Error> {
        let timeout = self.timeout();
        let deadline = Instant::now() + timeout;
        let mut state = self.inbox.lock();
        loop {
            // What came before a failure counts.
            let queue = match kind {
                Kind::Send => &mut state.sent[from],
                Kind::Collective | Kind::Leave => &mut state.collective[from],
            };
            if let Some(frame) = queue.pop_front() {
                return Ok(frame);
            }
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.left[from] {
                drop(state);
                return Err(self.fail(from, format!("it has left, and takes no part in {op}")));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                let error = Error::TimedOut {
                    rank: from,
                    size: self.size(),
                    op,
                    waited: timeout,
                };
                self.inbox.fail(error.clone());
                self.lifeline.fail(from, &error.to_string());
                return Err(error);
            }
            let waited = self.inbox.changed.wait_timeout(state, left);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the group because of a rank; the error that says so.
    pub fn fail(&self, rank: usize, reason: String) -> Error {
        let error = Error::RankFailed {
            rank,
            size: self.size(),
            reason: reason.clone(),
        };
        self.inbox.fail(error.clone());
        self.lifeline.fail(rank, &reason);
        error
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        for writer in self.writers.iter().flatten() {
            let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            // Who is gone needs no farewell. What was sent before shall still arrive, so that nothing is cut off here.
            let _ = write(&writer, Kind::Leave, "", &[]);
            let _ = writer.shutdown(Shutdown::Write);
        }
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, error: Error) {
        self.lock().failure.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Takes what a rank sends until it leaves.
    fn listen(&self, from: usize, stream: TcpStream) {
        loop {
            let read = read(&stream);
            let mut state = self.lock();
            match read {
                Ok((Kind::Collective, frame)) => state.collective[from].push_back(frame),
                Ok((Kind::Send, frame)) => state.sent[from].push_back(frame),
                Ok((Kind::Leave, _)) => state.left[from] = true,
                Err(error) => {
                    if !state.left[from] {
                        let reason = match error.kind() {
                            ErrorKind::UnexpectedEof => {
                                "its process has ended, or it gave up".to_string()
                            }
                            _ => error.to_string(),
                        };
                        state.failure.get_or_insert(Error::RankFailed {
                            rank: from,
                            size: self.size,
                            reason,
                        });
                    }
                    drop(state);
                    return self.changed.notify_all();
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

fn write(mut stream: &TcpStream, kind: Kind, what: &str, bytes: &[u8]) -> std::io::Result<()> {
    let kind = match kind {
        Kind::Collective => 0u8,
        Kind::Send => 1,
        Kind::Leave => 2,
    };
    let mut head = vec![kind];
    head.extend((what.len() as u16).to_le_bytes());
    head.extend((bytes.len() as u64).to_le_bytes());
    head.extend(what.as_bytes());
    // One packet for a small tensor.
    if bytes.len() <= 1024 {
        head.extend(bytes);
        return stream.write_all(&head);
    }
    stream.write_all(&head)?;
    stream.write_all(bytes)
}

fn read(mut stream: &TcpStream) -> std::io::Result<(Kind, Frame)> {
    let mut head = [0; 11];
    stream.read_exact(&mut head)?;
    let nonsense = || std::io::Error::other("it sent what is no frame: it is of another version");
    let kind = match head[0] {
        0 => Kind::Collective,
        1 => Kind::Send,
        2 => Kind::Leave,
        _ => return Err(nonsense()),
    };
    let mut what = vec![0; usize::from(u16::from_le_bytes([head[1], head[2]]))];
    let mut length = [0; 8];
    length.copy_from_slice(&head[3..]);
    let length = u64::from_le_bytes(length);
    if length > FRAME_BYTES {
        return Err(nonsense());
    }
    stream.read_exact(&mut what)?;
    let what = String::from_utf8(what).map_err(|_| nonsense())?;
    // Memory as it comes, not as it is announced.
    let mut bytes = Vec::new();
    let taken = stream.take(length).read_to_end(&mut bytes)?;
    match taken as u64 == length {
        true => Ok((kind, Frame { what, bytes })),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}
