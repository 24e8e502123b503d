//! How far loading is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// How far loading is. The loading thread tells it, `/health` shows it.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    /// 0 while unknown.
    total: AtomicU64,
    stage: RwLock<String>,
}

impl Progress {
    /// Says how much there is to do, in bytes or whatever [`Self::add`] counts.
    pub fn expect(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
    }

    /// So much more is done.
    pub fn add(&self, amount: u64) {
        self.done.fetch_add(amount, Ordering::Relaxed);
    }

    /// So much is done in all.
    pub fn set(&self, amount: u64) {
        self.done.store(amount, Ordering::Relaxed);
    }

    /// What is done now, in words; it is logged.
    pub fn begin(&self, stage: &str) {
        tracing::info!("{stage}");
        self.tell(stage);
    }

    /// What is done now, in words, without a log line.
    pub fn tell(&self, stage: &str) {
        *self.stage.write().unwrap_or_else(PoisonError::into_inner) = stage.to_string();
    }

    /// What is done now; empty if nothing was said.
    pub fn stage(&self) -> String {
        let stage = self.stage.read().unwrap_or_else(PoisonError::into_inner);
        stage.clone()
    }

    /// From 0 to 1.
    pub fn fraction(&self) -> f64 {
        let total = self.total.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        if total == 0 {
            0.0
        } else {
            (done as f64 / total as f64).min(1.0)
        }
    }
}
