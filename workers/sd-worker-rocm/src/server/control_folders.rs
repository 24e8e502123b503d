//! The ControlNets that clients may name: what is in folders that the operator chose, nothing else of the machine.

use crate::weights::named::named;
use std::path::PathBuf;
use worker::http::ApiError;

/// Folders with ControlNets: safetensors files, and folders as diffusers writes them.
#[derive(Debug, Clone, Default)]
pub struct ControlFolders(Vec<PathBuf>);

impl ControlFolders {
    /// Takes folders; those that do not exist have no ControlNets.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self(folders)
    }

    /// Names and paths, sorted by name; of two with one name the first folder's counts.
    pub fn list(&self) -> Vec<(String, PathBuf)> {
        named(&self.0, true)
    }

    /// A client's ControlNet; the web UI writes a hash behind the name.
    ///
    /// # Errors
    /// 400 that lists what is there.
    pub fn find(&self, field: &str, name: &str) -> Result<PathBuf, ApiError> {
        let known = self.list();
        let stem = name.split(" [").next().unwrap_or(name);
        let stem = stem.strip_suffix(".safetensors").unwrap_or(stem);
        if let Some((_, path)) = known.iter().find(|(known, _)| known == stem) {
            return Ok(path.clone());
        }
        let names: Vec<_> = known.iter().map(|(name, _)| name.as_str()).collect();
        Err(ApiError::field(
            field,
            match names.is_empty() {
                true => format!(
                    "there is no ControlNet {name:?}: this server has none (--controlnet-dir)"
                ),
                false => format!(
                    "there is no ControlNet {name:?}; this server has {}",
                    names.join(", ")
                ),
            },
        ))
    }
}
