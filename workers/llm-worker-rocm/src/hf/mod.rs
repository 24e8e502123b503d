//! A Hugging Face model folder (`config.json`, `tokenizer.json`, safetensors) seen in GGUF's terms, so that everything that reads
//! GGUF reads it, too: the same checks, the same tokenizer, the same forward pass, and `quantize`.

mod config;
mod family;
mod rope;
mod tensors;
mod tokenizer;

pub(crate) use tensors::files as weight_files;
pub(crate) use tokenizer::chat_template;

use serde_json::Value as Json;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use tensors::Shards;
use worker::gguf::{Gguf, TensorInfo, Weights};
use worker::{Error, Result};

/// Longest JSON file that is read: the largest `tokenizer.json` in use has 35 MB.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// A checked model folder.
pub struct HfFolder {
    path: PathBuf,
    header: Gguf,
    shards: Shards,
}

impl HfFolder {
    /// Opens a folder and checks it.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be read, [`Error::BadModel`] if it is damaged or of a kind that is not implemented.
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
        let config = required_json(path, "config.json")?;
        let config = read(&config).map_err(&bad)?;
        let mut metadata = config.metadata();
        metadata.extend(tokenizer::metadata(path, &config)?);
        let shards = Shards::open(path, &config)?;
        let header = Gguf::from_parts(metadata, shards.table().map_err(bad)?);
        Ok(Self {
            path: path.to_path_buf(),
            header,
            shards,
        })
    }
}

/// Whether the decoder has the family of a configuration, with output matrix or without.
pub(crate) fn knows(config: &Json) -> bool {
    let name = config["architectures"][0].as_str().unwrap_or("none");
    family::Family::of(name)
        .or(family::Family::of_base(name))
        .is_some()
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

    fn give_back(&self, name: &str, _info: &TensorInfo) {
        self.shards.give_back(name);
    }
}

/// A JSON file of the folder, `None` if there is none of that name.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is too long or not JSON.
pub(crate) fn read_json(folder: &Path, name: &str) -> Result<Option<Json>> {
    let path = folder.join(name);
    let io = |source| Error::Io {
        path: path.clone(),
        source,
    };
    let length = match std::fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(io)?.len(),
    };
    let bad = |reason: String| Error::BadModel {
        path: path.clone(),
        reason,
    };
    if length > MAX_JSON_BYTES {
        return Err(bad(format!(
            "{length} bytes, at most {MAX_JSON_BYTES} are read"
        )));
    }
    let text = std::fs::read(&path).map_err(io)?;
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|e| bad(format!("it is not the JSON that is expected: {e}")))
}

fn required_json(folder: &Path, name: &str) -> Result<Json> {
    read_json(folder, name)?.ok_or_else(|| Error::BadModel {
        path: folder.to_path_buf(),
        reason: format!("it has no {name}; a model folder needs config.json, tokenizer.json and .safetensors files"),
    })
}
