//! Why a request gave no answer.

use std::time::Duration;

/// Why a request gave no answer. The variants are the codes of the wire formats.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {prompt} tokens and exceeds the available context size, {context} tokens with the answer; shorten it"
    )]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// As many requests wait as may wait.
    #[error("{waiting} requests wait already; try again in {retry_after:?}")]
    QueueFull {
        /// Requests in the queue.
        waiting: usize,
        /// When there is likely to be room.
        retry_after: Duration,
    },
    /// Its deadline passed.
    #[error("the deadline passed after {0} tokens")]
    Timeout(usize),
    /// The device's memory does not suffice.
    #[error("out of device memory: {0}")]
    OutOfMemory(String),
    /// The device is gone; the process must be started anew.
    #[error("the device is lost: {0}")]
    DeviceLost(String),
    /// The engine is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// Anything else that went wrong.
    #[error("{0}")]
    Internal(String),
}

impl From<Failure> for worker::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(_) | Failure::TooLong { .. } => Self::Usage(failure.to_string()),
            Failure::DeviceLost(reason) => Self::DeviceLost(reason),
            failure => Self::Runtime(failure.to_string()),
        }
    }
}
