//! Writing GGUF files, a piece of a tensor at a time.

use super::value::{Array, Value};
use super::{Format, DEFAULT_ALIGNMENT, MAGIC};
use std::io::{Error, ErrorKind, Result, Write};

/// Version of the files written.
const VERSION: u32 = 3;

/// A tensor of a file to be written.
#[derive(Debug, Clone)]
pub struct NewTensor {
    /// Its name.
    pub name: String,
    /// Dimensions, innermost first; the first is a multiple of the type's block.
    pub dims: Vec<u64>,
    /// Its format; GGUF files have a number for it.
    pub format: Format,
}

impl NewTensor {
    /// Size of the data in bytes; an error if rows are not whole blocks or the size overflows.
    pub fn bytes(&self) -> Result<u64> {
        let row = self.dims.first().copied().unwrap_or(1);
        let elements = self
            .dims
            .iter()
            .try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let block = self.format.block_size() as u64;
        elements
            .filter(|_| row % block == 0)
            .and_then(|n| (n / block).checked_mul(self.format.type_size() as u64))
            .ok_or_else(|| {
                invalid(format!(
                    "tensor {} of shape {:?} cannot be stored as {}",
                    self.name,
                    self.dims,
                    self.format.name()
                ))
            })
    }
}

/// A GGUF file being written: header, metadata and tensor table first, then the tensors' data in the table's order and
/// in pieces of any size. Memory holds no more than the caller's piece.
pub struct GgufWriter<W> {
    out: W,
    /// Name and size of each tensor.
    tensors: Vec<(String, u64)>,
    current: usize,
    written: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Writes everything before the data.
    ///
    /// # Errors
    /// Those of `out`; [`ErrorKind::InvalidInput`] for a tensor whose rows are no whole blocks.
    pub fn new(mut out: W, metadata: &[(String, Value)], tensors: &[NewTensor]) -> Result<Self> {
        let mut header = MAGIC.to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.len() as u64).to_le_bytes());
        for (key, value) in metadata {
            string(&mut header, key);
            header.extend(value.code().to_le_bytes());
            write_value(&mut header, value);
        }
        let mut offset = 0u64;
        let mut sizes = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            string(&mut header, &tensor.name);
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            for dim in &tensor.dims {
                header.extend(dim.to_le_bytes());
            }
            let number = tensor.format.number().ok_or_else(|| {
                invalid(format!(
                    "tensor {}: GGUF files have no number for the format {}",
                    tensor.name,
                    tensor.format.name()
                ))
            })?;
            header.extend(number.to_le_bytes());
            header.extend(offset.to_le_bytes());
            let bytes = tensor.bytes()?;
            offset = offset
                .checked_add(bytes)
                .and_then(|end| end.checked_next_multiple_of(DEFAULT_ALIGNMENT))
                .ok_or_else(|| invalid("the tensors' sizes overflow".to_string()))?;
            sizes.push((tensor.name.clone(), bytes));
        }
        let padded = header.len().next_multiple_of(DEFAULT_ALIGNMENT as usize);
        header.resize(padded, 0);
        out.write_all(&header)?;
        Ok(Self {
            out,
            tensors: sizes,
            current: 0,
            written: 0,
        })
    }

    /// Appends to the data of the current tensor; the next one follows when it is full.
    ///
    /// # Errors
    /// Those of `out`; [`ErrorKind::InvalidInput`] for bytes beyond the tensor's end.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some((name, size)) = self.tensors.get(self.current) else {
            return Err(invalid("more data than the tensors hold".to_string()));
        };
        let after = self.written + bytes.len() as u64;
        if after > *size {
            return Err(invalid(format!(
                "tensor {name} holds {size} bytes, {after} were given"
            )));
        }
        self.out.write_all(bytes)?;
        self.written = after;
        if after == *size {
            let padding = after.next_multiple_of(DEFAULT_ALIGNMENT) - after;
            self.out
                .write_all(&[0; DEFAULT_ALIGNMENT as usize][..padding as usize])?;
            self.current += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Flushes and gives the output back.
    ///
    /// # Errors
    /// Those of `out`; [`ErrorKind::InvalidInput`] if data of a tensor is missing.
    pub fn finish(mut self) -> Result<W> {
        if let Some((name, size)) = self.tensors.get(self.current) {
            return Err(invalid(format!(
                "tensor {name} has {} of its {size} bytes",
                self.written
            )));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidInput, reason)
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => string(out, v),
        Value::Array(v) => write_array(out, v),
    }
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_code().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::U64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&v| u8::from(v))),
        Array::String(v) => v.iter().for_each(|v| string(out, v)),
        Array::Array(v) => v.iter().for_each(|inner| write_array(out, inner)),
    }
}
