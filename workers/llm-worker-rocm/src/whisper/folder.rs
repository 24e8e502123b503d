//! A folder of Hugging Face's with a Whisper model, seen in GGUF's terms.

use super::config::WhisperConfig;
use super::names;
use crate::folder::{read_json, required_json, weight_files};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use worker::gguf::{give_back, map_file, Format, Gguf, TensorInfo, Weights};
use worker::{Error, Result};

/// The name in `config.json`.
pub(super) const ARCHITECTURE: &str = "WhisperForConditionalGeneration";

/// A checked folder.
pub(super) struct WhisperFolder {
    path: PathBuf,
    header: Gguf,
    maps: Vec<Mmap>,
    places: HashMap<String, Place>,
    pub(super) config: WhisperConfig,
    /// `generation_config.json`, or what stands in its place.
    pub(super) settings: Json,
    /// Whether it knows more languages than English.
    pub(super) multilingual: bool,
}

/// Where a tensor's data is.
struct Place {
    shard: usize,
    start: usize,
    bytes: usize,
}

impl WhisperFolder {
    /// Opens a folder and checks it.
    ///
    /// # Errors
    /// [`Error::Io`] if something cannot be read, [`Error::BadModel`] if it is damaged or calls for something that is
    /// not implemented.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let json = required_json(path, "config.json")?;
        let config = WhisperConfig::of_folder(&json).map_err(bad)?;
        // Early folders have in one file what later ones have in two.
        let settings = read_json(path, "generation_config.json")?.unwrap_or(json);
        let multilingual = match settings["is_multilingual"].as_bool() {
            Some(says) => says,
            // One token fewer makes the vocabulary that of English.
            None => settings["lang_to_id"].is_object() || config.vocabulary > 51_864,
        };
        let mut folder = Self {
            path: path.to_path_buf(),
            header: Gguf::from_parts([], []),
            maps: Vec::new(),
            places: HashMap::new(),
            config,
            settings,
            multilingual,
        };
        let mut table = Vec::new();
        for file in weight_files(path)? {
            let map = map_file(&file)?;
            folder
                .add(&map, &mut table)
                .map_err(|reason| Error::BadModel { path: file, reason })?;
            folder.maps.push(map);
        }
        folder.header = Gguf::from_parts([], table);
        Ok(folder)
    }

    /// Adds a shard's tensors. The library has checked every offset and size of the header.
    fn add(
        &mut self,
        map: &Mmap,
        table: &mut Vec<(String, TensorInfo)>,
    ) -> std::result::Result<(), String> {
        let tensors = SafeTensors::deserialize(map).map_err(|e| format!("damaged: {e}"))?;
        for (name, view) in tensors.iter() {
            // The output matrix is the table of tokens.
            if name == "proj_out.weight" {
                continue;
            }
            let own = names::of_folder(name)
                .ok_or_else(|| format!("tensor {name} has no place in a Whisper model"))?;
            let format = match view.dtype() {
                Dtype::F32 => Format::F32,
                Dtype::F16 => Format::F16,
                Dtype::BF16 => Format::BF16,
                other => {
                    return Err(format!(
                        "tensor {name} has dtype {other:?}; F32, F16 and BF16 are read"
                    ))
                }
            };
            if view.shape().contains(&0) || view.shape().is_empty() {
                return Err(format!("tensor {name} has no elements"));
            }
            let place = Place {
                shard: self.maps.len(),
                start: view.data().as_ptr() as usize - map.as_ptr() as usize,
                bytes: view.data().len(),
            };
            let info = TensorInfo {
                dims: view.shape().iter().rev().map(|&d| d as u64).collect(),
                format,
                offset: 0,
                bytes: place.bytes as u64,
            };
            if self.places.insert(own.clone(), place).is_some() {
                return Err(format!("tensor {name} appears twice"));
            }
            table.push((own, info));
        }
        Ok(())
    }
}

impl Weights for WhisperFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, _info: &TensorInfo) -> Cow<'_, [u8]> {
        let Some(place) = self.places.get(name) else {
            return Cow::Borrowed(&[]);
        };
        let data = &self.maps[place.shard][place.start..place.start + place.bytes];
        match place.start % 4 {
            0 => Cow::Borrowed(data),
            _ => Cow::Owned(data.to_vec()),
        }
    }

    fn give_back(&self, name: &str, _info: &TensorInfo) {
        if let Some(place) = self.places.get(name) {
            give_back(&self.maps[place.shard], place.start, place.bytes);
        }
    }
}
