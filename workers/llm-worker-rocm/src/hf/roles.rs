//! What a folder's tensors are for.

use super::change::Change;
use super::config::Config;
use crate::folder::required_json;
use crate::quantize::is_matrix;
use std::path::Path;
use worker::{Error, Result};

/// The names of a model's tensors, as its configuration gives them.
pub(crate) struct Roles(Config);

impl Roles {
    /// Reads a folder's configuration.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged or of a kind that is not implemented.
    pub fn open(folder: &Path) -> Result<Self> {
        let config = required_json(folder, "config.json")?;
        let config = Config::read(&config).map_err(|reason| Error::BadModel {
            path: folder.to_path_buf(),
            reason,
        })?;
        Ok(Self(config))
    }

    /// Whether a tensor is a matrix in a block of the model, rows of inputs, that activations are multiplied with:
    /// neither an embedding or the output, nor a router, nor one of the small ones of recurrences, nor one of another
    /// part that sees or hears.
    pub fn is_multiplied(&self, name: &str, shape: &[usize]) -> bool {
        let [rows, columns] = *shape else {
            return false;
        };
        if !name.ends_with(".weight") {
            return false;
        }
        let places = self.0.places(name).unwrap_or_default();
        let has_rows = |change: &Option<Change>| match change {
            None => true,
            Some(change) => change.keeps_rows(shape),
        };
        let is_of_block = |name: &str| name.starts_with("blk.") && !name.contains(".nextn.");
        !places.is_empty()
            && places.iter().all(|(place, change)| {
                is_of_block(&place.name)
                    && is_matrix(&place.name, &[columns as u64, rows as u64])
                    && has_rows(change)
            })
    }
}
