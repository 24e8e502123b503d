//! Compiled grammars of late: agents send the same one with every request.

use super::{Compiled, Notation};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most grammars that are kept, …
const MOST: usize = 16;
/// … and the longest text among them.
const LONGEST: usize = 64 << 10;

/// Compiled grammars of late, the latest last.
#[derive(Default)]
pub(super) struct Kept(Mutex<Vec<Entry>>);

struct Entry {
    notation: Notation,
    text: String,
    compiled: Compiled,
}

impl Kept {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, notation: Notation, text: &str) -> Option<Compiled> {
        let mut entries = self.entries();
        let at = entries
            .iter()
            .position(|entry| entry.notation == notation && entry.text == text)?;
        let entry = entries.remove(at);
        let compiled = entry.compiled.clone();
        entries.push(entry);
        Some(compiled)
    }

    pub(super) fn keep(&self, notation: Notation, text: &str, compiled: &Compiled) {
        if text.len() > LONGEST {
            return;
        }
        let mut entries = self.entries();
        // Two requests may have compiled the same.
        entries.retain(|entry| entry.notation != notation || entry.text != text);
        if entries.len() >= MOST {
            entries.remove(0);
        }
        entries.push(Entry {
            notation,
            text: text.to_string(),
            compiled: compiled.clone(),
        });
    }
}
