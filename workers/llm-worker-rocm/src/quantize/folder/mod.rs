//! A folder of safetensors at another precision, as other programs read it: matrices that are multiplied with in 8-bit
//! or 4-bit floats, everything else as it was.

mod output;
mod scheme;

pub use scheme::Scheme;

use super::Summary;
use crate::folder::{required_json, weight_files};
use crate::hf::Roles;
use memmap2::Mmap;
use output::{Layout, NewFolder, Stored};
use rayon::prelude::*;
use safetensors::{Dtype, SafeTensors};
use scheme::Part;
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use worker::gguf::{give_back, map_file};
use worker::progress::byte_bar;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// What names another program's quantization in a configuration.
const OTHER_CONFIGS: [&str; 2] = ["quantization_config", "compression_config"];
/// Bytes of a tensor that stays as it is that are copied at a time.
const COPIED_BYTES: usize = 16 << 20;

/// A folder to be written: what each tensor was and becomes.
pub struct FolderConversion {
    source: PathBuf,
    scheme: Scheme,
    maps: Vec<Mmap>,
    tensors: Vec<Tensor>,
}

/// A tensor of the source.
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    map: usize,
    bytes: Range<usize>,
    is_quantized: bool,
}

impl Tensor {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The module that it is the weight of.
    fn module(&self) -> &str {
        self.name.rsplit_once('.').map_or("", |(module, _)| module)
    }

    /// What becomes of it.
    fn stored(&self, scheme: Scheme) -> Vec<Stored> {
        if !self.is_quantized {
            return vec![Stored {
                name: self.name.clone(),
                dtype: self.dtype,
                shape: self.shape.clone(),
                bytes: self.bytes.len(),
            }];
        }
        let parts = scheme.parts(self.shape[0], self.shape[1]);
        let named = |part: Part| Stored {
            name: format!("{}.{}", self.module(), part.name),
            dtype: part.dtype,
            shape: part.shape.to_vec(),
            bytes: part.bytes(),
        };
        parts.into_iter().map(named).collect()
    }
}

impl FolderConversion {
    /// Decides on every tensor of a model folder; reads no data. Matrices whose name contains one of `kept` stay as they
    /// are.
    ///
    /// # Errors
    /// [`Error::Usage`] for a model that is no folder or quantized already, [`Error::BadModel`] or [`Error::Io`] if it
    /// cannot be read or has nothing to quantize.
    pub fn new(source: &Path, scheme: Scheme, kept: &[String]) -> Result<Self> {
        if !source.is_dir() {
            return Err(Error::Usage(format!(
                "{}: {} is made of a folder of safetensors; a GGUF file lacks the names and the configuration that other programs need",
                source.display(),
                scheme.name()
            )));
        }
        let config = required_json(source, "config.json")?;
        if let Some(by) = quantized_by(&config) {
            return Err(Error::Usage(format!(
                "{}: the model is quantized already ({by}); take the original",
                source.display()
            )));
        }
        let roles = Roles::open(source)?;
        let mut names = HashSet::new();
        let mut conversion = Self {
            source: source.to_path_buf(),
            scheme,
            maps: Vec::new(),
            tensors: Vec::new(),
        };
        for path in weight_files(source)? {
            let map = map_file(&path)?;
            conversion
                .add(&map, &roles, kept, &mut names)
                .map_err(|reason| Error::BadModel { path, reason })?;
            conversion.maps.push(map);
        }
        let places = |tensor: &Tensor| (tensor.map, tensor.bytes.start);
        conversion.tensors.sort_by_key(places);
        if !conversion.tensors.iter().any(|tensor| tensor.is_quantized) {
            return Err(Error::BadModel {
                path: source.to_path_buf(),
                reason: format!("no matrix of it becomes {}", scheme.name()),
            });
        }
        Ok(conversion)
    }

