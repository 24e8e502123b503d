//! How many crashes there were, when the next try is due, and when it is enough.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The wait after the first crash, in which the driver gives back the memory of the process that died; it doubles with
/// each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The crashes of a server.
#[derive(Debug)]
pub(in crate::serve) struct Crashes {
    /// More within the window are too many.
    most: usize,
    window: Duration,
    recent: VecDeque<Instant>,
    total: u64,
}

impl Crashes {
    pub(in crate::serve) fn new(most: usize, window: Duration) -> Self {
        Self {
            most,
            window,
            recent: VecDeque::new(),
            total: 0,
        }
    }

    /// Notes a crash at `now`. Gives the wait before the next try; none if there were too many.
    pub(in crate::serve) fn add(&mut self, now: Instant) -> Option<Duration> {
        self.total += 1;
        self.recent.push_back(now);
        while (self.recent.front()).is_some_and(|&then| now - then > self.window) {
            self.recent.pop_front();
        }
        if self.recent.len() > self.most {
            return None;
        }
        let doublings = u32::try_from(self.recent.len() - 1).unwrap_or(u32::MAX);
        let wait = FIRST_WAIT.saturating_mul(2u32.saturating_pow(doublings));
        Some(wait.min(LONGEST_WAIT))
    }

    /// All crashes so far.
    pub(in crate::serve) fn total(&self) -> u64 {
        self.total
    }

    /// Those within the window before the last one.
    pub(in crate::serve) fn recent(&self) -> usize {
        self.recent.len()
    }

    /// Whether the last one was one too many.
    pub(in crate::serve) fn is_too_many(&self) -> bool {
        self.recent.len() > self.most
    }

    /// How long one counts.
    pub(in crate::serve) fn window(&self) -> Duration {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_end() {
        let mut crashes = Crashes::new(8, Duration::from_secs(600));
        let now = Instant::now();
        let waits: Vec<u128> = (0..9)
            .map_while(|_| crashes.add(now))
            .map(|wait| wait.as_millis())
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30].map(|s| s * 1000));
        assert_eq!((crashes.total(), crashes.recent()), (9, 9));
    }

    #[test]
    fn old_crashes_are_forgotten() {
        let mut crashes = Crashes::new(2, Duration::from_secs(10));
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(crashes.add(at(0)), Some(FIRST_WAIT));
        assert_eq!(crashes.add(at(1)), Some(FIRST_WAIT * 2));
        assert_eq!(crashes.add(at(30)), Some(FIRST_WAIT));
        assert_eq!(crashes.add(at(31)), Some(FIRST_WAIT * 2));
        assert_eq!(crashes.add(at(32)), None);
        assert_eq!(crashes.total(), 5);
        assert_eq!(Crashes::new(0, Duration::from_secs(10)).add(now), None);
    }
}
