//! Injected failures: the n-th call of a kind fails.

use crate::error::{HipError, HipResult};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A kind of call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// `hipMalloc` answers out of memory.
    Malloc,
    /// A kernel launch answers launch failure.
    Launch,
    /// A copy or memset answers unknown error.
    Copy,
    /// The n-th call of any kind and all after it answer launch failure, as after a GPU reset.
    Lost,
    /// The end of a stream capture answers that the capture was spoiled.
    Capture,
}

impl Failure {
    /// The kind by its name in `HIP_SIM_FAIL`.
    pub fn parse(name: &str) -> Option<Failure> {
        Some(match name {
            "malloc" => Failure::Malloc,
            "launch" => Failure::Launch,
            "copy" => Failure::Copy,
            "lost" => Failure::Lost,
            "capture" => Failure::Capture,
            _ => return None,
        })
    }

    fn error(self) -> HipError {
        match self {
            Failure::Malloc => HipError::OutOfMemory,
            Failure::Launch | Failure::Lost => HipError::LaunchFailure,
            Failure::Copy => HipError::Unknown,
            Failure::Capture => HipError::StreamCaptureInvalidated,
        }
    }
}

/// Which failures are armed. A counter holds the calls still to go, 0 when none is armed.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    remaining: [AtomicU64; 5],
    lost: AtomicBool,
}

impl Plan {
    /// Makes the `nth` call of this kind from now fail; 0 disarms it (and brings a lost device back).
    pub fn arm(&self, failure: Failure, nth: u64) {
        self.remaining[failure as usize].store(nth, Ordering::SeqCst);
        if failure == Failure::Lost && nth == 0 {
            self.lost.store(false, Ordering::SeqCst);
        }
    }

    /// Counts one call of this kind.
    pub fn check(&self, failure: Failure) -> HipResult {
        if failure == Failure::Lost && self.lost.load(Ordering::SeqCst) {
            return Err(failure.error());
        }
        let counted = self.remaining[failure as usize]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            })
            .unwrap_or(0);
        if counted != 1 {
            return Ok(());
        }
        if failure == Failure::Lost {
            self.lost.store(true, Ordering::SeqCst);
        }
        Err(failure.error())
    }
}

#[cfg(test)]
mod tests {
    use super::{Failure, Plan};

    #[test]
    fn the_nth_call_fails_and_lost_stays_lost() {
        let plan = Plan::default();
        plan.arm(Failure::Malloc, 2);
        let calls: Vec<bool> = (0..4)
            .map(|_| plan.check(Failure::Malloc).is_ok())
            .collect();
        assert_eq!(calls, [true, false, true, true]);
        plan.arm(Failure::Lost, 2);
        let calls: Vec<bool> = (0..4).map(|_| plan.check(Failure::Lost).is_ok()).collect();
        assert_eq!(calls, [true, false, false, false]);
        plan.arm(Failure::Lost, 0);
        assert!(plan.check(Failure::Lost).is_ok());
    }
}
