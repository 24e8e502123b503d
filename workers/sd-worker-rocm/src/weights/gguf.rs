//! A GGUF file, whose matrices may stay quantized.

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use std::borrow::Cow;
use std::path::Path;
use worker::gguf::{load, MappedGguf, TensorInfo, Weights};
use worker::{Error, Result};

/// An open file, or all parts of one that is split.
#[derive(Debug)]
pub struct GgufFile(MappedGguf);

impl GgufFile {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// [`Error::BadModel`] for a damaged or hostile one, and for types that candle does not compute with.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedGguf::open(path)?;
        for (name, info) in file.header().tensors() {
            info.dtype().map_err(|unsupported| Error::BadModel {
                path: path.to_path_buf(),
                reason: format!("tensor {name}: {unsupported}"),
            })?;
        }
        Ok(Self(file))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.0.header().tensor(name)
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.header().tensors().map(|(name, _)| name)
    }

    /// Shape of a tensor, outermost first.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let dims = self.info(name)?.dims.iter().rev();
        Some(dims.map(|dim| *dim as usize).collect())
    }

    /// Dtype of the numbers and their count; quantized ones count as the 16-bit numbers that they stand for.
    pub fn size(&self, name: &str) -> Option<(DType, usize)> {
        let info = self.info(name)?;
        let dtype = match info.dtype().ok()? {
            GgmlDType::F32 => DType::F32,
            GgmlDType::F16 => DType::F16,
            _ => DType::BF16,
        };
        Some((dtype, info.elem_count() as usize))
    }

    /// How a tensor is quantized, if it is.
    pub fn quantization(&self, name: &str) -> Option<GgmlDType> {
        let dtype = self.info(name)?.dtype().ok()?;
        let plain = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        (!plain).then_some(dtype)
    }

    /// A tensor's blocks.
    ///
    /// # Errors
    /// If there is none of this name.
    pub fn bytes(&self, name: &str) -> candle_core::Result<Cow<'_, [u8]>> {
        match self.info(name) {
            Some(info) => Ok(self.0.bytes(name, info)),
            None => candle_core::bail!("no tensor {name}"),
        }
    }

    /// A tensor as floating-point numbers.
    ///
    /// # Errors
    /// If there is none of this name, or the device has no room.
    pub fn load(&self, name: &str, device: &Device) -> candle_core::Result<Tensor> {
        let tensor = load(&self.0, name, device).map_err(candle_core::Error::wrap)?;
        tensor.dequantize(device)
    }
}
