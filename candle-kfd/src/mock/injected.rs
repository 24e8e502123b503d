//! What goes wrong on purpose.

use super::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// Failures of hardware that tests asked for.
#[derive(Debug, Default)]
pub(super) struct Injected {
    /// GPUs that execute nothing any more, by index.
    pub lost: Vec<AtomicBool>,
    /// Whether kernels are done in another order where they may be.
    pub swapping: AtomicBool,
    /// Whether no doorbell is taken.
    pub deaf: AtomicBool,
    /// How many more packets are executed until queues stall.
    pub packets: Mutex<Option<usize>>,
    /// After how many more copies one has a wrong byte, and where.
    pub copies: Mutex<Option<(usize, u64)>>,
}

impl Injected {
    pub fn new(gpus: usize) -> Self {
        Injected {
            lost: (0..gpus).map(|_| AtomicBool::new(false)).collect(),
            ..Injected::default()
        }
    }

    /// Whether a queue stalls before its next packet; counts it if not.
    pub fn stalls(&self) -> bool {
        match &mut *lock(&self.packets) {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }

    /// Counts a copy; where its byte is wrong, if it is the one.
    pub fn spoils(&self) -> Option<u64> {
        let mut copies = lock(&self.copies);
        let (left, at) = (*copies)?;
        if left == 0 {
            *copies = None;
            return Some(at);
        }
        *copies = Some((left - 1, at));
        None
    }

    /// Whether kernels are done in another order where they may be.
    pub fn swaps(&self) -> bool {
        self.swapping.load(Ordering::SeqCst)
    }

    /// Whether no doorbell is taken from now on.
    pub fn set_deaf(&self, deaf: bool) {
        self.deaf.store(deaf, Ordering::SeqCst);
    }
}
