//! Hardware queues, each shared by streams, and what their packets refer to.

use crate::point::{Point, Pool};
use crate::sync::lock;
use crate::wait::Patience;
use candle_kfd::sdma::{Compare, Engine, SdmaQueue};
use candle_kfd::{ComputeQueue, Gpu, Kind, Launch, Memory, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Packets of a compute queue's ring.
const PACKETS: u32 = 4096;

/// Points that packets of a queue wait for, with the point behind these packets: kept until that is passed.
#[derive(Default)]
struct Waited(VecDeque<(Point, Vec<Point>)>);

impl Waited {
    /// Keeps points; a queue passes its own in order.
    fn keep(&mut self, own: &Point, waits: Vec<Point>) {
        while self.0.front().is_some_and(|(own, _)| own.is_passed()) {
            self.0.pop_front();
        }
        self.0.push_back((own.clone(), waits));
    }
}

/// A compute queue. A packet begins when those before it are done.
pub(crate) struct ComputeLane {
    queue: ComputeQueue,
    waited: Mutex<Waited>,
}

impl ComputeLane {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let queue = ComputeQueue::new(gpu, PACKETS)?;
        queue.set_patience(Patience::from_env().0);
        Ok(ComputeLane {
            queue,
            waited: Mutex::default(),
        })
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// As of [`ComputeQueue::launch`].
    pub unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.queue.launch(launch) }
    }

    /// A point behind everything enqueued so far and behind `waits`, which all that is enqueued later waits for, too.
    pub fn point(&self, pool: &Arc<Pool>, waits: Vec<Point>) -> Result<Point> {
        let own = pool.point()?;
        let mut waited = lock(&self.waited);
        let signals: Vec<_> = waits.iter().map(|point| point.signal()).collect();
        self.queue.barrier(&signals, Some(own.signal()))?;
        waited.keep(&own, waits);
        Ok(own)
    }

    /// What has gone wrong in the queue.
    pub fn check(&self) -> Result<()> {
        self.queue.check()
    }
}

/// A copy of device memory, or memory that is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    /// Copies `bytes`.
    Copy { to: u64, from: u64, bytes: u64 },
    /// Writes `value` into every byte.
    Fill { to: u64, value: u8, bytes: u64 },
}

/// Bytes of the words that copy engines fill memory with.
const WORD: u64 = 4;

/// A queue of copies.
pub(crate) struct CopyLane {
    queue: SdmaQueue,
    /// A word of every byte, for the ends of fills that are no whole words.
    patterns: Memory,
    waited: Mutex<Waited>,
}

impl CopyLane {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let words: Vec<u8> = (0..=u8::MAX)
            .flat_map(|byte| [byte; WORD as usize])
            .collect();
        let patterns = gpu.allocate(words.len(), Kind::Gtt)?;
        if let Some(host) = patterns.host() {
            host.write(0, &words)?;
        }
        Ok(CopyLane {
            queue: SdmaQueue::new(gpu, Engine::Any)?,
            patterns,
            waited: Mutex::default(),
        })
    }

    /// Enqueues a transfer behind `waits`; gives the point behind it.
    ///
    /// # Safety
    /// The GPU may read and write the addresses until the point is passed.
    pub unsafe fn run(
        &self,
        pool: &Arc<Pool>,
        waits: Vec<Point>,
        transfer: Transfer,
    ) -> Result<Point> {
        let own = pool.point()?;
        let mut packets = self.queue.packets();
        for point in &waits {
            packets.poll(point.signal().value_address(), u32::MAX, Compare::Equal, 0);
        }
        packets.acquire();
        match transfer {
            Transfer::Copy { to, from, bytes } => {
                packets.copy(to, from, bytes);
            }
            Transfer::Fill { to, value, bytes } => {
                let pattern = self.patterns.address() + u64::from(value) * WORD;
                let [head, words, tail] = split(to, bytes);
                let after = to + head + words * WORD;
                if head > 0 {
                    packets.copy(to, pattern, head);
                }
                if words > 0 {
                    packets.fill(to + head, u32::from_ne_bytes([value; WORD as usize]), words);
                }
                if tail > 0 {
                    packets.copy(after, pattern, tail);
                }
            }
        }
        // The upper half of a signal that stands at one is zero.
        packets.release().fence(own.signal().value_address(), 0);
        let mut waited = lock(&self.waited);
        // SAFETY: signals stay as long as they are waited for, and the rest is the caller's promise.
        unsafe { self.queue.submit(&packets)? };
        waited.keep(&own, waits);
        Ok(own)
    }

    /// The point behind everything enqueued so far; none if nothing was, or it is done and forgotten.
    pub fn end(&self) -> Option<Point> {
        lock(&self.waited).0.back().map(|(own, _)| own.clone())
    }
}

/// Bytes before the first whole word of a range, whole words, and bytes behind the last.
fn split(to: u64, bytes: u64) -> [u64; 3] {
    let head = (to.wrapping_neg() % WORD).min(bytes);
    let rest = bytes - head;
    [head, rest / WORD, rest % WORD]
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn ranges_are_bytes_words_and_bytes() {
        for to in 0..8 {
            for bytes in 0..16 {
                let [head, words, tail] = split(to, bytes);
                assert_eq!(head + words * 4 + tail, bytes);
                assert!(head < 4 && tail < 4);
                assert!(words == 0 || (to + head) % 4 == 0);
            }
        }
        assert_eq!(split(5, 2), [2, 0, 0]);
        assert_eq!(split(4, 9), [0, 2, 1]);
    }
}
