//! A model as diffusers stores it: a folder for each part, with configuration and weights.

use super::bytes::Bytes;
use super::file::{pickle_advice, SafetensorsFile};
use super::float8::Layout;
use super::Weights;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// Longest JSON file that is read: indexes of the largest models have a few hundred kB.
const MAX_JSON_BYTES: usize = 64 << 20;

/// Files of a model.
#[derive(Debug, Clone)]
pub enum Folder {
    /// A folder on disk.
    Disk(PathBuf),
    /// Part of the program: relative path and content.
    Embedded(&'static [(&'static str, &'static [u8])]),
}

/// `….index.json` beside weights in several files.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    /// Where a file is, for messages.
    pub fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Disk(folder) => folder.join(name),
            Self::Embedded(_) => Path::new("(built in)").join(name),
        }
    }

    /// A part's folder.
    pub fn part(&self, name: &str) -> Part<'_> {
        Part {
            folder: self,
            name: name.to_string(),
        }
    }

    /// Whether there is such a file.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Disk(folder) => folder.join(name).is_file(),
            Self::Embedded(files) => files.iter().any(|(file, _)| *file == name),
        }
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// If there is none, or it cannot be read.
    pub fn bytes(&self, name: &str) -> Result<Bytes> {
        match self {
            Self::Disk(folder) => Bytes::map(&folder.join(name)),
            Self::Embedded(files) => match files.iter().find(|(file, _)| *file == name) {
                Some((_, bytes)) => Ok(Bytes::Static(bytes)),
                None => Err(Error::BadModel {
                    path: self.path(name),
                    reason: "there is no such file".to_string(),
                }),
            },
        }
    }

    /// A JSON file.
    ///
    /// # Errors
    /// If there is none, or it does not say what is wanted.
    pub fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let bad = |reason| Error::BadModel {
            path: self.path(name),
            reason,
        };
        let bytes = self.bytes(name)?;
        if bytes.len() > MAX_JSON_BYTES {
            return Err(bad(format!(
                "{} bytes, at most {MAX_JSON_BYTES} are read",
                bytes.len()
            )));
        }
        worker::json::of_python(&bytes).map_err(|e| bad(e.to_string()))
    }
}

/// A part's folder within a model's.
#[derive(Debug)]
pub struct Part<'a> {
    folder: &'a Folder,
    name: String,
}

impl Part<'_> {
    fn file(&self, name: &str) -> String {
        match self.name.as_str() {
            "" => name.to_string(),
            part => format!("{part}/{name}"),
        }
    }

    /// Whether the model has the part.
    pub fn exists(&self) -> bool {
        self.folder.contains(&self.file("config.json"))
    }

    /// Its `config.json`.
    ///
    /// # Errors
    /// Those of [`Folder::json`].
    pub fn config<T: DeserializeOwned>(&self) -> Result<T> {
        self.folder.json(&self.file("config.json"))
    }

    /// An error about its `config.json`.
    pub fn bad_config(&self, reason: String) -> Error {
        Error::BadModel {
            path: self.folder.path(&self.file("config.json")),
            reason,
        }
    }

    /// Its weights: one file or several, full precision before the `fp16` variant, and that before GGUF.
    ///
    /// # Errors
    /// If there are none in safetensors or GGUF, they are damaged, or quantized in a way that is not implemented.
    pub fn weights(&self) -> Result<Weights> {
        let layout = match self.exists() {
            true => Layout::of_config(&self.config()?).map_err(|e| self.bad_config(e))?,
            false => Layout::default(),
        };
        for stem in ["diffusion_pytorch_model", "model"] {
            for variant in ["", ".fp16", ".bf16"] {
                let name = self.file(&format!("{stem}{variant}.safetensors"));
                if self.folder.contains(&name) {
                    return Weights::new([self.open(&name)?], layout);
                }
                for index in [
                    format!("{stem}.safetensors.index{variant}.json"),
                    format!("{stem}{variant}.safetensors.index.json"),
                ] {
                    let index = self.file(&index);
                    if self.folder.contains(&index) {
                        return self.sharded(&index, layout);
                    }
                }
            }
        }
        for stem in ["diffusion_pytorch_model", "model"] {
            let name = self.file(&format!("{stem}.gguf"));
            if self.folder.contains(&name) {
                return Weights::gguf(self.folder.bytes(&name)?, &self.folder.path(&name));
            }
        }
        for name in ["diffusion_pytorch_model.bin", "pytorch_model.bin"] {
            let name = self.file(name);
            if self.folder.contains(&name) {
                let path = self.folder.path(&name);
                let reason = pickle_advice(&path);
                return Err(Error::BadModel { path, reason });
            }
        }
        Err(Error::BadModel {
            path: self.folder.path(&self.name),
            reason:
                "there are no weights (diffusion_pytorch_model.safetensors or model.safetensors)"
                    .to_string(),
        })
    }

    fn open(&self, name: &str) -> Result<SafetensorsFile> {
        SafetensorsFile::new(self.folder.bytes(name)?, &self.folder.path(name))
    }

    fn sharded(&self, index: &str, layout: Layout) -> Result<Weights> {
        let Index { weight_map } = self.folder.json(index)?;
        let files: BTreeSet<String> = weight_map.into_values().collect();
        let mut opened = Vec::new();
        for file in files {
            // The index is as untrusted as the rest: it names files beside itself, nothing else.
            if Path::new(&file).file_name() != Some(file.as_ref()) {
                return Err(Error::BadModel {
                    path: self.folder.path(index),
                    reason: format!("{file:?} is not the name of a file beside it"),
                });
            }
            opened.push(self.open(&self.file(&file))?);
        }
        Weights::new(opened, layout)
    }
}
