//! The ControlNets that clients may name: what is in folders that the operator chose, nothing else of the machine.

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
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for folder in &self.0 {
            // A folder that cannot be read has nothing to offer.
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            for path in entries.map(|entry| entry.path()) {
                let name = match path.is_dir() {
                    true if path.join("config.json").is_file() => path.file_name(),
                    false if path.extension().is_some_and(|e| e == "safetensors") => {
                        path.file_stem()
                    }
                    _ => None,
                };
                let Some(name) = name.and_then(|name| name.to_str()) else {
                    continue;
                };
                if !found.iter().any(|(known, _)| known == name) {
                    found.push((name.to_string(), path));
                }
            }
        }
        found.sort();
        found
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
