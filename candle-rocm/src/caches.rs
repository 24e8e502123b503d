//! The allocators on one GPU: whoever finds it full has all of them empty their caches.

use crate::sync::lock;
use std::sync::{Arc, Mutex, Weak};

/// What caches memory of a GPU.
pub(crate) trait HoldsCache: Send + Sync {
    /// Waits for what uses the cached memory, on its own stream, and gives the memory back. What cannot be given back
    /// now is kept.
    fn empty_cache(&self);
}

/// Those that cache memory of one GPU, as long as they live.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    all: Mutex<Vec<Weak<dyn HoldsCache>>>,
}

impl Caches {
    /// Adds one.
    pub fn register(&self, cache: Weak<dyn HoldsCache>) {
        let mut all = lock(&self.all);
        all.retain(|known| known.strong_count() > 0);
        all.push(cache);
    }

    /// Empties all. The caller must hold no lock that emptying its own cache takes.
    pub fn empty(&self) {
        // Not while the list is locked: the last handle of a device may be the one that is dropped here.
        let living: Vec<Arc<dyn HoldsCache>> =
            lock(&self.all).iter().filter_map(Weak::upgrade).collect();
        for cache in living {
            cache.empty_cache();
        }
    }
}
