//! GGUF's metadata in the making.

use worker::gguf::{Array, Value};

/// Metadata in the making.
pub(super) struct MetadataWriter {
    architecture: &'static str,
    metadata: Vec<(String, Value)>,
}

impl MetadataWriter {
    pub(super) fn new(architecture: &'static str) -> Self {
        Self {
            architecture,
            metadata: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> Vec<(String, Value)> {
        self.metadata
    }

    /// Sets a key that belongs to no architecture.
    pub(super) fn general(&mut self, key: &str, text: &str) {
        self.metadata
            .push((format!("general.{key}"), Value::String(text.to_string())));
    }

    fn set(&mut self, key: &str, value: Value) {
        self.metadata
            .push((format!("{}.{key}", self.architecture), value));
    }

    pub(super) fn number(&mut self, key: &str, value: u32) {
        self.set(key, Value::U32(value));
    }

    /// A number for each block.
    pub(super) fn numbers(&mut self, key: &str, values: &[u32]) {
        self.set(key, Value::Array(Array::U32(values.to_vec())));
    }

    /// Takes a key back.
    pub(super) fn remove(&mut self, key: &str) {
        let key = format!("{}.{key}", self.architecture);
        self.metadata.retain(|(name, _)| *name != key);
    }

    /// Signed ones.
    pub(super) fn sections(&mut self, key: &str, values: Vec<i32>) {
        self.set(key, Value::Array(Array::I32(values)));
    }

    pub(super) fn float(&mut self, key: &str, value: f64) {
        self.set(key, Value::F32(value as f32));
    }

    pub(super) fn bool(&mut self, key: &str, value: bool) {
        self.set(key, Value::Bool(value));
    }

    pub(super) fn switches(&mut self, key: &str, values: Vec<bool>) {
        self.set(key, Value::Array(Array::Bool(values)));
    }

    pub(super) fn floats(&mut self, key: &str, values: Vec<f32>) {
        self.set(key, Value::Array(Array::F32(values)));
    }

    /// A whole number for each block, or for something else.
    pub(super) fn list(&mut self, key: &str, values: Vec<i32>) {
        self.set(key, Value::Array(Array::I32(values)));
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.set(key, Value::String(value.to_string()));
    }
}
