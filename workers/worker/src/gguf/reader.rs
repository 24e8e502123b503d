//! Bounded reading: a position, the bytes that remain, and a budget for metadata elements.

use super::value::{Array, Value, ValueType};
use super::GgufError;
use std::io::{BufReader, Read};

/// Longest metadata key or tensor name in bytes, by the format's specification.
const MAX_NAME_BYTES: u64 = 65_535;
/// Array elements allowed in all metadata together. The largest vocabularies in use need 1.3 million;
/// candle keeps 32 bytes for each element, so this bounds its memory to 128 MiB.
const MAX_METADATA_ELEMENTS: u64 = 1 << 22;
/// Arrays of arrays deeper than this are refused; no model uses more than one level.
const MAX_ARRAY_DEPTH: u32 = 4;

/// Reads little-endian values and never past `file_bytes`.
pub(super) struct Reader<R> {
    inner: BufReader<R>,
    position: u64,
    file_bytes: u64,
    elements_left: u64,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(inner: R, file_bytes: u64) -> Self {
        Self {
            inner: BufReader::new(inner),
            position: 0,
            file_bytes,
            elements_left: MAX_METADATA_ELEMENTS,
        }
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn remaining(&self) -> u64 {
        self.file_bytes - self.position
    }

    fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        if self.remaining() < N as u64 {
            return Err(self.truncated(what, N as u64));
        }
        let mut buffer = [0; N];
        self.inner.read_exact(&mut buffer)?;
        self.position += N as u64;
        Ok(buffer)
    }

    fn truncated(&self, what: &str, needed: u64) -> GgufError {
        GgufError::Truncated {
            what: what.to_string(),
            position: self.position,
            needed,
            remaining: self.remaining(),
        }
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A length-prefixed byte string of at most `max` bytes.
    fn byte_string(&mut self, what: &str, max: u64) -> Result<Vec<u8>, GgufError> {
        let length = self.u64(what)?;
        if length > self.remaining() {
            return Err(self.truncated(what, length));
        }
        if length > max {
            return Err(GgufError::NameTooLong {
                what: what.to_string(),
                length,
                max,
            });
        }
        let length = usize::try_from(length).map_err(|_| self.truncated(what, length))?;
        let mut buffer = vec![0; length];
        self.inner.read_exact(&mut buffer)?;
        self.position += length as u64;
        Ok(buffer)
    }

    /// A metadata key or tensor name: valid UTF-8 without NUL, since readers disagree on how to treat NUL.
    pub(super) fn name(&mut self, what: &str) -> Result<String, GgufError> {
        let bytes = self.byte_string(what, MAX_NAME_BYTES)?;
        match String::from_utf8(bytes) {
            Ok(name) if !name.is_empty() && !name.contains('\0') => Ok(name),
            _ => Err(GgufError::BadName {
                what: what.to_string(),
                position: self.position,
            }),
        }
    }

    /// A string value. Some published files hold invalid UTF-8 in strings; it is replaced.
    fn string(&mut self, what: &str) -> Result<String, GgufError> {
        let bytes = self.byte_string(what, u64::MAX)?;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
        })
    }

    fn bool(&mut self, what: &str) -> Result<bool, GgufError> {
        match self.bytes::<1>(what)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(GgufError::BadBool {
                key: what.to_string(),
                byte,
            }),
        }
    }

    fn value_type(&mut self, key: &str) -> Result<ValueType, GgufError> {
        let code = self.u32(key)?;
        ValueType::from_code(code).ok_or_else(|| GgufError::UnknownValueType {
            key: key.to_string(),
            code,
        })
    }

    /// The typed value of metadata `key`.
    pub(super) fn value(&mut self, key: &str) -> Result<Value, GgufError> {
        Ok(match self.value_type(key)? {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.bytes(key)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.bytes(key)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.bytes(key)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.bytes(key)?)),
            ValueType::U32 => Value::U32(self.u32(key)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.bytes(key)?)),
            ValueType::U64 => Value::U64(self.u64(key)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.bytes(key)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.bytes(key)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.bytes(key)?)),
            ValueType::Bool => Value::Bool(self.bool(key)?),
            ValueType::String => Value::String(self.string(key)?),
            ValueType::Array => Value::Array(self.array(key, 0)?),
        })
    }

    fn array(&mut self, key: &str, depth: u32) -> Result<Array, GgufError> {
        if depth >= MAX_ARRAY_DEPTH {
            return Err(GgufError::ArrayTooDeep {
                key: key.to_string(),
                max: MAX_ARRAY_DEPTH,
            });
        }
        let element = self.value_type(key)?;
        let count = self.u64(key)?;
        match count.checked_mul(element.min_bytes()) {
            Some(needed) if needed <= self.remaining() => {}
            needed => return Err(self.truncated(key, needed.unwrap_or(u64::MAX))),
        }
        self.elements_left =
            self.elements_left
                .checked_sub(count)
                .ok_or_else(|| GgufError::TooManyElements {
                    key: key.to_string(),
                    count,
                    max: MAX_METADATA_ELEMENTS,
                })?;
        Ok(match element {
            ValueType::U8 => Array::U8(self.numbers(key, count, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.numbers(key, count, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.numbers(key, count, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.numbers(key, count, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.numbers(key, count, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.numbers(key, count, i32::from_le_bytes)?),
            ValueType::U64 => Array::U64(self.numbers(key, count, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.numbers(key, count, i64::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.numbers(key, count, f32::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.numbers(key, count, f64::from_le_bytes)?),
            ValueType::Bool => Array::Bool(
                (0..count)
                    .map(|_| self.bool(key))
                    .collect::<Result<_, _>>()?,
            ),
            ValueType::String => Array::String(
                (0..count)
                    .map(|_| self.string(key))
                    .collect::<Result<_, _>>()?,
            ),
            ValueType::Array => Array::Array(
                (0..count)
                    .map(|_| self.array(key, depth + 1))
                    .collect::<Result<_, _>>()?,
            ),
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        key: &str,
        count: u64,
        from_bytes: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        (0..count)
            .map(|_| Ok(from_bytes(self.bytes(key)?)))
            .collect()
    }
}
