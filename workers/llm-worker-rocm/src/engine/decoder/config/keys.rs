//! Metadata of a file, read and checked.

use worker::gguf::{Array, Gguf, GgufError, Value};

/// Why a model cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A key or tensor is missing or malformed.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A value that makes no sense.
    #[error("metadata {key} is {value}: {reason}")]
    BadValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A feature of the file that is not implemented.
    #[error("{0} is not implemented; take another model")]
    Unsupported(String),
}

pub(super) type Result<T> = std::result::Result<T, ConfigError>;

/// Metadata of the file's architecture, by keys without its name.
pub(super) struct Keys<'a> {
    pub gguf: &'a Gguf,
    pub name: &'a str,
}

impl Keys<'_> {
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    pub(super) fn bad(
        &self,
        key: &str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> ConfigError {
        ConfigError::BadValue {
            key: self.full(key),
            value: value.to_string(),
            reason: reason.into(),
        }
    }

    /// A list of numbers, one for each of `count` blocks.
    pub(super) fn numbers(&self, key: &str, count: usize) -> Result<Option<Vec<f32>>> {
        match self.gguf.get(&self.full(key)) {
            None => Ok(None),
            Some(Value::Array(Array::F32(values))) if values.len() == count => {
                Ok(Some(values.clone()))
            }
            Some(_) => Err(self.bad(
                key,
                "another list",
                format!("a number for each of {count} blocks is expected"),
            )),
        }
    }

    pub(super) fn u32(&self, key: &str) -> Result<Option<u32>> {
        Ok(self.gguf.get_u32(&self.full(key))?)
    }

    /// A number above 0 and up to `most`.
    pub(super) fn count(&self, key: &str, most: u32) -> Result<Option<usize>> {
        match self.u32(key)? {
            Some(0) => Err(self.bad(key, 0, "it must be above 0")),
            Some(value) if value > most => {
                Err(self.bad(key, value, format!("at most {most} is allowed")))
            }
            value => Ok(value.map(|value| value as usize)),
        }
    }

    pub(super) fn require_count(&self, key: &str, most: u32) -> Result<usize> {
        match self.count(key, most)? {
            Some(value) => Ok(value),
            None => {
                self.gguf.require_u32(&self.full(key))?;
                unreachable!("the key is missing")
            }
        }
    }

    /// A number above 0; 0 counts as none where `zero_is_none`.
    pub(super) fn positive(&self, key: &str, zero_is_none: bool) -> Result<Option<f32>> {
        match self.gguf.get_f32(&self.full(key))? {
            Some(0.0) if zero_is_none => Ok(None),
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.bad(key, value, "it must be a number above 0"))
            }
            value => Ok(value),
        }
    }

    /// A number of each block: the file has one for all, or a list.
    pub(super) fn of_blocks(&self, key: &str, blocks: usize) -> Result<Option<Vec<usize>>> {
        let Some(Value::Array(array)) = self.gguf.get(&self.full(key)) else {
            let all = self.u32(key)?;
            return Ok(all.map(|value| vec![value as usize; blocks]));
        };
        let values: Option<Vec<usize>> = match array {
            Array::U32(values) => values.iter().map(|v| (*v).try_into().ok()).collect(),
            Array::I32(values) => values.iter().map(|v| (*v).try_into().ok()).collect(),
            Array::U64(values) => values.iter().map(|v| (*v).try_into().ok()).collect(),
            Array::I64(values) => values.iter().map(|v| (*v).try_into().ok()).collect(),
            _ => None,
        };
        match values {
            Some(values) if values.len() == blocks => Ok(Some(values)),
            _ => Err(self.bad(
                key,
                format!("a list of {}", array.len()),
                format!("a number for each of {blocks} blocks is expected"),
            )),
        }
    }

    /// A list of switches, one for each of `count` blocks; writers of files have them in several types.
    pub(super) fn switches(&self, key: &str, count: usize) -> Result<Option<Vec<bool>>> {
        let Some(Value::Array(array)) = self.gguf.get(&self.full(key)) else {
            return Ok(None);
        };
        let switches: Vec<bool> = match array {
            Array::Bool(values) => values.clone(),
            Array::U32(values) => values.iter().map(|v| *v != 0).collect(),
            Array::I32(values) => values.iter().map(|v| *v != 0).collect(),
            _ => return Err(self.bad(key, "a list", "switches are expected")),
        };
        match switches.len() {
            found if found == count => Ok(Some(switches)),
            found => Err(self.bad(
                key,
                format!("a list of {found}"),
                format!("the model has {count} blocks"),
            )),
        }
    }

    pub(super) fn bool(&self, key: &str) -> Result<Option<bool>> {
        Ok(self.gguf.get_bool(&self.full(key))?)
    }
}
