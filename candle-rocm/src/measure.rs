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
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    let mut best = Duration::MAX;
    for _ in 0..REPEATS {
        start.record(device.stream())?;
        for _ in 0..CALLS {
            call()?;
        }
        end.record(device.stream())?;
        end.synchronize()?;
        best = best.min(end.elapsed_since(&start)? / CALLS);
    }
    Ok(best)
}
