//! A model at another precision: every matrix read a few rows at a time, quantized on all cores, and written as a GGUF
//! file ([`Conversion`]) or as a folder of safetensors ([`FolderConversion`]).

mod folder;
mod natural;
mod plan;

pub use folder::{FolderConversion, Scheme};
pub use natural::NaturalOrder;
pub(crate) use plan::is_matrix;
pub use plan::{Override, Plan, Target};

use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use worker::gguf::{self, Format, GgufWriter, NewTensor, Value, Weights};
use worker::progress::byte_bar;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Elements that one core quantizes at a time, at least one row: enough work to outweigh handing it out.
const PIECE_ELEMENTS: usize = 1 << 18;
/// Version of the block formats, by GGUF's definition.
const QUANTIZATION_VERSION: u32 = 2;

/// A file to be written: what each tensor was and becomes.
pub struct Conversion<'a> {
    source: &'a dyn Weights,
    tensors: Vec<(NewTensor, Format)>,
    metadata: Vec<(String, Value)>,
}

/// Sizes of a conversion.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Summary {
    /// Bytes of tensor data before.
    pub source_bytes: u64,
    /// Bytes of tensor data after.
    pub bytes: u64,
    /// Bits per weight after, over all tensors.
    pub bits_per_weight: f64,
    /// Tensors of each type after.
    pub tensors: BTreeMap<&'static str, usize>,
}

impl<'a> Conversion<'a> {
    /// Decides on every tensor of a file; reads no data.
    ///
    /// # Errors
    /// [`Error::BadModel`] for a tensor of a type that candle cannot read.
    pub fn new(source: &'a dyn Weights, plan: &Plan) -> Result<Self> {
        let gguf = source.header();
        if gguf.get("tokenizer.ggml.tokens").is_some() && gguf.get("tokenizer.ggml.model").is_none()
        {
            return Err(Error::BadModel {
                path: source.path().to_path_buf(),
                reason: "its tokenizer cannot be described in a GGUF file; the model runs from its folder only".to_string(),
            });
        }
        let mut tensors: Vec<_> = gguf.tensors().collect();
        tensors.sort_by_key(|(name, info)| (info.offset, *name));
        let blocks = gguf
            .get_str("general.architecture")
            .ok()
            .flatten()
            .and_then(|arch| gguf.get_u32(&format!("{arch}.block_count")).ok().flatten())
            .unwrap_or(0);
        let tensors = tensors
            .into_iter()
            .map(|(name, info)| {
                info.dtype().map_err(|unsupported| Error::BadModel {
                    path: source.path().to_path_buf(),
                    reason: format!("tensor {name}: {unsupported}"),
                })?;
                let new = NewTensor {
                    name: name.to_string(),
                    dims: info.dims.clone(),
                    format: plan.format_of(name, &info.dims, blocks),
                };
                Ok((new, info.format))
            })
            .collect::<Result<_>>()?;

        let mut metadata: BTreeMap<String, Value> = gguf
            .metadata()
            .filter(|(key, _)| *key != "general.alignment")
            .map(|(key, value)| (key.to_string(), value.clone()))
            .collect();
        match plan.target().file_type() {
            Some(code) => metadata.insert("general.file_type".to_string(), Value::U32(code)),
            None => metadata.remove("general.file_type"),
        };
        metadata.insert(
            "general.quantization_version".to_string(),
            Value::U32(QUANTIZATION_VERSION),
        );
        Ok(Self {
            source,
            tensors,
            metadata: metadata.into_iter().collect(),
        })
    }

    /// Sizes before and after.
    pub fn summary(&self) -> Summary {
        let (mut source_bytes, mut bytes, mut elements) = (0, 0, 0);
        let mut tensors = BTreeMap::new();
        for (new, old) in &self.tensors {
            let count: u64 = new.dims.iter().product();
            source_bytes += bytes_of(count, *old);
            bytes += bytes_of(count, new.format);
            elements += count;
            *tensors.entry(new.format.name()).or_default() += 1;
        }
        Summary {
            source_bytes,
            bytes,
            bits_per_weight: bytes as f64 * 8.0 / elements.max(1) as f64,
            tensors,
        }
    }

