//! What subscribers have missed.

use super::zmtp::{self, Came};
use axum::body::Bytes;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::TcpStream;

/// Most bytes of messages that are kept.
const MOST_BYTES: usize = 64 << 20;
/// The number behind the last message of an answer.
const END: [u8; 8] = (-1i64).to_be_bytes();

/// The last messages.
#[derive(Clone)]
pub(super) struct Kept(Arc<Mutex<Messages>>);

struct Messages {
    most: usize,
    bytes: usize,
    queue: VecDeque<(u64, Bytes)>,
}

impl Kept {
    /// Keeps at most so many.
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(Messages {
            most,
            bytes: 0,
            queue: VecDeque::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Messages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps one more; the oldest go.
    pub(super) fn push(&self, number: u64, payload: Bytes) {
        let mut messages = self.lock();
        messages.bytes += payload.len();
        messages.queue.push_back((number, payload));
        while messages.queue.len() > messages.most || messages.bytes > MOST_BYTES {
            let Some((_, oldest)) = messages.queue.pop_front() else {
                break;
            };
            messages.bytes -= oldest.len();
        }
    }

    /// The first one from a number on, as far as they are kept.
    fn next(&self, number: u64) -> Option<(u64, Bytes)> {
        let messages = self.lock();
        let start = messages.queue.partition_point(|(other, _)| *other < number);
        messages.queue.get(start).cloned()
    }

    /// The number of the last one.
    fn last(&self) -> Option<u64> {
        self.lock().queue.back().map(|(number, _)| *number)
    }
}

/// Answers a client until it goes.
///
/// # Errors
/// Those of the connection.
pub(super) async fn answer(mut stream: TcpStream, kept: Kept) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let kinds = ["REQ", "DEALER", "ROUTER"];
    let mut frames = zmtp::greet(reader, &mut writer, "ROUTER", &kinds).await?;
    let mut question: Vec<Vec<u8>> = Vec::new();
    loop {
        let frame = match frames.next().await? {
            Came::Frame(frame) => frame,
            Came::Heartbeat(pong) => {
                zmtp::send(&mut writer, &pong).await?;
                continue;
            }
        };
        question.push(frame.body);
        if frame.more && question.len() < 3 {
            continue;
        }
        // An empty frame and the number.
        let number = match &question[..] {
            [empty, number] if empty.is_empty() && !frame.more => number.as_slice().try_into().ok(),
            _ => None,
        };
        let Some(number) = number.map(u64::from_be_bytes) else {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        };
        question.clear();
        let last = kept.last();
        let mut next = number;
        // Taken one by one: a client that reads slowly does not hold what is forgotten meanwhile.
        while let Some((number, payload)) =
            kept.next(next).filter(|(number, _)| Some(*number) <= last)
        {
            let message = zmtp::message(&[b"", &number.to_be_bytes(), &payload]);
            zmtp::send(&mut writer, &message).await?;
            next = number + 1;
        }
        zmtp::send(&mut writer, &zmtp::message(&[b"", &END, b""])).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_messages_are_kept() {
        let kept = Kept::new(3);
        for number in 0..5 {
            kept.push(number, Bytes::from(vec![number as u8]));
        }
        let next = |from| kept.next(from).map(|(number, _)| number);
        assert_eq!((next(0), next(4), next(9)), (Some(2), Some(4), None));
        // One that was dropped before it came here is not here.
        kept.push(7, Bytes::from(vec![7]));
        assert_eq!(next(5), Some(7));
        kept.push(8, Bytes::from(vec![0; MOST_BYTES]));
        assert_eq!((next(0), kept.last()), (Some(8), Some(8)));
        assert_eq!(kept.lock().bytes, MOST_BYTES);
    }
}
