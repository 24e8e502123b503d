//! Shapes in which configuration files write values.

use serde::Deserialize;

/// One value for all blocks, or one per block.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PerBlock<T> {
    /// The same everywhere.
    One(T),
    /// Block by block.
    Each(Vec<T>),
}

impl<T: Copy> PerBlock<T> {
    /// The values of `blocks` blocks.
    ///
    /// # Errors
    /// If there is a list of another length; `name` is the setting's, for the message.
    pub fn values(&self, blocks: usize, name: &str) -> Result<Vec<T>, String> {
        match self {
            Self::One(value) => Ok(vec![*value; blocks]),
            Self::Each(values) if values.len() == blocks => Ok(values.clone()),
            Self::Each(values) => Err(format!(
                "{name} has {} values for {blocks} blocks",
                values.len()
            )),
        }
    }
}

/// Checks sizes of a configuration before anything is computed from them.
///
/// # Errors
/// Names the first value that is not within `1..=limit`.
pub fn within(sizes: &[(&str, usize)], limit: usize) -> Result<(), String> {
    match sizes
        .iter()
        .find(|(_, value)| *value == 0 || *value > limit)
    {
        None => Ok(()),
        Some((name, value)) => Err(format!("{name} is {value}; 1 to {limit} is possible")),
    }
}
