//! The workers' error type.
//!
//! Each variant belongs to an exit code, so that scripts can tell a mistake in what they passed
//! from a failure of the machine, and a lost device from both.

use crate::text::one_line;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Exit code of a failure while running: device, memory, network, I/O.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code of bad input: arguments, a model file, a prompt that does not fit.
pub const EXIT_BAD_INPUT: u8 = 2;

/// Exit code of a server whose device is gone: an orchestrator should start it anew, perhaps elsewhere.
pub const EXIT_DEVICE_LOST: u8 = 3;

/// `Result` with the workers' [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in a worker. The text tells the user what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Arguments or input that cannot be used as given.
    #[error("{0}")]
    Usage(String),

    /// A model file that is damaged, hostile or of a kind that this worker cannot run.
    #[error("{}", one_line(&format!("{}: {reason}", path.display())))]
    BadModel {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// The requested device cannot be used.
    #[error("{0}")]
    Device(String),

    /// The device went away while it was used.
    #[error("the device is lost: {0}")]
    DeviceLost(String),

    /// The Hugging Face hub or its cache could not give the model.
    #[error("{}", one_line(_0))]
    Hub(String),

    /// A file could not be read or written.
    #[error("{}", one_line(&format!("{}: {source}", path.display())))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },

    /// The tensor library failed, in a step named by `context`.
    #[error("{context}: {source}")]
    Candle {
        /// What was being done.
        context: &'static str,
        /// candle's error.
        source: candle_core::Error,
    },

    /// The process that served under this one has ended with this exit code, and has told why.
    #[error("the server ended with exit code {0}")]
    Ended(u8),

    /// Processes that served under this one were ended by the system, or lost their device.
    #[error("{reason}")]
    Crashed {
        /// The exit code for the last end: 128 and the signal.
        code: u8,
        /// How, and what to do.
        reason: String,
    },

    /// Anything else that went wrong while running.
    #[error("{0}")]
    Runtime(String),
}

impl Error {
    /// The process exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::BadModel { .. } => EXIT_BAD_INPUT,
            Self::Io { source, .. } if is_about_input(source) => EXIT_BAD_INPUT,
            Self::DeviceLost(_) => EXIT_DEVICE_LOST,
            Self::Ended(code) | Self::Crashed { code, .. } => *code,
            _ => EXIT_FAILURE,
        }
    }

    /// Whether another process has told the user already.
    pub fn is_told(&self) -> bool {
        matches!(self, Self::Ended(_))
    }

    /// For `map_err` on operations with a file.
    pub fn io(path: &Path) -> impl Fn(std::io::Error) -> Self + '_ {
        move |source| Self::Io {
            path: path.to_path_buf(),
            source,
        }
    }

    /// For `map_err` on candle's results: names the step that failed.
    pub fn candle(context: &'static str) -> impl FnOnce(candle_core::Error) -> Self {
        move |source| Self::Candle { context, source }
    }
}

/// Whether another path or file would do, rather than another machine or moment.
fn is_about_input(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData
            | ErrorKind::InvalidFilename
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
    ) || error.raw_os_error() == Some(libc::ELOOP)
        || error.raw_os_error() == Some(libc::ENXIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_and_reasons_stay_in_one_line() {
        let error = Error::BadModel {
            path: "a\u{1b}[2J".into(),
            reason: "tensor x\nINFO all is well".to_string(),
        };
        assert_eq!(
            error.to_string(),
            "a\\u{1b}[2J: tensor x\\nINFO all is well"
        );
    }
}
