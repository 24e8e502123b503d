//! Waiting for a GPU, which may never answer.

use crate::point::Point;
use hip_abi::error::{HipError, HipResult};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Seconds that a GPU may take for what was enqueued; without it, [`Patience::DEFAULT`].
const VARIABLE: &str = "CANDLE_KFD_TIMEOUT";
/// How long a point is waited for before the GPU is asked whether something went wrong.
const SLICE: Duration = Duration::from_millis(50);

/// How long a GPU is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(pub Duration);

impl Patience {
    const DEFAULT: Duration = Duration::from_secs(600);

    /// As the environment says.
    pub fn from_env() -> Self {
        static PATIENCE: OnceLock<Patience> = OnceLock::new();
        *PATIENCE.get_or_init(|| Self::parse(std::env::var(VARIABLE).ok().as_deref()))
    }

    fn parse(seconds: Option<&str>) -> Self {
        let Some(text) = seconds.filter(|text| !text.is_empty()) else {
            return Patience(Self::DEFAULT);
        };
        let seconds = text.parse().ok().filter(|seconds: &u64| *seconds > 0);
        match seconds {
            Some(seconds) => Patience(Duration::from_secs(seconds)),
            None => {
                eprintln!("hip-on-kfd: {VARIABLE}={text} is no number of seconds; it is left out");
                Patience(Self::DEFAULT)
            }
        }
    }
}

/// Waits until a point is passed; `check` tells meanwhile whether it never will be.
pub(crate) fn wait(point: &Point, patience: Patience, check: impl Fn() -> HipResult) -> HipResult {
    let begin = Instant::now();
    loop {
        let slice = SLICE.min(patience.0);
        if point.signal().wait_below(1, slice).is_ok() || point.is_passed() {
            return Ok(());
        }
        check()?;
        if begin.elapsed() >= patience.0 {
            eprintln!(
                "hip-on-kfd: the GPU has not done within {} s what was enqueued, and is given up; if it only is slow, \
                 set {VARIABLE} to more seconds",
                patience.0.as_secs()
            );
            return Err(HipError::LaunchFailure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_a_number_of_seconds() {
        assert_eq!(Patience::parse(Some("3")), Patience(Duration::from_secs(3)));
        for other in [None, Some(""), Some("0"), Some("soon"), Some("-1")] {
            assert_eq!(Patience::parse(other), Patience(Patience::DEFAULT));
        }
    }
}
