//! Arguments that come one by one, as a JSON object.

use super::Said;
use serde_json::Value as Json;

/// Puts an object together.
#[derive(Debug, Clone, Default)]
pub(super) struct Arguments {
    keys: Vec<String>,
}

impl Arguments {
    /// Says one more argument. Of several with the same key the first counts.
    pub(super) fn add(&mut self, key: &str, value: &Json, said: &mut Vec<Said>) {
        if self.keys.iter().any(|known| known == key) {
            return;
        }
        let before = if self.keys.is_empty() { '{' } else { ',' };
        let key_text = Json::from(key);
        said.push(Said::Arguments(format!("{before}{key_text}:{value}")));
        self.keys.push(key.to_string());
    }

    /// Says that this was all.
    pub(super) fn end(&self, said: &mut Vec<Said>) {
        let end = if self.keys.is_empty() { "{}" } else { "}" };
        said.push(Said::Arguments(end.to_string()));
    }
}
