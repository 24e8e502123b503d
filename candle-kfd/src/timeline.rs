//! Timelines: numbers that only grow, for work of several queues in one order.

use crate::gpu::Gpu;
use crate::signal::Signal;
use crate::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// A number that starts at zero and grows by one for each piece of work that is done.
///
/// It is a signal that is counted down from −1, so that every queue can move it: given as the completion of a launch or a
/// barrier, it grows by one when that is done; an SDMA queue adds −1 to [`address`](Self::address). The host waits for a
/// value with [`wait_for`](Self::wait_for), an SDMA queue by polling until the word at the address is no larger than
/// [`reference`](Self::reference).
#[derive(Debug)]
pub struct Timeline {
    signal: Signal,
}

/// What the signal's value is less than minus the timeline's: the lower word is then always one of a negative number.
const ORIGIN: i64 = -1;

impl Timeline {
    /// A timeline at zero.
    ///
    /// # Errors
    /// As of [`Signal::with_event`].
    pub fn new(gpu: &Arc<Gpu>) -> Result<Timeline> {
        Ok(Timeline {
            signal: Signal::with_event(gpu, ORIGIN)?,
        })
    }

    /// The value so far.
    pub fn value(&self) -> u64 {
        ORIGIN.wrapping_sub(self.signal.load()).max(0) as u64
    }

    /// What launches and barriers complete to move it on by one.
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Where SDMA queues add −1 (64 bits) to move it on by one.
    pub fn address(&self) -> u64 {
        self.signal.value_address()
    }

    /// The word at [`address`](Self::address) is, without a sign, no larger than this when the value has been reached.
    ///
    /// # Errors
    /// [`Error::Range`] for values of 32 bits and more, which a word cannot tell apart.
    pub fn reference(&self, value: u64) -> Result<u32> {
        u32::try_from(value)
            .ok()
            .and_then(|value| u32::MAX.checked_sub(value))
            .filter(|&reference| reference > 0)
            .ok_or(Error::Range {
                offset: value,
                bytes: 1,
                memory: u64::from(u32::MAX),
            })
    }

    /// Waits until the value is reached.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it takes longer, [`Error::Lost`] after a fault of the GPU.
    pub fn wait_for(&self, value: u64, timeout: Duration) -> Result<u64> {
        self.wait_until(value, timeout, || Ok(()))?
            .ok_or(Error::Timeout {
                what: "a timeline",
                after: timeout,
            })
    }

    /// As [`Signal::wait_until`].
    pub(crate) fn wait_until(
        &self,
        value: u64,
        timeout: Duration,
        patrol: impl FnMut() -> Result<()>,
    ) -> Result<Option<u64>> {
        let below = i64::try_from(value).map_or(i64::MIN, |value| ORIGIN - value + 1);
        let reached = self.signal.wait_until(below, timeout, patrol)?;
        Ok(reached.map(|_| self.value()))
    }
}
