//! Counting what is enqueued on a device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many launches a device has made, without those that are recorded into a graph.
#[derive(Debug, Default)]
pub(crate) struct LaunchCount {
    made: AtomicU64,
    recorded: AtomicU64,
    is_recording: AtomicBool,
}

impl LaunchCount {
    pub fn get(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    pub fn add(&self) {
        let count = match self.is_recording.load(Ordering::Relaxed) {
            true => &self.recorded,
            false => &self.made,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn begin_recording(&self) {
        // What another thread counted too late for the last recording was made.
        let late = self.recorded.swap(0, Ordering::Relaxed);
        self.made.fetch_add(late, Ordering::Relaxed);
        self.is_recording.store(true, Ordering::Relaxed);
    }

    /// How many were recorded.
    pub fn end_recording(&self) -> u64 {
        self.is_recording.store(false, Ordering::Relaxed);
        self.recorded.swap(0, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_launch_is_lost_while_recordings_begin_and_end() {
        const LAUNCHES: u64 = 200_000;
        let count = LaunchCount::default();
        let mut recorded = 0;
        std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(|| (0..LAUNCHES).for_each(|_| count.add())));
            while !threads.iter().all(|thread| thread.is_finished()) {
                count.begin_recording();
                recorded += count.end_recording();
            }
        });
        count.begin_recording();
        recorded += count.end_recording();
        assert_eq!(count.get() + recorded, 2 * LAUNCHES);
    }
}
