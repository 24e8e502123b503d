//! Injected failures: the n-th call of a kind fails.

use crate::error::{HipError, HipResult};
use std::ffi::CStr;
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
    /// `hipDeviceEnablePeerAccess` answers unknown error.
    PeerEnable,
    /// A copy between devices answers unknown error.
    PeerCopy,
    /// Making a communicator of RCCL's answers system error.
    RcclInit,
    /// A collective or message of RCCL's answers internal error, and never comes to the other ranks.
    Rccl,
    /// It waits until its communicator is aborted, and never comes to the other ranks.
    RcclHang,
}

impl Failure {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Failure; 10] = [
        Failure::Malloc,
        Failure::Launch,
        Failure::Copy,
        Failure::Lost,
        Failure::Capture,
        Failure::PeerEnable,
        Failure::PeerCopy,
        Failure::RcclInit,
        Failure::Rccl,
        Failure::RcclHang,
    ];

    /// The name in `HIP_SIM_FAIL`.
    pub fn name(self) -> &'static CStr {
        match self {
            Failure::Malloc => c"malloc",
            Failure::Launch => c"launch",
            Failure::Copy => c"copy",
            Failure::Lost => c"lost",
            Failure::Capture => c"capture",
            Failure::PeerEnable => c"peer-enable",
            Failure::PeerCopy => c"peer-copy",
            Failure::RcclInit => c"rccl-init",
            Failure::Rccl => c"rccl",
            Failure::RcclHang => c"rccl-hang",
        }
    }

    /// The kind by its name in `HIP_SIM_FAIL`.
    pub fn parse(name: &str) -> Option<Failure> {
        (Failure::ALL.into_iter()).find(|f| f.name().to_bytes() == name.as_bytes())
    }

    fn error(self) -> HipError {
        match self {
            Failure::Malloc => HipError::OutOfMemory,
            Failure::Launch | Failure::Lost => HipError::LaunchFailure,
            Failure::Capture => HipError::StreamCaptureInvalidated,
            // Of RCCL's, the caller makes statuses of its own.
            _ => HipError::Unknown,
        }
    }
}

/// Which failures are armed. A counter holds the calls still to go, 0 when none is armed.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    remaining: [AtomicU64; Failure::ALL.len()],
    /// Kinds of which all calls fail from the n-th on.
    lasting: [AtomicBool; Failure::ALL.len()],
    lost: AtomicBool,
}

impl Plan {
    /// Makes the `nth` call of this kind from now fail; 0 disarms it (and brings a lost device back).
    pub fn arm(&self, failure: Failure, nth: u64) {
        self.lasting[failure as usize].store(false, Ordering::SeqCst);
        self.remaining[failure as usize].store(nth, Ordering::SeqCst);
        if failure == Failure::Lost && nth == 0 {
            self.lost.store(false, Ordering::SeqCst);
        }
    }

    /// Makes the `nth` call of this kind from now, and all after it, fail.
    pub fn arm_from(&self, failure: Failure, nth: u64) {
        self.arm(failure, nth);
        self.lasting[failure as usize].store(true, Ordering::SeqCst);
    }

    /// Counts one call of this kind.
    pub fn check(&self, failure: Failure) -> HipResult {
        if failure == Failure::Lost && self.lost.load(Ordering::SeqCst) {
            return Err(failure.error());
        }
        let lasts = self.lasting[failure as usize].load(Ordering::SeqCst);
        let counted = self.remaining[failure as usize]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
                1 if lasts => Some(1),
                _ => left.checked_sub(1),
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

    #[test]
    fn from_the_nth_call_on_all_fail_until_it_is_taken_back() {
        let plan = Plan::default();
        plan.arm_from(Failure::PeerCopy, 2);
        let calls: Vec<bool> = (0..4)
            .map(|_| plan.check(Failure::PeerCopy).is_ok())
            .collect();
        assert_eq!(calls, [true, false, false, false]);
        plan.arm(Failure::PeerCopy, 0);
        assert!(plan.check(Failure::PeerCopy).is_ok());
    }

    #[test]
    fn every_kind_has_its_own_name() {
        for (place, failure) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, place);
            let name = failure.name().to_str().unwrap();
            assert_eq!(Failure::parse(name), Some(failure));
        }
    }
}
