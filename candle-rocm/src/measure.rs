//! How long work takes on a device.

use crate::{Device, Event, Result};
use std::time::Duration;

/// Measurements of which the fastest counts, and calls of each.
const REPEATS: usize = 5;
const CALLS: u32 = 4;

/// The time of what a call enqueues, at its fastest.
pub(crate) fn fastest(device: &Device, mut call: impl FnMut() -> Result<()>) -> Result<Duration> {
    // Compiles, loads, and fills the allocator's cache.
    call()?;
    let mut best = Duration::MAX;
    for _ in 0..REPEATS {
        let calls = || (0..CALLS).try_for_each(|_| call());
        best = best.min(once(device, calls)? / CALLS);
    }
    Ok(best)
}

/// The time of what one call enqueues.
pub(crate) fn once(device: &Device, call: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    start.record(device.stream())?;
    call()?;
    end.record(device.stream())?;
    end.synchronize()?;
    end.elapsed_since(&start)
}
