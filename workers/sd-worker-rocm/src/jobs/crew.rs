//! The models that work the queue: the same one several times, each on devices of its own.

use super::work::Task;
use super::Generate;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A model on devices of its own.
pub struct Replica {
    /// Names of its devices, for people.
    pub device: String,
    /// What they are. Models on devices of one kind get equal shares of a request, and the same numbers.
    pub kind: String,
    /// The model.
    pub generator: Box<dyn Generate>,
}

/// What is known of a model's devices at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceState {
    /// Their names.
    pub device: String,
    /// What they are.
    pub kind: String,
    /// Whether they work.
    pub is_busy: bool,
    /// Why they are gone, if they are.
    pub lost: Option<String>,
    /// Pictures made there.
    pub pictures: u64,
    /// Sampler steps done there.
    pub steps: u64,
    /// Time spent on pictures.
    pub busy: Duration,
}

/// A model's place in the queue.
pub(super) struct Slot {
    pub device: String,
    pub kind: String,
    /// Not there while it works, by its own thread or lent to another's.
    pub generator: Option<Box<dyn Generate>>,
    /// What its thread works on.
    pub task: Option<Task>,
    /// Whose model works with this one's on the task.
    pub borrowed: Option<usize>,
    /// Why its devices are gone.
    pub lost: Option<String>,
    /// Its thread may never come back.
    pub hangs: bool,
}

impl Slot {
    /// A model that waits for work, and the names that its figures go by.
    pub fn new(replica: Replica) -> Self {
        Self {
            device: replica.device,
            kind: replica.kind,
            generator: Some(replica.generator),
            task: None,
            borrowed: None,
            lost: None,
            hangs: false,
        }
    }

    /// Whether it waits for work.
    pub fn is_free(&self) -> bool {
        self.generator.is_some() && self.lost.is_none()
    }
}

/// What a model has done, counted without the queue's lock.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub pictures: AtomicU64,
    pub steps: AtomicU64,
    pub busy_micros: AtomicU64,
    /// When it last told of progress: milliseconds since the queue's start.
    beat: AtomicU64,
}

impl Meter {
    /// It goes on.
    pub fn beat(&self, start: Instant) {
        let now = start.elapsed().as_millis() as u64;
        self.beat.store(now, Ordering::Relaxed);
    }

    /// How long nothing was heard of it.
    pub fn silence(&self, start: Instant) -> Duration {
        let beat = Duration::from_millis(self.beat.load(Ordering::Relaxed));
        start.elapsed().saturating_sub(beat)
    }
}

/// First pictures and numbers of pictures for models of these kinds: equal shares for equal ones, where a batch takes
/// less time than its pictures one by one; single pictures for others, of which the faster ones then make more.
pub(super) fn shares(pictures: usize, kinds: &[&str]) -> Vec<(usize, usize)> {
    let equal = kinds.windows(2).all(|pair| pair[0] == pair[1]);
    let parts = match equal {
        true => pictures.min(kinds.len()),
        false => pictures,
    };
    let parts = parts.max(1);
    let (least, more) = (pictures / parts, pictures % parts);
    let mut first = 0;
    (0..parts)
        .map(|part| {
            let count = least + usize::from(part < more);
            first += count;
            (first - count, count)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_shared() {
        assert_eq!(shares(1, &["a"]), [(0, 1)]);
        assert_eq!(shares(4, &["a"]), [(0, 4)]);
        assert_eq!(shares(1, &["a", "a"]), [(0, 1)]);
        assert_eq!(shares(5, &["a", "a"]), [(0, 3), (3, 2)]);
        assert_eq!(shares(3, &["a", "a", "a", "a"]), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(shares(3, &["a", "b"]), [(0, 1), (1, 1), (2, 1)]);
    }
}
