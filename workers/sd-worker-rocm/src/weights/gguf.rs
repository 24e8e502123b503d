//! A GGUF file, whose matrices may stay quantized.

use super::bytes::Bytes;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Tensor};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use worker::gguf::{load, Array, Gguf, MappedGguf, TensorInfo, Value, Weights};
use worker::{Error, Result};

/// Key of the shape of a tensor that is stored with another: quantized blocks need rows that they divide, which kernels
/// of convolutions have not.
const SHAPE: &str = "comfy.gguf.orig_shape.";

/// An open file, or all parts of one that is split.
#[derive(Debug)]
pub struct GgufFile {
    weights: Source,
    /// Shapes of tensors that are stored with others.
    shapes: HashMap<String, Vec<usize>>,
}

#[derive(Debug)]
enum Source {
    Mapped(MappedGguf),
    Static(StaticGguf),
}

/// A file that is part of the program.
#[derive(Debug)]
struct StaticGguf {
    header: Gguf,
    bytes: &'static [u8],
    path: PathBuf,
}

impl Weights for StaticGguf {
    fn path(&self) -> &Path {
        &self.path
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, _: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        // The header's check put the whole range into the file.
        let start = (self.header.data_offset + info.offset) as usize;
        let blocks = &self.bytes[start..start + info.bytes as usize];
        // The program's bytes lie anywhere; no type of GGUF needs more than 4.
        match blocks.as_ptr().align_offset(4) {
            0 => Cow::Borrowed(blocks),
            _ => Cow::Owned(blocks.to_vec()),
        }
    }

    fn give_back(&self, _: &str, _: &TensorInfo) {}
}

impl GgufFile {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// [`Error::BadModel`] for a damaged or hostile one, and for types that candle does not compute with.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(Source::Mapped(MappedGguf::open(path)?))
    }

    /// The same of bytes that are at hand, `path` for messages.
    ///
    /// # Errors
    /// Those of [`GgufFile::open`].
    pub fn new(bytes: Bytes, path: &Path) -> Result<Self> {
        match bytes {
            Bytes::Mapped(_) => Self::open(path),
            Bytes::Static(bytes) => {
                let header = Gguf::read(Cursor::new(bytes)).map_err(|e| Error::BadModel {
                    path: path.to_path_buf(),
                    reason: e.to_string(),
                })?;
                let path = path.to_path_buf();
                Self::of(Source::Static(StaticGguf {
                    header,
                    bytes,
                    path,
                }))
            }
        }
    }

    fn of(weights: Source) -> Result<Self> {
        let mut file = Self {
            weights,
            shapes: HashMap::new(),
        };
        let mut shapes = HashMap::new();
        for (name, info) in file.header().tensors() {
            let bad = |reason: String| Error::BadModel {
                path: file.path().to_path_buf(),
                reason: format!("tensor {name}: {reason}"),
            };
            info.dtype().map_err(|e| bad(e.to_string()))?;
            if let Some(value) = file.header().get(&format!("{SHAPE}{name}")) {
                let shape = shape_of(value, info.elem_count())
                    .ok_or_else(|| bad(format!("{SHAPE}{name} is no shape of its numbers")))?;
                shapes.insert(name.to_string(), shape);
            }
        }
        file.shapes = shapes;
        Ok(file)
    }

    fn weights(&self) -> &dyn Weights {
        match &self.weights {
            Source::Mapped(file) => file,
            Source::Static(file) => file,
        }
    }

    fn header(&self) -> &Gguf {
        self.weights().header()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.weights().path()
    }

    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.header().tensor(name)
    }

    /// Names of the tensors.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header().tensors().map(|(name, _)| name)
    }

    /// Shape of a tensor, outermost first.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        if let Some(shape) = self.shapes.get(name) {
            return Some(shape.clone());
        }
        let dims = self.info(name)?.dims.iter().rev();
        Some(dims.map(|dim| *dim as usize).collect())
    }

    /// Dtype of the numbers and their count; quantized ones count as the 16-bit numbers that they stand for.
    pub fn size(&self, name: &str) -> Option<(DType, usize)> {
        let info = self.info(name)?;
        let dtype = match info.dtype().ok()? {
            GgmlDType::F32 => DType::F32,
            GgmlDType::F16 => DType::F16,
            // Networks of convolutions are f16 otherwise.
            _ if self.shapes.contains_key(name) => DType::F16,
            _ => DType::BF16,
        };
        Some((dtype, info.elem_count() as usize))
    }

    /// How a matrix is quantized, if it is and its blocks do not cross rows.
    pub fn quantization(&self, name: &str) -> Option<GgmlDType> {
        if self.shapes.contains_key(name) {
            return None;
        }
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
            Some(info) => Ok(self.weights().bytes(name, info)),
            None => candle_core::bail!("no tensor {name}"),
        }
    }

    /// A tensor as floating-point numbers.
    ///
    /// # Errors
    /// If there is none of this name, or the device has no room.
    pub fn load(&self, name: &str, device: &Device) -> candle_core::Result<Tensor> {
        let numbers = |on: &Device| {
            let tensor = load(self.weights(), name, on).map_err(candle_core::Error::wrap)?;
            tensor.dequantize(on)
        };
        match self.shapes.get(name) {
            // No network multiplies by these blocks: kernels for them would be compiled for loading only.
            Some(shape) => numbers(&Device::Cpu)?
                .reshape(shape.as_slice())?
                .to_device(device),
            None => numbers(device),
        }
    }
}

