//! Time: the GPUs' clocks run at 100 MHz, and from the host's.

/// Nanoseconds of the host's steady clock.
pub(super) fn nanoseconds() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is to be written; this clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A GPU's clock at such a time.
pub(super) fn of(nanoseconds: u64) -> u64 {
    nanoseconds / 10
}

/// A GPU's clock now.
pub(super) fn now() -> u64 {
    of(nanoseconds())
}
