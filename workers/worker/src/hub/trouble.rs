//! What goes wrong between this machine and a hub.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a file or a list of files did not come.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The hub answered with this status.
    Status {
        status: u16,
        /// `X-Error-Code`, which tells a missing file from a missing repository.
        code: Option<String>,
        /// `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// No answer.
    Unreachable {
        reason: String,
        /// Whether it may go better in a moment.
        transient: bool,
    },
    /// The answer stopped early.
    Broken(String),
    /// The answer is not one that a hub gives. The text says what it did.
    Refused(String),
    /// The cache could not be written.
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
}

impl Trouble {
    /// For `map_err` on operations with the cache.
    pub fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_path_buf(),
            source,
        }
    }

    /// Whether another attempt may go better.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            Self::Unreachable { transient, .. } => *transient,
            Self::Broken(_) => true,
            Self::Refused(_) | Self::Io { .. } => false,
        }
    }
}

impl From<ureq::Error> for Trouble {
    fn from(error: ureq::Error) -> Self {
        use std::io::ErrorKind;
        let transient = match &error {
            ureq::Error::Io(io) => io.kind() != ErrorKind::ConnectionRefused,
            ureq::Error::Timeout(_) | ureq::Error::Protocol(_) => true,
            _ => false,
        };
        Self::Unreachable {
            reason: error.to_string(),
            transient,
        }
    }
}
