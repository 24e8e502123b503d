//! Messages over a TCP connection between two nodes.

use crate::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// A connection to another node, over which whole messages go both ways. It stays open as long as a clone of it lives.
#[derive(Debug)]
pub struct Connection {
    node: usize,
    stream: TcpStream,
}

/// The largest message, in bytes. Tensors go other ways.
pub const MESSAGE_BYTES: usize = 256 << 20;

impl Connection {
    pub(crate) fn new(node: usize, stream: TcpStream) -> Self {
        Self { node, stream }
    }

    /// The node at the other end.
    pub fn node(&self) -> usize {
        self.node
    }

    /// A second handle to the same connection, for a thread that only sends while another one only receives.
    ///
    /// # Errors
    /// [`Error::NodeFailed`] if the system has no more handles.
    pub fn try_clone(&self) -> Result<Self, Error> {
        let stream = self.stream.try_clone();
        let stream = stream.map_err(|error| self.failed(&error))?;
        Ok(Self::new(self.node, stream))
    }

    /// Sends a message; returns when the system has taken it.
    ///
    /// # Errors
    /// [`Error::NodeFailed`] if the other node is gone, [`Error::InvalidArgument`] for more than 256 MiB.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        if message.len() > MESSAGE_BYTES {
            let reason = format!(
                "a message of {} bytes is longer than {MESSAGE_BYTES}: send it in parts",
                message.len()
            );
            return Err(Error::InvalidArgument { op: "send", reason });
        }
        let length = (message.len() as u64).to_le_bytes();
        let mut stream = &self.stream;
        // One packet for a short message.
        let sent = match message.len() {
            0..=1024 => stream.write_all(&[&length[..], message].concat()),
            _ => stream
                .write_all(&length)
                .and_then(|()| stream.write_all(message)),
        };
        sent.map_err(|error| self.failed(&error))
    }

    /// Waits for the next message, for ever without a limit.
    ///
    /// # Errors
    /// [`Error::NodeSilent`] if none came within the limit; the connection can be used further if nothing of a message
    /// had come, and is closed otherwise. [`Error::NodeFailed`] if the other node is gone.
    pub fn receive(&mut self, limit: Option<Duration>) -> Result<Vec<u8>, Error> {
        let deadline = limit.map(|limit| (Instant::now() + limit, limit));
        let mut length = [0; 8];
        self.fill(&mut length, deadline)?;
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > MESSAGE_BYTES {
            self.close();
            return Err(Error::NodeFailed {
                node: self.node,
                reason: format!(
                    "it announced a message of {length} bytes: it is of another version"
                ),
            });
        }
        let mut message = vec![0; length];
        self.fill(&mut message, deadline).inspect_err(|_| {
            // The rest of the message would be taken for the next one.
            self.close();
        })?;
        Ok(message)
    }

    /// Ends the connection for both sides; whoever waits at it gets an error.
    pub fn close(&self) {
        // Already closed is as well.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Whether the other side has neither closed the connection nor gone.
    pub(super) fn is_open(&self) -> bool {
        let peeked = self.stream.set_nonblocking(true).and_then(|()| {
            let peeked = self.stream.peek(&mut [0]);
            self.stream.set_nonblocking(false)?;
            peeked
        });
        match peeked {
            Ok(bytes) => bytes > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    fn fill(
        &self,
        mut bytes: &mut [u8],
        deadline: Option<(Instant, Duration)>,
    ) -> Result<(), Error> {
        let whole = bytes.len();
        while !bytes.is_empty() {
            let left = deadline.map(|(at, _)| at.saturating_duration_since(Instant::now()));
            let has_begun = bytes.len() < whole;
            let silent = || {
                if has_begun {
                    self.close();
                }
                Error::NodeSilent {
                    node: self.node,
                    waited: deadline.map_or(Duration::ZERO, |(_, limit)| limit),
                }
            };
            if left.is_some_and(|left| left.is_zero()) {
                return Err(silent());
            }
            let limited = self.stream.set_read_timeout(left);
            limited.map_err(|error| self.failed(&error))?;
            match (&self.stream).read(bytes) {
                Ok(0) => {
                    return Err(Error::NodeFailed {
                        node: self.node,
                        reason: "its process has ended, or closed the connection".to_string(),
                    })
                }
                Ok(read) => bytes = &mut bytes[read..],
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(silent()),
                    _ => return Err(self.failed(&error)),
                },
            }
        }
        Ok(())
    }

    fn failed(&self, error: &std::io::Error) -> Error {
        Error::NodeFailed {
            node: self.node,
            reason: error.to_string(),
        }
    }
}
