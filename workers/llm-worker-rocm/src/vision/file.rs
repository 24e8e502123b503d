//! The encoder of a model: in its folder, or in an `mmproj` file beside its GGUF file.

use super::config::VisionConfig;
use crate::hf::VisionFolder;
use std::path::{Path, PathBuf};
use worker::gguf::{MappedGguf, Weights};
use worker::{Error, Result};

/// An encoder's file that passed its checks.
pub struct VisionFile {
    file: Box<dyn Weights>,
    config: VisionConfig,
}

impl VisionFile {
    /// Opens an `mmproj` file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged or of a kind that is not implemented.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(Box::new(MappedGguf::open(path)?))
    }

    /// The encoder in a model's folder, if it has one of a kind that is implemented; else why not.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be read, [`Error::BadModel`] if it is damaged.
    pub fn of_folder(path: &Path) -> Result<Option<Self>> {
        VisionFolder::open(path)?
            .map(|folder| Self::of(Box::new(folder)))
            .transpose()
    }

    /// The `mmproj` file beside a model's GGUF file: llama.cpp's converter names them `mmproj-...gguf`, and publishers
    /// `...mmproj...gguf`. Of several, one of halves.
    pub fn beside(model: &Path) -> Option<PathBuf> {
        let folder = match model.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().and_then(|name| name.to_str());
                let name = name.unwrap_or_default().to_ascii_lowercase();
                name.contains("mmproj") && name.ends_with(".gguf")
            })
            .collect();
        found.sort_by_key(|path| {
            let name = path.to_string_lossy().to_ascii_lowercase();
            (!name.contains("f16"), name)
        });
        found.into_iter().next()
    }

    fn of(file: Box<dyn Weights>) -> Result<Self> {
        let config = VisionConfig::from_gguf(file.header());
        let config = config.map_err(|reason| Error::BadModel {
            path: file.path().to_path_buf(),
            reason,
        })?;
        Ok(Self { file, config })
    }

    /// Its shape.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// Its tensors.
    pub fn weights(&self) -> &dyn Weights {
        &*self.file
    }
}
