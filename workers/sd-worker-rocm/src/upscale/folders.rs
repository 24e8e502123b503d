//! The upscalers that clients may name: what is in folders that the operator chose, nothing else of the machine.

use super::method::Method;
use crate::weights::named::named;
use std::path::PathBuf;
use worker::{Error, Result};

/// Folders with upscalers: safetensors files.
#[derive(Debug, Clone, Default)]
pub struct UpscalerFolders(Vec<PathBuf>);

impl UpscalerFolders {
    /// Takes folders; those that do not exist have no upscalers.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self(folders)
    }

    /// Names and paths, sorted by name; of two with one name the first folder's counts.
    pub fn list(&self) -> Vec<(String, PathBuf)> {
        named(&self.0, false)
    }

    /// The way of this name: a known one, or a file of the folders by its stem.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists what there is.
    pub fn find(&self, name: &str) -> Result<Method> {
        if let Some(known) = Method::known(name) {
            return Ok(known);
        }
        let files = self.list();
        let stem = name.strip_suffix(".safetensors").unwrap_or(name);
        if let Some((_, path)) = files.iter().find(|(known, _)| known == stem) {
            return Ok(Method::Network(path.clone()));
        }
        let mut names: Vec<&str> = Method::names().collect();
        names.extend(files.iter().map(|(name, _)| &**name));
        Err(Error::Usage(format!(
            "there is no upscaler {name:?}; there are {}",
            names.join(", ")
        )))
    }
}
