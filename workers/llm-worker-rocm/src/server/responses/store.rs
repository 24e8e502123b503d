//! Responses that later ones go on from, in memory: the last ones of all clients, each for those with its key only.

use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use worker::http::{ApiError, Caller};

/// Most responses, …
const MOST: usize = 1000;
/// … and most bytes of their text together.
const MOST_BYTES: usize = 64 << 20;

/// A response and the chat that led to it.
pub struct Kept {
    /// As it was told.
    pub response: Value,
    /// The chat with the answer, but without instructions.
    pub messages: Vec<Value>,
}

/// The last responses, the latest last.
#[derive(Default)]
pub(in crate::server) struct Store(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    entries: VecDeque<Entry>,
    bytes: usize,
}

struct Entry {
    caller: Caller,
    id: String,
    bytes: usize,
    kept: Arc<Kept>,
}

impl Store {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response; the oldest ones go where there are too many. One that is too large by itself is not kept.
    pub(super) fn keep(&self, caller: Caller, id: &str, kept: Kept) {
        let texts = kept
            .messages
            .iter()
            .map(|message| message.to_string().len());
        let bytes = kept.response.to_string().len() + texts.sum::<usize>();
        if bytes > MOST_BYTES {
            return;
        }
        let mut all = self.entries();
        all.bytes += bytes;
        all.entries.push_back(Entry {
            caller,
            id: id.to_string(),
            bytes,
            kept: Arc::new(kept),
        });
        while all.entries.len() > MOST || all.bytes > MOST_BYTES {
            match all.entries.pop_front() {
                Some(oldest) => all.bytes -= oldest.bytes,
                None => break,
            }
        }
    }

    /// A response of a client's.
    ///
    /// # Errors
    /// 404 if there is none, or none any more.
    pub(super) fn find(&self, caller: Caller, id: &str) -> Result<Arc<Kept>, ApiError> {
        let all = self.entries();
        let mut own = all.entries.iter().filter(|entry| entry.caller == caller);
        let found = own.find(|entry| entry.id == id);
        found
            .map(|entry| entry.kept.clone())
            .ok_or_else(|| missing(id))
    }

    /// Forgets a response of a client's.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(super) fn forget(&self, caller: Caller, id: &str) -> Result<(), ApiError> {
        let mut all = self.entries();
        let found = all
            .entries
            .iter()
            .position(|e| e.caller == caller && e.id == id);
        let entry = found.and_then(|index| all.entries.remove(index));
        match entry {
            Some(entry) => {
                all.bytes -= entry.bytes;
                Ok(())
            }
            None => Err(missing(id)),
        }
    }
}

fn missing(id: &str) -> ApiError {
    ApiError {
        param: Some("previous_response_id".to_string()),
        ..ApiError::not_found(format!(
            "there is no response {id:?}: it was not stored, or too many came after it; send the whole chat as input"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kept(text: &str) -> Kept {
        Kept {
            response: json!(text),
            messages: Vec::new(),
        }
    }

    #[test]
    fn the_last_ones_are_kept_for_their_own_clients() {
        let store = Store::default();
        for index in 0..=MOST {
            store.keep(Caller(1), &index.to_string(), kept("x"));
        }
        assert!(store.find(Caller(1), "0").is_err());
        assert_eq!(store.find(Caller(1), "1").unwrap().response, "x");
        assert_eq!(store.find(Caller(2), "1").err().unwrap().status, 404);
        assert!(store.forget(Caller(2), "1").is_err());
        store.forget(Caller(1), "1").unwrap();
        assert!(store.find(Caller(1), "1").is_err());
        // Large ones take the place of many, and too large ones none.
        let half = "y".repeat(MOST_BYTES / 2);
        store.keep(Caller(1), "large", kept(&half));
        store.keep(Caller(1), "larger", kept(&half));
        assert_eq!(store.entries().entries.len(), 1);
        store.keep(Caller(1), "too large", kept(&"z".repeat(MOST_BYTES)));
        assert!(store.find(Caller(1), "too large").is_err());
        assert!(store.find(Caller(1), "larger").is_ok());
        store.forget(Caller(1), "larger").unwrap();
        assert_eq!(store.entries().bytes, 0);
    }
}
