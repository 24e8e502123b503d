//! A Hugging Face model folder (`config.json`, `tokenizer.json`, safetensors) seen in GGUF's terms, so that everything
//! that reads GGUF reads it, too: the same checks, the same tokenizer, the same forward pass, and `quantize`.

mod activations;
mod change;
mod config;
mod delta;
mod experts;
mod files;
mod gemma;
mod heads;
mod latent;
mod layers;
mod metadata;
mod names;
mod older;
mod packed;
mod picked;
mod place;
mod quantized;
mod recurrent;
mod roles;
mod rope;
mod sound;
mod tensors;
mod tokenizer;
mod vision;
mod world;

pub(crate) use names::{RotatedHeads, TensorNames};
pub(crate) use roles::Roles;
pub(crate) use sound::SoundFolder;
pub(crate) use tensors::interleave;
pub(crate) use vision::VisionFolder;

use crate::folder::required_json;
use quantized::Quantization;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tensors::Shards;
use worker::gguf::{parts_of, Gguf, SharedBytes, TensorInfo, Weights};
use worker::{Error, Result};

/// A checked model folder.
pub struct HfFolder {
    path: PathBuf,
    header: Gguf,
    shards: Shards,
}

/// The part of a configuration that answers in text: Qwen's models that speak have one of another part beside it.
pub(crate) fn of_thinker(config: &Json) -> &Json {
    config.get("thinker_config").unwrap_or(config)
}

impl HfFolder {
    /// Opens a folder and checks it.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be read, [`Error::BadModel`] if it is damaged or of a kind that is not
    /// implemented.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, config::Config::read)
    }

    /// The same of a model that may have no output matrix.
    ///
    /// # Errors
    /// Those of [`HfFolder::open`].
    pub fn open_base(path: &Path) -> Result<Self> {
        Self::open_as(path, config::Config::read_base)
    }

    fn open_as(
        path: &Path,
        read: impl FnOnce(&Json) -> std::result::Result<config::Config, String>,
    ) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let mut json = required_json(path, "config.json")?;
        quantized::with_own_file(path, &mut json)?;
        let config = read(&json).map_err(bad)?;
        let quantization = Quantization::read(&json, config.folder.experts).map_err(bad)?;
        let of_tokenizer = tokenizer::metadata(path, &config)?;
        let shards = Shards::open(path, &config, quantization.as_ref())?;
        let mut metadata = config.metadata(shards.heads);
        metadata.extend(of_tokenizer);
        metadata.extend(shards.activations.metadata());
        let header = Gguf::from_parts(metadata, shards.table());
        Ok(Self {
            path: path.to_path_buf(),
            header,
            shards,
        })
    }
}

impl Weights for HfFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, _info: &TensorInfo) -> Cow<'_, [u8]> {
        self.shards.bytes(name)
    }

    fn shared(&self, name: &str, _: &TensorInfo) -> Option<SharedBytes> {
        self.shards.shared(name)
    }

    fn parts(&self, name: &str, info: &TensorInfo, ranges: &[Range<usize>]) -> Cow<'_, [u8]> {
        match self.shards.parts(name, ranges) {
            Some(parts) => Cow::Owned(parts),
            None => parts_of(self.bytes(name, info), ranges),
        }
    }

    fn give_back(&self, name: &str, _info: &TensorInfo) {
        self.shards.give_back(name);
    }

    fn intact(&self) -> Result<()> {
        match self.shards.damage() {
            None => Ok(()),
            Some(reason) => Err(Error::BadModel {
                path: self.path.clone(),
                reason: reason.to_string(),
            }),
        }
    }
}
