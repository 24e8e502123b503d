//! Textual inversion: words that stand for learnt vectors.

use crate::weights::Weights;
use candle_core::{DType, Device, Tensor};
use std::path::{Path, PathBuf};
use worker::fault::of_file;
use worker::{Error, Result};

/// A word and its vectors.
#[derive(Debug, Clone)]
pub struct Concept {
    /// The word: the file's name without extension.
    pub word: String,
    /// `(vectors, width)` for each text tower that the file speaks to; widths tell which.
    pub vectors: Vec<Tensor>,
}

impl Concept {
    /// Reads a file: one tensor of one or more vectors (under any name), or `clip_l` and `clip_g` for SDXL.
    ///
    /// # Errors
    /// For pickles (`.pt`, `.bin`), which are refused with how to convert them, and for files that hold something else.
    pub fn open(path: &Path) -> Result<Self> {
        let bad = |reason: &str| Error::BadModel {
            path: path.to_path_buf(),
            reason: format!(
                "{reason}; a textual inversion has one tensor of vectors, or clip_l and clip_g"
            ),
        };
        let weights = Weights::open(path)?;
        let names: Vec<&str> = weights.names().collect();
        if names.is_empty() || names.len() > 2 {
            return Err(bad(&format!("there are {} tensors", names.len())));
        }
        let word = path.file_stem().and_then(|stem| stem.to_str());
        let word = word.ok_or_else(|| bad("the file's name is not valid UTF-8"))?;
        let vectors = names.iter().map(|name| {
            let tensor = weights.load(name, DType::F32, &Device::Cpu)?;
            let tensor = match tensor.rank() {
                1 => tensor.unsqueeze(0),
                2 => Ok(tensor),
                _ => return Err(bad("one of its tensors is not a list of vectors")),
            };
            tensor.map_err(of_file("reading a textual inversion", path))
        });
        Ok(Self {
            word: word.to_string(),
            vectors: vectors.collect::<Result<_>>()?,
        })
    }

    /// All concepts of files, and of the safetensors files in folders.
    ///
    /// # Errors
    /// Those of [`Concept::open`], and if a path cannot be read.
    pub fn open_all(paths: &[PathBuf]) -> Result<Vec<Self>> {
        let mut concepts = Vec::new();
        for path in paths {
            if !path.is_dir() {
                concepts.push(Self::open(path)?);
                continue;
            }
            let entries = std::fs::read_dir(path).map_err(|source| Error::Io {
                path: path.clone(),
                source,
            })?;
            let mut files: Vec<PathBuf> = entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|file| file.extension().is_some_and(|e| e == "safetensors"))
                .collect();
            files.sort();
            for file in files {
                concepts.push(Self::open(&file)?);
            }
        }
        Ok(concepts)
    }

    /// The vectors for a tower of this width.
    pub fn for_width(&self, width: usize) -> Option<&Tensor> {
        self.vectors
            .iter()
            .find(|vectors| vectors.dims().last() == Some(&width))
    }
}
