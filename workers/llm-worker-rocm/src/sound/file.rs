//! The encoder of a model: in its folder, or in an `mmproj` file beside its GGUF file.

use super::config::SoundConfig;
use crate::hf::SoundFolder;
use std::path::Path;
use worker::gguf::{MappedGguf, Weights};
use worker::{Error, Result};

/// An encoder's file that passed its checks.
pub struct SoundFile {
    file: Box<dyn Weights>,
    config: SoundConfig,
}

impl SoundFile {
    /// Opens an `mmproj` file; `None` if it has no encoder of sounds.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged or of a kind that is not implemented.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        Self::of(Box::new(MappedGguf::open(path)?))
    }

    /// The encoder in a model's folder, if it has one of a kind that is implemented; else why not.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be read, [`Error::BadModel`] if it is damaged.
    pub fn of_folder(path: &Path) -> Result<Option<Self>> {
        match SoundFolder::open(path)? {
            Some(folder) => Self::of(Box::new(folder)),
            None => Ok(None),
        }
    }

    fn of(file: Box<dyn Weights>) -> Result<Option<Self>> {
        let config = SoundConfig::from_gguf(file.header());
        let config = config.map_err(|reason| Error::BadModel {
            path: file.path().to_path_buf(),
            reason,
        })?;
        Ok(config.map(|config| Self { file, config }))
    }

    /// Its shape.
    pub fn config(&self) -> &SoundConfig {
        &self.config
    }

    /// Its tensors.
    pub fn weights(&self) -> &dyn Weights {
        &*self.file
    }
}
