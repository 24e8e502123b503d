//! Why the program ends with a failure.

use std::path::Path;

/// Result of a command.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments cannot be right.
    #[error("{0}")]
    Usage(String),
    /// The driver or a GPU.
    #[error(transparent)]
    Kfd(#[from] candle_kfd::Error),
    /// Something was wrong, and the user was told of each.
    #[error("{0} wrong; results of this GPU cannot be trusted, please report it with the lines above (docs/kfd.md)")]
    Wrong(u64),
    /// A file.
    #[error("{path}: {error}")]
    File {
        /// Which one.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// Whatever else.
    #[error("{0}")]
    Other(String),
}

/// Reads a file.
///
/// # Errors
/// [`Error::File`].
pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::File {
        path: path.display().to_string(),
        error,
    })
}

impl Error {
    /// The exit status: 2 for arguments, 1 for the rest.
    pub fn status(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            _ => 1,
        }
    }
}
