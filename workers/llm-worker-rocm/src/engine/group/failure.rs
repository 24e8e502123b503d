//! Why a group, or a part of a step, has failed.

use candle_core::Error;

/// A failure of ranks. Reaches callers inside an error of candle; [`Failed::of`] finds it there.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Failed {
    /// The group is of no use any more.
    #[error("{rank} has failed, which ends the model: {reason}")]
    Group {
        /// The rank that is at fault, with its device.
        rank: String,
        /// What happened.
        reason: String,
    },
    /// An earlier stage has failed at this step, and says so itself.
    #[error("the stage before has failed: {0}")]
    Before(String),
}

impl Failed {
    /// The failure inside an error of candle, if there is one.
    pub fn of(error: &Error) -> Option<&Self> {
        match error {
            Error::Io(inner) => inner.get_ref()?.downcast_ref(),
            Error::Context { inner, .. }
            | Error::WithPath { inner, .. }
            | Error::WithBacktrace { inner, .. } => Self::of(inner),
            _ => None,
        }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        // What candle has for errors of other kinds keeps their text only.
        Self::Io(std::io::Error::other(failed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_found_under_their_wrappings() {
        let failed = Failed::Before("no room".to_string());
        let error = Error::from(failed.clone()).context("rank 1");
        assert_eq!(Failed::of(&error), Some(&failed));
        assert!(error.to_string().contains("no room"), "{error}");
        assert_eq!(Failed::of(&Error::msg("no room")), None);
    }
}