    /// Writes the file, with a progress bar on a terminal. It appears under its name when it is complete.
    ///
    /// # Errors
    /// [`Error::Io`] if writing fails, [`Error::BadModel`] for weights that are not finite, [`Error::Usage`] when
    /// interrupted.
    pub fn write(&self, output: &Path, interrupt: &Interrupt) -> Result<()> {
        let io = |source| Error::Io {
            path: output.to_path_buf(),
            source,
        };
        let partial = PartialFile::create(output).map_err(io)?;
        let tensors: Vec<NewTensor> = self.tensors.iter().map(|(new, _)| new.clone()).collect();
        let out = BufWriter::with_capacity(1 << 20, &partial.file);
        let mut writer = GgufWriter::new(out, &self.metadata, &tensors).map_err(io)?;
        let bar = byte_bar("quantizing", self.summary().source_bytes);
        for (new, old) in &self.tensors {
            bar.set_message(new.name.clone());
            let info = self
                .source
                .header()
                .tensor(&new.name)
                .expect("taken from the table");
            let data = self.source.bytes(&new.name, info);
            self.source.intact()?;
            let row = new.dims[0] as usize;
            let row_bytes = row / old.block_size() * old.type_size();
            let piece_bytes = (PIECE_ELEMENTS / row).max(1) * row_bytes;
            // As many pieces at once as there are cores, so memory stays bounded whatever the tensor.
            for group in data.chunks(piece_bytes * rayon::current_num_threads()) {
                if interrupt.is_raised() {
                    return Err(Error::Usage(format!(
                        "interrupted; {} was not written",
                        output.display()
                    )));
                }
                let pieces: Vec<Vec<u8>> = group
                    .par_chunks(piece_bytes)
                    .map(|piece| self.convert(new, *old, row, piece))
                    .collect::<Result<_>>()?;
                for piece in &pieces {
                    writer.write(piece).map_err(io)?;
                }
                bar.inc(group.len() as u64);
            }
            self.source.give_back(&new.name, info);
        }
        writer.finish().map_err(io)?;
        bar.finish_and_clear();
        partial.keep().map_err(io)
    }

    /// Some rows of a tensor in its new type.
    fn convert(&self, new: &NewTensor, old: Format, row: usize, data: &[u8]) -> Result<Vec<u8>> {
        if new.format == old {
            return Ok(data.to_vec());
        }
        let dtype = |format| {
            gguf::dtype(format).map_err(|unsupported| Error::BadModel {
                path: self.source.path().to_path_buf(),
                reason: format!("tensor {}: {unsupported}", new.name),
            })
        };
        let values =
            dequantize(data, dtype(old)?, row).map_err(Error::candle("reading weights"))?;
        if !all_finite(&values).map_err(Error::candle("reading weights"))? {
            return Err(Error::BadModel {
                path: self.source.path().to_path_buf(),
                reason: format!("tensor {} has weights that are not finite", new.name),
            });
        }
        QTensor::quantize(&values, dtype(new.format)?)
            .and_then(|quantized| Ok(quantized.data()?.into_owned()))
            .map_err(Error::candle("quantizing"))
    }
}

/// Size of whole blocks.
fn bytes_of(elements: u64, format: Format) -> u64 {
    elements / format.block_size() as u64 * format.type_size() as u64
}

/// Blocks of whole rows as an f32 tensor `[rows, row]`.
fn dequantize(data: &[u8], dtype: GgmlDType, row: usize) -> candle_core::Result<Tensor> {
    let rows = data.len() / (row / dtype.block_size() * dtype.type_size());
    let storage = QStorage::from_data(Cow::Borrowed(data), &Device::Cpu, dtype)?;
    QTensor::new(storage, (rows, row))?.dequantize(&Device::Cpu)
}

fn all_finite(values: &Tensor) -> candle_core::Result<bool> {
    // The sum of absolute values is finite only if all are; only a sum that overflows needs a closer look.
    if values.abs()?.sum_all()?.to_scalar::<f32>()?.is_finite() {
        return Ok(true);
    }
    let values = values.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.iter().all(|v| v.is_finite()))
}

/// A file beside its final place, gone unless kept.
struct PartialFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
}

impl PartialFile {
    fn create(target: &Path) -> std::io::Result<Self> {
        let mut path = target.as_os_str().to_owned();
        path.push(format!(".{}.partial", std::process::id()));
        let path = PathBuf::from(path);
        let file = File::create_new(&path)?;
        Ok(Self {
            file,
            path,
            target: target.to_path_buf(),
        })
    }

    fn keep(self) -> std::io::Result<()> {
        (&self.file).flush()?;
        self.file.sync_all()?;
        std::fs::rename(&self.path, &self.target)
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After `keep` there is nothing under this name; a file that cannot be removed is named after its purpose.
        let _ = std::fs::remove_file(&self.path);
    }
}
