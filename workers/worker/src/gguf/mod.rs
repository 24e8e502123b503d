//! A GGUF reader that trusts nothing in the file.
//!
//! A model file comes from the network. [`Gguf::read`] walks header, metadata and tensor table before
//! anything else touches the file and checks every count, length, shape and offset against the file's size, so
//! that a damaged or hostile file ends in one clear error and takes no more memory than its own bytes justify.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little-endian.

mod mapped;
mod reader;
mod shared;
mod types;
mod value;
mod weights;
mod write;

pub use ggml_formats::Format;
pub use mapped::{give_back, map_file, MappedGguf};
pub use shared::SharedBytes;
pub use types::{dtype, UnsupportedFormat};
pub use value::{Array, Value};
pub use weights::{load, parts_of, Weights};
pub use write::{GgufWriter, NewTensor};

use candle_core::quantized::GgmlDType;
use reader::Reader;
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Fewest bytes of a metadata entry: key length, one character, value type, one byte of value.
const MIN_METADATA_BYTES: u64 = 8 + 1 + 4 + 1;
/// Fewest bytes of a tensor entry: name length, one character, rank, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 4 + 8;
/// Highest tensor rank: of the format it is 4, and convolutions of videos are written with one more.
const MAX_RANK: u32 = 5;

/// A failed check.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file does not start with the format's magic.
    #[error("not a GGUF file (it starts with bytes {found:02x?}, not \"GGUF\")")]
    BadMagic {
        /// The file's first four bytes.
        found: [u8; 4],
    },
    /// A version other than 2 and 3.
    #[error("GGUF version {version} is not supported (versions 2 and 3 are){}", if *big_endian { "; the file is big-endian, convert it to little-endian" } else { "" })]
    UnsupportedVersion {
        /// The version in the file.
        version: u32,
        /// Whether it would be a known one with its bytes swapped.
        big_endian: bool,
    },
    /// Something reaches past the end of the file.
    #[error("truncated or damaged: {what} at byte {position} needs {needed} bytes, {remaining} are left in the file")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where, in bytes from the start.
        position: u64,
        /// How much it needs.
        needed: u64,
        /// How much there is.
        remaining: u64,
    },
    /// A key or tensor name above the format's limit.
    #[error("{what} is {length} bytes long, at most {max} are allowed")]
    NameTooLong {
        /// Which name.
        what: String,
        /// Its length in bytes.
        length: u64,
        /// The limit.
        max: u64,
    },
    /// A key or tensor name that is empty, not UTF-8 or holds a NUL.
    #[error("{what} before byte {position} is not a valid name")]
    BadName {
        /// Which name.
        what: String,
        /// Where it ends.
        position: u64,
    },
    /// A boolean other than 0 and 1.
    #[error("metadata {key}: {byte} is not a boolean")]
    BadBool {
        /// The key.
        key: String,
        /// The byte found.
        byte: u8,
    },
    /// A value type that the format does not have.
    #[error("metadata {key}: unknown value type {code}")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The code found.
        code: u32,
    },
    /// Arrays nested too deeply.
    #[error("metadata {key}: arrays nested deeper than {max}")]
    ArrayTooDeep {
        /// The key.
        key: String,
        /// The limit.
        max: u32,
    },
    /// More array elements than any model needs.
    #[error(
        "metadata {key}: {count} more array elements exceed the limit of {max} for all metadata"
    )]
    TooManyElements {
        /// The key.
        key: String,
        /// Elements of this array.
        count: u64,
        /// The limit.
        max: u64,
    },
    /// Two entries of one name.
    #[error("{what} {name} appears twice")]
    Duplicate {
        /// "metadata" or "tensor".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An alignment that is no power of two, below 8 or of the wrong type.
    #[error("general.alignment must be a u32 power of two of at least 8, it is {found}")]
    BadAlignment {
        /// What the file says.
        found: String,
    },
    /// A tensor whose rank, dimensions or size do not make sense.
    #[error("tensor {name}: {reason}")]
    BadTensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A metadata key that the model's architecture needs.
    #[error("metadata {key} is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata value of another type than its key calls for.
    #[error("metadata {key} is of type {found}, it must be {expected}")]
    WrongType {
        /// The key.
        key: String,
        /// The type found.
        found: &'static str,
        /// The type needed.
        expected: &'static str,
    },
    /// A tensor that the model's architecture needs.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// The operating system failed to read.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
}

/// One entry of the tensor table.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Dimensions, innermost first as in the file; the product fits in a u64.
    pub dims: Vec<u64>,
    /// Element type.
    pub format: Format,
    /// Start of the data in bytes from the start of the data section.
    pub offset: u64,
    /// Size of the data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elem_count(&self) -> u64 {
        self.dims.iter().product()
    }

    /// candle's type of the elements.
    ///
    /// # Errors
    /// [`UnsupportedFormat`] if candle does not compute with it.
    pub fn dtype(&self) -> Result<GgmlDType, UnsupportedFormat> {
        dtype(self.format)
    }
}

