//! Findings: written to stderr, kept for tests, and turned into the status of the next call.

use crate::error::{HipError, HipResult};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// Kept findings; later ones are only counted on stderr.
const KEPT: usize = 1000;

/// All findings of the process that were not taken yet.
#[derive(Default)]
pub(crate) struct Reports {
    lines: Mutex<Vec<String>>,
    memory_fault: AtomicBool,
}

impl Reports {
    /// Notes something that is wrong but did not damage memory.
    pub fn add(&self, message: String) {
        eprintln!("hip-sim: {message}");
        let mut lines = self.lines.lock().unwrap_or_else(|e| e.into_inner());
        if lines.len() < KEPT {
            lines.push(message);
        }
    }

    /// Notes an illegal access: the next API call answers `hipErrorIllegalAddress`.
    pub fn add_memory_fault(&self, message: String) {
        self.add(message);
        self.memory_fault.store(true, Ordering::SeqCst);
    }

    /// Fails once after an illegal access.
    pub fn surface(&self) -> HipResult {
        match self.memory_fault.load(Ordering::Relaxed)
            && self.memory_fault.swap(false, Ordering::SeqCst)
        {
            true => Err(HipError::IllegalAddress),
            false => Ok(()),
        }
    }

    /// Takes all findings.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Puts findings back that could not be delivered.
    pub fn put_back(&self, lines: Vec<String>) {
        self.lines
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .splice(0..0, lines);
    }
}
