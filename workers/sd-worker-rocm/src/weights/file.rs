//! A safetensors file, checked whole before a tensor is taken.
//!
//! A matrix of 8-bit floats may have a scale in a tensor of its own, `….scale_weight` or `….weight_scale` beside
//! `….weight`, as ComfyUI writes them; what is given is the product.

use super::bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

#[derive(Debug)]
struct Entry {
    dtype: DType,
    shape: Vec<usize>,
    /// Within the file.
    bytes: Range<usize>,
}

/// An open file.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    bytes: Bytes,
    entries: BTreeMap<String, Entry>,
    metadata: HashMap<String, String>,
}

impl SafetensorsFile {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// [`Error::BadModel`] for pickles, with how to convert them, for other formats, and for damaged files.
    pub fn open(path: &Path) -> Result<Self> {
        Self::new(Bytes::map(path)?, path)
    }

    /// The file of these bytes; `path` is for messages.
    ///
    /// # Errors
    /// Those of [`SafetensorsFile::open`].
    pub fn new(bytes: Bytes, path: &Path) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        if is_pickle(&bytes, path) {
            return Err(bad(pickle_advice(path)));
        }
        let damaged = |e| bad(format!("not a safetensors file, or damaged: {e}"));
        // Checks the header: every range lies within the file and has the size that dtype and shape want.
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        let data = header
            .checked_add(8)
            .ok_or_else(|| bad("the header's length is absurd".to_string()))?;
        let mut entries = BTreeMap::new();
        for (name, info) in metadata.tensors() {
            let Some(dtype) = dtype(info.dtype) else {
                return Err(bad(format!(
                    "tensor {name} has dtype {:?}, which is not implemented",
                    info.dtype
                )));
            };
            let (start, end) = info.data_offsets;
            let range = data.saturating_add(start)..data.saturating_add(end);
            let count = info
                .shape
                .iter()
                .try_fold(dtype.size_in_bytes(), |n, dim| n.checked_mul(*dim));
            if range.end > bytes.len() || count != end.checked_sub(start) {
                return Err(bad(format!("tensor {name} leaves the file")));
            }
            let entry = Entry {
                dtype,
                shape: info.shape.clone(),
                bytes: range,
            };
            entries.insert(name, entry);
        }
        Ok(Self {
            path: path.to_path_buf(),
            entries,
            metadata: metadata.metadata().clone().unwrap_or_default(),
            bytes,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the tensors; scales are none of their own.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.entries.keys().map(String::as_str);
        names.filter(|name| !is_scale(name))
    }

    /// Text that the file says about itself.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// Dtype and number of elements of a tensor.
    pub fn size(&self, name: &str) -> Option<(DType, usize)> {
        let entry = self.entries.get(name)?;
        Some((entry.dtype, entry.shape.iter().product()))
    }

    /// A tensor as it is stored; with a scale, the product in f32.
    ///
    /// # Errors
    /// If there is none of this name, or the device has no room.
    pub fn load(&self, name: &str, device: &Device) -> candle_core::Result<Tensor> {
        let Some(entry) = self.entries.get(name) else {
            candle_core::bail!("no tensor {name}")
        };
        let tensor = self.read(entry, device)?;
        match self.scale(name, entry) {
            None => Ok(tensor),
            Some(scale) if scale.shape.iter().product::<usize>() == 1 => {
                let scale = self.read(scale, &Device::Cpu)?.to_dtype(DType::F32)?;
                let scale = scale.flatten_all()?.get(0)?.to_scalar::<f32>()?;
                tensor.to_dtype(DType::F32)? * f64::from(scale)
            }
            Some(scale) => candle_core::bail!(
                "{name} has scales of shape {:?}; one for the whole matrix is implemented",
                scale.shape
            ),
        }
    }

    fn read(&self, entry: &Entry, device: &Device) -> candle_core::Result<Tensor> {
        let data = &self.bytes[entry.bytes.clone()];
        Tensor::from_raw_buffer(data, entry.dtype, &entry.shape, device)
    }

    /// The scale of a matrix of 8-bit floats.
    fn scale(&self, name: &str, entry: &Entry) -> Option<&Entry> {
        let layer = name.strip_suffix(".weight")?;
        let scales = SCALES.iter();
        scales
            .filter(|_| entry.dtype == DType::F8E4M3)
            .find_map(|kind| self.entries.get(&format!("{layer}{kind}")))
    }
}

/// What stands behind a layer's name for its matrix' scale.
const SCALES: [&str; 2] = [".scale_weight", ".weight_scale"];

/// Whether a tensor says how others are stored: the scale of a matrix, of its inputs (which are not quantized here), or
/// a mark.
fn is_scale(name: &str) -> bool {
    let marks = [".scale_input", ".input_scale", ".comfy_quant", "scaled_fp8"];
    SCALES.iter().chain(&marks).any(|mark| name.ends_with(mark))
}

fn dtype(dtype: safetensors::Dtype) -> Option<DType> {
    use safetensors::Dtype as S;
    Some(match dtype {
        S::F16 => DType::F16,
        S::BF16 => DType::BF16,
        S::F32 => DType::F32,
        S::F64 => DType::F64,
        S::F8_E4M3 => DType::F8E4M3,
        S::U8 | S::BOOL => DType::U8,
        S::I16 => DType::I16,
        S::I32 => DType::I32,
        S::U32 => DType::U32,
        S::I64 => DType::I64,
        _ => return None,
    })
}

/// Zip archives and bare pickles, by their first bytes (safetensors begins with the header's length, whose eighth byte
/// is 0), and by name.
fn is_pickle(bytes: &[u8], path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    bytes.starts_with(b"PK\x03\x04")
        || (bytes.first() == Some(&0x80)
            && bytes.get(1).is_some_and(|v| *v <= 5)
            && bytes.get(7) != Some(&0))
        || ["ckpt", "pt", "pth", "bin", "pkl"].contains(&extension)
}

/// Why pickles are refused, and the way out.
pub fn pickle_advice(path: &Path) -> String {
    let mut target = PathBuf::from(path.file_name().unwrap_or_default());
    target.set_extension("safetensors");
    format!(
        "this is a pickle, a program that PyTorch runs when it opens the file, and is not read here. Convert it once where you trust it: \
         python3 -c \"import torch, safetensors.torch as s; d = torch.load('{}', map_location='cpu', weights_only=True); d = d.get('state_dict', d); \
         s.save_file({{k: v.clone().contiguous() for k, v in d.items() if torch.is_tensor(v)}}, '{}')\"",
        path.display(),
        target.display()
    )
}
