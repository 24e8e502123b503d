//! A safetensors file, checked whole before a tensor is taken.

use super::bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensors;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// How a tensor's elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// As numbers that candle has.
    Plain(DType),
    /// As 8-bit floats.
    Float8(Float8),
    /// As powers of two, which scales may be: the exponent plus 127 in 8 bits.
    Exponents,
    /// As something else; its name.
    Other(safetensors::Dtype),
}

/// A kind of 8-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float8 {
    /// 4 bits of exponent and 3 of mantissa, without infinities: up to 448.
    E4m3,
    /// 5 bits of exponent and 2 of mantissa: the upper half of binary16.
    E5m2,
}

#[derive(Debug)]
struct Entry {
    stored: Stored,
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
    /// The file of these bytes; `path` is for messages.
    ///
    /// # Errors
    /// [`Error::BadModel`] for pickles, with how to convert them, for other formats, and for damaged files.
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
            let (start, end) = info.data_offsets;
            let range = data.saturating_add(start)..data.saturating_add(end);
            let bits = info
                .shape
                .iter()
                .try_fold(info.dtype.bitsize(), |n, dim| n.checked_mul(*dim));
            let fits = bits.is_some_and(|bits| bits.is_multiple_of(8))
                && bits.map(|bits| bits / 8) == end.checked_sub(start);
            if range.end > bytes.len() || !fits {
                return Err(bad(format!("tensor {name} leaves the file")));
            }
            let entry = Entry {
                stored: stored(info.dtype),
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

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Text that the file says about itself.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// How a tensor is stored.
    pub fn stored(&self, name: &str) -> Option<Stored> {
        self.entries.get(name).map(|entry| entry.stored)
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// Rows and columns of a tensor as a matrix, whose rows are all dimensions but the first.
    pub fn rows_and_columns(&self, name: &str) -> Option<[usize; 2]> {
        let shape = self.shape(name)?;
        let rows = shape.first().copied().unwrap_or(1);
        // Without rows it does not matter how long they are.
        let columns = shape
            .iter()
            .skip(1)
            .fold(1usize, |n, dim| n.saturating_mul(*dim));
        Some([rows, columns])
    }

    /// Bytes of a tensor.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let entry = self.entries.get(name)?;
        Some(&self.bytes[entry.bytes.clone()])
    }

    /// Dtype and number of elements of a tensor; [`DType::F8E4M3`] stands for both kinds of 8-bit floats.
    pub fn size(&self, name: &str) -> Option<(DType, usize)> {
        let entry = self.entries.get(name)?;
        let dtype = match entry.stored {
            Stored::Plain(dtype) => dtype,
            Stored::Float8(_) => DType::F8E4M3,
            Stored::Exponents | Stored::Other(_) => DType::U8,
        };
        Some((dtype, entry.shape.iter().product()))
    }

    /// A tensor as it is stored.
    ///
    /// # Errors
    /// If there is none of this name that candle has, or the device has no room.
    pub fn load(&self, name: &str, device: &Device) -> candle_core::Result<Tensor> {
        let Some(entry) = self.entries.get(name) else {
            candle_core::bail!("no tensor {name}")
        };
        let dtype = match entry.stored {
            Stored::Plain(dtype) => dtype,
            stored => candle_core::bail!("{name} is stored as {stored:?}"),
        };
        let data = &self.bytes[entry.bytes.clone()];
        Tensor::from_raw_buffer(data, dtype, &entry.shape, device)
    }

    /// The numbers of a tensor of floating-point numbers, such as scales.
    ///
    /// # Errors
    /// Says what it is instead.
    pub fn numbers(&self, name: &str) -> std::result::Result<Vec<f32>, String> {
        let (Some(bytes), Some(stored)) = (self.bytes(name), self.stored(name)) else {
            return Err(format!("there is no tensor {name}"));
        };
        match stored {
            Stored::Float8(kind) => Ok(bytes.iter().map(|bits| kind.value(*bits)).collect()),
            Stored::Exponents => Ok(bytes.iter().map(|bits| power_of_two(*bits)).collect()),
            Stored::Plain(dtype) if dtype.is_float() => {
                let numbers = self.load(name, &Device::Cpu).and_then(|numbers| {
                    numbers
                        .to_dtype(DType::F32)?
                        .flatten_all()?
                        .to_vec1::<f32>()
                });
                numbers.map_err(|e| format!("{name}: {e}"))
            }
            stored => Err(format!("{name} is stored as {stored:?}, not as floats")),
        }
    }
}

impl Float8 {
    /// The number that these bits stand for.
    pub const fn value(self, bits: u8) -> f32 {
        let (exponent, mantissa, bias, digits) = match self {
            Self::E4m3 => (bits >> 3 & 15, bits & 7, 7, 3),
            Self::E5m2 => (bits >> 2 & 31, bits & 3, 15, 2),
        };
        let magnitude = match (self, exponent, mantissa) {
            (Self::E4m3, 15, 7) => f32::NAN,
            (Self::E5m2, 31, 0) => f32::INFINITY,
            (Self::E5m2, 31, _) => f32::NAN,
            // Subnormal: a multiple of the smallest.
            (_, 0, _) => mantissa as f32 * f32::from_bits((128 - bias - digits) << 23),
            _ => {
                let exponent = exponent as u32 + 127 - bias;
                f32::from_bits(exponent << 23 | (mantissa as u32) << (23 - digits))
            }
        };
        if bits < 128 {
            magnitude
        } else {
            -magnitude
        }
    }
}

/// `2^(bits - 127)`; 255 is NaN.
pub fn power_of_two(bits: u8) -> f32 {
    match bits {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(bits) << 23),
    }
}

fn stored(dtype: safetensors::Dtype) -> Stored {
    use safetensors::Dtype as S;
    Stored::Plain(match dtype {
        S::F8_E4M3 => return Stored::Float8(Float8::E4m3),
        S::F8_E5M2 => return Stored::Float8(Float8::E5m2),
        S::F8_E8M0 => return Stored::Exponents,
        S::F16 => DType::F16,
        S::BF16 => DType::BF16,
        S::F32 => DType::F32,
        S::F64 => DType::F64,
        S::U8 | S::BOOL => DType::U8,
        S::I16 => DType::I16,
        S::I32 => DType::I32,
        S::U32 => DType::U32,
        S::I64 => DType::I64,
        other => return Stored::Other(other),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Against candle's e4m3 and binary16's upper half.
    #[test]
    fn eight_bits_stand_for_the_right_numbers() {
        for bits in 0..=255u8 {
            let one = |data: &[u8], dtype| {
                let tensor = Tensor::from_raw_buffer(data, dtype, &[1], &Device::Cpu).unwrap();
                let number = tensor.to_dtype(DType::F32).unwrap();
                number.to_vec1::<f32>().unwrap()[0]
            };
            for (kind, expected) in [
                (Float8::E4m3, one(&[bits], DType::F8E4M3)),
                (Float8::E5m2, one(&[0, bits], DType::F16)),
            ] {
                let value = kind.value(bits);
                assert!(
                    value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan(),
                    "{kind:?} {bits:#x}: {value} {expected}"
                );
            }
        }
        assert_eq!(
            [0, 126, 127, 128].map(power_of_two),
            [2f32.powi(-127), 0.5, 1.0, 2.0]
        );
        assert!(power_of_two(255).is_nan());
    }
}