    /// Adds a file's tensors. The library has checked every offset and size of the header.
    fn add(
        &mut self,
        map: &Mmap,
        roles: &Roles,
        kept: &[String],
        names: &mut HashSet<String>,
    ) -> std::result::Result<(), String> {
        let tensors = SafeTensors::deserialize(map).map_err(|e| format!("damaged: {e}"))?;
        for (name, view) in tensors.iter() {
            if !names.insert(name.to_string()) {
                return Err(format!("tensor {name} appears twice"));
            }
            let start = view.data().as_ptr() as usize - map.as_ptr() as usize;
            let shape = view.shape().to_vec();
            let floats = matches!(view.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
            let is_quantized = floats
                && roles.is_multiplied(name, &shape)
                && self.scheme.takes(&shape)
                && !kept.iter().any(|pattern| name.contains(pattern));
            self.tensors.push(Tensor {
                name: name.to_string(),
                dtype: view.dtype(),
                shape,
                map: self.maps.len(),
                bytes: start..start + view.data().len(),
                is_quantized,
            });
        }
        Ok(())
    }

    /// Sizes before and after, scales included.
    pub fn summary(&self) -> Summary {
        let (mut source_bytes, mut bytes, mut elements) = (0, 0, 0);
        let mut tensors = BTreeMap::new();
        for tensor in &self.tensors {
            source_bytes += tensor.bytes.len() as u64;
            elements += tensor.elements() as u64;
            let stored = tensor.stored(self.scheme);
            bytes += stored.iter().map(|s| s.bytes as u64).sum::<u64>();
            let name = match tensor.is_quantized {
                true => self.scheme.name(),
                false => kept_name(tensor.dtype),
            };
            *tensors.entry(name).or_default() += 1;
        }
        Summary {
            source_bytes,
            bytes,
            bits_per_weight: bytes as f64 * 8.0 / elements.max(1) as f64,
            tensors,
        }
    }

    /// The modules with a matrix that stays as it is, and the output matrix, which need not be in the file.
    fn modules_left(&self) -> Vec<&str> {
        const OUTPUT: &str = "lm_head";
        let mut left = vec![OUTPUT];
        for tensor in &self.tensors {
            let module = tensor.module();
            let is_matrix = !tensor.is_quantized && tensor.shape.len() > 1;
            if is_matrix && !module.is_empty() && left.last() != Some(&module) {
                left.push(module);
            }
        }
        left.sort_unstable();
        left.dedup();
        left
    }

    /// Writes the folder, with a progress bar on a terminal. It appears under its name when it is complete; one that is
    /// there is replaced if `force` says so and it is a model's.
    ///
    /// # Errors
    /// [`Error::Io`] if writing fails, [`Error::BadModel`] for weights that are not finite, [`Error::Usage`] when
    /// interrupted or if OUTPUT must not be replaced.
    pub fn write(&self, output: &Path, force: bool, interrupt: &Interrupt) -> Result<()> {
        let folder = NewFolder::create(output, force)?;
        folder.copy_others(&self.source)?;
        let own = self.scheme.config(&self.modules_left());
        folder.write_config(&self.source, &own)?;
        let stored: Vec<Vec<Stored>> = (self.tensors.iter())
            .map(|tensor| tensor.stored(self.scheme))
            .collect();
        let layout = Layout::of(&stored);
        let bar = byte_bar("quantizing", self.summary().source_bytes);
        for (shard, tensors) in layout.shards().enumerate() {
            let file = folder.file(&layout, shard)?;
            for i in tensors {
                let tensor = &self.tensors[i];
                bar.set_message(tensor.name.clone());
                let places = layout.places(i);
                let put = |part: usize, at: usize, bytes: &[u8]| {
                    if interrupt.is_raised() {
                        return Err(Error::Usage(format!(
                            "interrupted; {} was not written",
                            output.display()
                        )));
                    }
                    file.write(places[part] + at, bytes)
                };
                match tensor.is_quantized {
                    true => self.quantize(tensor, &put, &|bytes| bar.inc(bytes as u64))?,
                    false => self.copy(tensor, &put, &|bytes| bar.inc(bytes as u64))?,
                }
                let (start, bytes) = (tensor.bytes.start, tensor.bytes.len());
                give_back(&self.maps[tensor.map], start, bytes);
            }
            file.finish()?;
        }
        folder.write_index(&layout, &stored)?;
        bar.finish_and_clear();
        folder.keep()
    }

    fn data(&self, tensor: &Tensor) -> &[u8] {
        &self.maps[tensor.map][tensor.bytes.clone()]
    }

    fn copy(&self, tensor: &Tensor, put: Put, done: Done) -> Result<()> {
        for (i, piece) in self.data(tensor).chunks(COPIED_BYTES).enumerate() {
            put(0, i * COPIED_BYTES, piece)?;
            done(piece.len());
        }
        Ok(())
    }

    /// Rows that share scales at a time, on all cores.
    fn quantize(&self, tensor: &Tensor, put: Put, done: Done) -> Result<()> {
        let (rows, columns) = (tensor.shape[0], tensor.shape[1]);
        let row_bytes = tensor.bytes.len() / rows;
        let step = self.scheme.rows();
        let pieces = self.data(tensor).par_chunks(step * row_bytes).enumerate();
        pieces.try_for_each(|(i, piece)| {
            let values = floats(piece, tensor.dtype);
            if !values.iter().all(|value| value.is_finite()) {
                return Err(Error::BadModel {
                    path: self.source.clone(),
                    reason: format!("tensor {} has weights that are not finite", tensor.name),
                });
            }
            let parts = self.scheme.encode(&values, columns);
            // All pieces but the last are of equal size.
            let whole = self.scheme.parts(step, columns);
            for (part, bytes) in parts.iter().enumerate() {
                put(part, i * whole[part].bytes(), bytes)?;
            }
            done(piece.len());
            Ok(())
        })
    }
}

/// What a summary calls a tensor that stays as it is.
fn kept_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::BF16 => "BF16",
        _ => "others",
    }
}

/// Writes bytes at a place within a part of a tensor.
type Put<'a> = &'a (dyn Fn(usize, usize, &[u8]) -> Result<()> + Sync);
/// Told how many bytes of the source are done.
type Done<'a> = &'a (dyn Fn(usize) + Sync);

/// The method by which a model is quantized already.
fn quantized_by(config: &Json) -> Option<String> {
    let homes = [config, &config["text_config"]];
    let found = homes
        .iter()
        .flat_map(|home| OTHER_CONFIGS.map(|key| &home[key]));
    let found = found.filter_map(Json::as_object).next();
    let method = |config: &Map<String, Json>| match config.get("quant_method") {
        Some(Json::String(method)) => method.clone(),
        _ => "by a method without a name".to_string(),
    };
    found.map(method)
}

fn floats(data: &[u8], dtype: Dtype) -> Vec<f32> {
    let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        Dtype::F16 => halves()
            .map(|b| half::f16::from_le_bytes(b).to_f32())
            .collect(),
        Dtype::BF16 => halves()
            .map(|b| half::bf16::from_le_bytes(b).to_f32())
            .collect(),
        _ => data
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
    }
}