/// A checked header: metadata and tensor table. The tensors' data is known to lie inside the file.
#[derive(Debug)]
pub struct Gguf {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of the data section and of every tensor in bytes.
    pub alignment: u64,
    /// Start of the data section in bytes from the start of the file.
    pub data_offset: u64,
    /// Size of the file in bytes, of the tensors for other formats.
    pub file_bytes: u64,
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, TensorInfo>,
}

impl Gguf {
    /// Reads and checks everything before the tensors' data. The reader's position afterwards is unspecified.
    pub fn read<R: Read + Seek>(mut source: R) -> Result<Self, GgufError> {
        let file_bytes = source.seek(SeekFrom::End(0))?;
        source.seek(SeekFrom::Start(0))?;
        let mut reader = Reader::new(source, file_bytes);

        let found = reader.u32("magic")?.to_le_bytes();
        if found != MAGIC {
            return Err(GgufError::BadMagic { found });
        }
        let version = reader.u32("version")?;
        if !matches!(version, 2 | 3) {
            return Err(GgufError::UnsupportedVersion {
                version,
                big_endian: matches!(version.swap_bytes(), 2 | 3),
            });
        }
        let tensor_count = reader.u64("tensor count")?;
        let metadata_count = reader.u64("metadata count")?;
        let needed = metadata_count
            .checked_mul(MIN_METADATA_BYTES)
            .zip(tensor_count.checked_mul(MIN_TENSOR_BYTES))
            .and_then(|(m, t)| m.checked_add(t))
            .unwrap_or(u64::MAX);
        if needed > reader.remaining() {
            return Err(GgufError::Truncated {
                what: format!(
                    "a header of {metadata_count} metadata entries and {tensor_count} tensors"
                ),
                position: reader.position(),
                needed,
                remaining: reader.remaining(),
            });
        }

        let mut metadata = HashMap::new();
        for _ in 0..metadata_count {
            let key = reader.name("metadata key")?;
            let value = reader.value(&key)?;
            if metadata.contains_key(&key) {
                return Err(GgufError::Duplicate {
                    what: "metadata",
                    name: key,
                });
            }
            metadata.insert(key, value);
        }
        let alignment = alignment(&metadata)?;

        let mut tensors = HashMap::new();
        for _ in 0..tensor_count {
            let name = reader.name("tensor name")?;
            let info = tensor_info(&mut reader, &name, alignment)?;
            if tensors.contains_key(&name) {
                return Err(GgufError::Duplicate {
                    what: "tensor",
                    name,
                });
            }
            tensors.insert(name, info);
        }

        // Both terms are far below 2^63: a position in the file and a u32.
        let data_offset = reader.position().next_multiple_of(alignment);
        for (name, info) in &tensors {
            let end = data_offset
                .checked_add(info.offset)
                .and_then(|start| start.checked_add(info.bytes));
            if end.is_none_or(|end| end > file_bytes) {
                return Err(GgufError::BadTensor {
                    name: name.clone(),
                    reason: format!(
                        "its {} bytes at offset {} of the data section reach past the end of the file ({file_bytes} bytes, data from {data_offset})",
                        info.bytes, info.offset
                    ),
                });
            }
        }
        Ok(Self {
            version,
            alignment,
            data_offset,
            file_bytes,
            metadata,
            tensors,
        })
    }

    /// The header of a model that lies in another format: its metadata and tensors in GGUF's terms. Offsets mean
    /// nothing.
    pub fn from_parts(
        metadata: impl IntoIterator<Item = (String, Value)>,
        tensors: impl IntoIterator<Item = (String, TensorInfo)>,
    ) -> Self {
        let tensors: HashMap<String, TensorInfo> = tensors.into_iter().collect();
        Self {
            version: 3,
            alignment: DEFAULT_ALIGNMENT,
            data_offset: 0,
            file_bytes: tensors.values().map(|info| info.bytes).sum(),
            metadata: metadata.into_iter().collect(),
            tensors,
        }
    }

