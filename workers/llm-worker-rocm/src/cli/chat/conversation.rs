//! What was said so far.

use crate::chat::{message, message_with_parts};
use serde_json::{json, Value as Json};
use std::path::Path;
use worker::{file, Error, Result};

/// Longest conversation that is loaded.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Messages in OpenAI's form, the system message first if there is one.
pub(super) struct Conversation {
    messages: Vec<Json>,
}

impl Conversation {
    pub(super) fn new(system: Option<String>) -> Self {
        Self {
            messages: system.iter().map(|text| message("system", text)).collect(),
        }
    }

    pub(super) fn messages(&self) -> &[Json] {
        &self.messages
    }

    pub(super) fn say(&mut self, role: &str, text: &str) {
        self.messages.push(message(role, text));
    }

    /// What the user says about pictures, videos and sounds.
    pub(super) fn show(&mut self, parts: Vec<Json>, text: &str) {
        self.messages.push(message_with_parts(parts, text));
    }

    /// Forgets all but the system message.
    pub(super) fn clear(&mut self) {
        self.messages.truncate(1);
        self.messages.retain(|m| m["role"] == "system");
    }

    /// Starts again with a system message, or none.
    pub(super) fn set_system(&mut self, text: Option<String>) {
        *self = Self::new(text);
    }

    /// Removes the last answer, so that it can be regenerated; whether there is one.
    pub(super) fn take_answer(&mut self) -> bool {
        let answered = self
            .messages
            .last()
            .is_some_and(|m| m["role"] == "assistant");
        if answered {
            self.messages.pop();
        }
        answered
    }

    /// Removes the last message.
    pub(super) fn take_back(&mut self) {
        self.messages.pop();
    }

    /// Writes `{"messages": […]}`, readable for the user only.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(&json!({"messages": self.messages}))
            .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?;
        write_private(path, &(text + "\n")).map_err(|source| Error::Io {
            path: path.to_path_buf(),
            source,
        })
    }

    /// Reads what [`Self::save`] wrote, or a bare list of messages.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let bad = |reason: &str| Error::Usage(format!("{}: {reason}", path.display()));
        let text = file::read_text(path, MAX_FILE_BYTES).map_err(Error::io(path))?;
        let json: Json = serde_json::from_str(&text).map_err(|e| bad(&e.to_string()))?;
        let messages = json.get("messages").unwrap_or(&json);
        let messages = messages
            .as_array()
            .ok_or_else(|| bad("it has no list of messages"))?;
        match messages.iter().all(|m| m["role"].is_string()) {
            true => Ok(Self {
                messages: messages.clone(),
            }),
            false => Err(bad("a message has no role")),
        }
    }
}

#[cfg(unix)]
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(not(unix))]
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_kept_and_forgotten() {
        let mut chat = Conversation::new(Some("s".to_string()));
        chat.say("user", "u");
        assert!(!chat.take_answer());
        chat.say("assistant", "a");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        chat.save(&path).unwrap();
        assert_eq!(
            Conversation::load(&path).unwrap().messages(),
            chat.messages()
        );
        assert!(chat.take_answer());
        assert_eq!(chat.messages().len(), 2);
        chat.clear();
        assert_eq!(chat.messages(), [message("system", "s")]);
        chat.set_system(None);
        assert!(chat.messages().is_empty());
        for bad in ["{}", "[1]", "x"] {
            std::fs::write(&path, bad).unwrap();
            assert!(Conversation::load(&path).is_err(), "{bad}");
        }
    }
}