/// A shape in a file's metadata, if it has as many elements.
fn shape_of(value: &Value, elements: u64) -> Option<Vec<usize>> {
    let dims: Vec<u64> = match value {
        Value::Array(Array::I32(dims)) => dims.iter().map(|d| u64::try_from(*d).ok()).collect(),
        Value::Array(Array::I64(dims)) => dims.iter().map(|d| u64::try_from(*d).ok()).collect(),
        Value::Array(Array::U32(dims)) => Some(dims.iter().map(|d| u64::from(*d)).collect()),
        Value::Array(Array::U64(dims)) => Some(dims.clone()),
        _ => None,
    }?;
    let product = dims
        .iter()
        .try_fold(1u64, |all, dim| all.checked_mul(*dim))?;
    let fits = (1..=5).contains(&dims.len()) && product == elements && product > 0;
    fits.then(|| dims.iter().map(|dim| *dim as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::QTensor;
    use worker::gguf::{Format, GgufWriter, NewTensor};

    /// A file with 4 kernels of 8 channels of 3 x 3 in blocks that know nothing of it, and these dimensions as their
    /// shape.
    fn file(shape: Value) -> (Vec<u8>, Tensor) {
        let numbers: Vec<f32> = (0..288).map(|i| (i as f32 * 0.37).sin()).collect();
        let kernels = Tensor::from_vec(numbers, (9, 32), &Device::Cpu).unwrap();
        let blocks = QTensor::quantize(&kernels, GgmlDType::Q8_0).unwrap();
        let table = [NewTensor {
            name: "conv.weight".to_string(),
            dims: vec![32, 9],
            format: Format::from_name("Q8_0").unwrap(),
        }];
        let metadata = [(format!("{SHAPE}conv.weight"), shape)];
        let mut writer = GgufWriter::new(Vec::new(), &metadata, &table).unwrap();
        writer.write(&blocks.data().unwrap()).unwrap();
        let numbers = blocks.dequantize(&Device::Cpu).unwrap();
        (writer.finish().unwrap(), numbers)
    }

    /// Such a file as part of the program, one byte off any alignment.
    fn carried(file: &[u8]) -> Result<GgufFile> {
        let mut moved = vec![0];
        moved.extend_from_slice(file);
        let bytes: &'static [u8] = &Box::leak(moved.into_boxed_slice())[1..];
        GgufFile::new(Bytes::Static(bytes), Path::new("(built in)"))
    }

    #[test]
    fn kernels_of_convolutions_have_their_shapes() {
        let (bytes, numbers) = file(Value::Array(Array::I32(vec![4, 8, 3, 3])));
        let place = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(place.path(), &bytes).unwrap();
        for file in [carried(&bytes), GgufFile::open(place.path())] {
            let file = file.unwrap();
            assert_eq!(file.shape("conv.weight"), Some(vec![4, 8, 3, 3]));
            // Blocks cross kernels, so that nothing can multiply by them.
            assert_eq!(file.quantization("conv.weight"), None);
            assert_eq!(file.size("conv.weight"), Some((DType::F16, 288)));
            let loaded = file.load("conv.weight", &Device::Cpu).unwrap();
            assert_eq!(loaded.dims(), [4, 8, 3, 3]);
            let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(flat(&loaded), flat(&numbers));
        }
    }

    #[test]
    fn shapes_of_other_sizes_are_refused() {
        let hostile = [
            Value::Array(Array::I32(vec![4, 8, 3, 2])),
            Value::Array(Array::I32(vec![-4, -8, 3, 3])),
            Value::Array(Array::U64(vec![u64::MAX, u64::MAX, 2])),
            Value::Array(Array::I64(vec![])),
            Value::Array(Array::F32(vec![288.0])),
            Value::U32(288),
        ];
        for shape in hostile {
            let error = carried(&file(shape).0).unwrap_err().to_string();
            assert!(error.contains("orig_shape.conv.weight"), "{error}");
        }
    }
}
