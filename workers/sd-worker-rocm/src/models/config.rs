//! Shapes in which configuration files write values.

use serde::Deserialize;

/// One value for all blocks, or one per block.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PerBlock<T> {
    /// Block by block. Comes first, so that a list is one of blocks where the values may be lists, too.
    Each(Vec<T>),
    /// The same everywhere.
    One(T),
}

impl<T: Clone> PerBlock<T> {
    /// The values of `blocks` blocks.
    ///
    /// # Errors
    /// If there is a list of another length; `name` is the setting's, for the message.
    pub fn values(&self, blocks: usize, name: &str) -> Result<Vec<T>, String> {
        match self {
            Self::One(value) => Ok(vec![value.clone(); blocks]),
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

/// Checks that heads divide a width; there must be some.
///
/// # Errors
/// If they do not.
pub fn check_heads(hidden_size: usize, heads: usize) -> Result<(), String> {
    match hidden_size.is_multiple_of(heads) {
        true => Ok(()),
        false => Err(format!(
            "{heads} heads do not divide hidden_size {hidden_size}"
        )),
    }
}

/// Checks how pictures in three colours are cut into patches.
///
/// # Errors
/// If there would be none, or there are other channels.
pub fn check_patches(image: usize, patch: usize, channels: usize) -> Result<(), String> {
    match patch <= image && channels == 3 {
        true => Ok(()),
        false => Err(format!(
            "patches of {patch} pixels in pictures of {image} with {channels} channels are not possible"
        )),
    }
}

/// Checks that the channels of a head are turned by `N` coordinates, an even number of them by each.
///
/// # Errors
/// If there are more or fewer, or their shares are odd or do not make up the head.
pub fn check_axes<const N: usize>(axes: &[usize], attention_head_dim: usize) -> Result<(), String> {
    let even = axes.iter().all(|size| size.is_multiple_of(2));
    // Sizes of a file may be as large as numbers go.
    let turned = axes
        .iter()
        .try_fold(0usize, |sum, size| sum.checked_add(*size));
    match axes.len() == N && even && turned == Some(attention_head_dim) {
        true => Ok(()),
        false => Err(format!(
            "axes_dims_rope {axes:?} do not make up attention_head_dim {attention_head_dim}"
        )),
    }
}

/// Refuses settings that are not known, but for those that are switched off (null or false), notes of the library
/// (`_class_name` and such), and `harmless` ones.
///
/// # Errors
/// Names the first.
pub fn refuse_others(
    others: &serde_json::Map<String, serde_json::Value>,
    harmless: &[&str],
) -> Result<(), String> {
    let unknown = others.iter().find(|(name, value)| {
        let off = value.is_null() || value.as_bool() == Some(false);
        !off && !name.starts_with('_') && !harmless.contains(&name.as_str())
    });
    match unknown {
        None => Ok(()),
        Some((name, value)) => Err(format!(
            "the setting {name} ({value}) in config.json is not known"
        )),
    }
}