    /// The value of a key, `None` if the file does not have it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All metadata, in no particular order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    fn require(&self, key: &str) -> Result<&Value, GgufError> {
        self.get(key).ok_or_else(|| GgufError::MissingKey {
            key: key.to_string(),
        })
    }

    /// The string of a key that must exist.
    pub fn require_str(&self, key: &str) -> Result<&str, GgufError> {
        match self.require(key)? {
            Value::String(text) => Ok(text),
            other => Err(wrong_type(key, other, "string")),
        }
    }

    /// The u32 of a key that must exist.
    pub fn require_u32(&self, key: &str) -> Result<u32, GgufError> {
        match self.require(key)? {
            Value::U32(v) => Ok(*v),
            other => Err(wrong_type(key, other, "u32")),
        }
    }

    /// The f32 of a key that must exist.
    pub fn require_f32(&self, key: &str) -> Result<f32, GgufError> {
        match self.require(key)? {
            Value::F32(v) => Ok(*v),
            other => Err(wrong_type(key, other, "f32")),
        }
    }

    /// The array of strings of a key that must exist.
    pub fn require_strings(&self, key: &str) -> Result<&[String], GgufError> {
        match self.require(key)? {
            Value::Array(Array::String(v)) => Ok(v),
            other => Err(wrong_type(key, other, "array of strings")),
        }
    }

    /// The string of a key; an error only if it is there with another type.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.get(key).map(|_| self.require_str(key)).transpose()
    }

    /// The u32 of a key; an error only if it is there with another type.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>, GgufError> {
        self.get(key).map(|_| self.require_u32(key)).transpose()
    }

    /// The f32 of a key; an error only if it is there with another type.
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key).map(|_| self.require_f32(key)).transpose()
    }

    /// The boolean of a key; an error only if it is there with another type.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(other) => Err(wrong_type(key, other, "bool")),
        }
    }

    /// The i32 array of a key; an error only if it is there with another type.
    pub fn get_i32s(&self, key: &str) -> Result<Option<&[i32]>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::I32(v))) => Ok(Some(v)),
            Some(other) => Err(wrong_type(key, other, "array of i32")),
        }
    }

    /// The f32 array of a key; an error only if it is there with another type.
    pub fn get_f32s(&self, key: &str) -> Result<Option<&[f32]>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(Array::F32(v))) => Ok(Some(v)),
            Some(other) => Err(wrong_type(key, other, "array of f32")),
        }
    }

    /// A tensor's entry, `None` if the file does not have it.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// All tensors with their names, in no particular order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors
            .iter()
            .map(|(name, info)| (name.as_str(), info))
    }

    /// Checks that a tensor exists, has these dimensions (innermost first) and a type that candle computes with.
    pub fn require_tensor(&self, name: &str, dims: &[u64]) -> Result<&TensorInfo, GgufError> {
        let info = self.tensor(name).ok_or_else(|| GgufError::MissingTensor {
            name: name.to_string(),
        })?;
        if info.dims != dims {
            return Err(GgufError::BadTensor {
                name: name.to_string(),
                reason: format!(
                    "its shape is {:?}, the metadata calls for {dims:?}",
                    info.dims
                ),
            });
        }
        if let Err(unsupported) = info.dtype() {
            return Err(GgufError::BadTensor {
                name: name.to_string(),
                reason: unsupported.to_string(),
            });
        }
        Ok(info)
    }
}

fn wrong_type(key: &str, found: &Value, expected: &'static str) -> GgufError {
    GgufError::WrongType {
        key: key.to_string(),
        found: found.type_name(),
        expected,
    }
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<u64, GgufError> {
    match metadata.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        // The format asks for a multiple of 8, and mapped data is read in place by that.
        Some(Value::U32(v)) if v.is_power_of_two() && *v >= 8 => Ok(u64::from(*v)),
        Some(Value::U32(v)) => Err(GgufError::BadAlignment {
            found: v.to_string(),
        }),
        Some(other) => Err(GgufError::BadAlignment {
            found: format!("of type {}", other.type_name()),
        }),
    }
}

fn tensor_info<R: Read>(
    reader: &mut Reader<R>,
    name: &str,
    alignment: u64,
) -> Result<TensorInfo, GgufError> {
    let bad = |reason: String| GgufError::BadTensor {
        name: name.to_string(),
        reason,
    };
    let rank = reader.u32(name)?;
    if rank > MAX_RANK {
        return Err(bad(format!("rank {rank}, at most {MAX_RANK} is allowed")));
    }
    let dims = (0..rank)
        .map(|_| reader.u64(name))
        .collect::<Result<Vec<_>, _>>()?;
    let number = reader.u32(name)?;
    let format = Format::from_number(number)
        .ok_or_else(|| bad(format!("format number {number} is not supported")))?;
    let offset = reader.u64(name)?;

    if dims.contains(&0) {
        return Err(bad(format!("shape {dims:?} has a dimension of zero")));
    }
    let elements = dims
        .iter()
        .try_fold(1u64, |product, &d| product.checked_mul(d))
        .ok_or_else(|| bad(format!("shape {dims:?} overflows")))?;
    let row = dims.first().copied().unwrap_or(1);
    let block = format.block_size() as u64;
    if row % block != 0 {
        return Err(bad(format!(
            "rows of {row} elements are no multiple of the {block} elements of a {} block",
            format.name()
        )));
    }
    let bytes = (elements / block)
        .checked_mul(format.type_size() as u64)
        .ok_or_else(|| bad(format!("shape {dims:?} overflows")))?;
    if offset % alignment != 0 {
        return Err(bad(format!(
            "offset {offset} is not a multiple of the alignment {alignment}"
        )));
    }
    Ok(TensorInfo {
        dims,
        format,
        offset,
        bytes,
    })
}
