//! A model whose matrices have their columns in the order of the inputs, as all readers of GGUF expect them.

use super::dequantize;
use candle_core::Tensor;
use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use worker::gguf::{parts_of, Format, Gguf, SharedBytes, TensorInfo, Weights};
use worker::{Error, Result};

/// What stands before the endings of a matrix's tensors.
fn matrix_of(order: &str) -> Option<String> {
    Some(format!("{}.weight", order.strip_suffix(".order")?))
}

/// A model seen without `.order`: matrices that have it are F32 and their columns lie where their inputs are.
pub struct NaturalOrder<'a> {
    source: &'a dyn Weights,
    header: Gguf,
    /// The column of each input, by the matrix.
    columns: HashMap<String, Vec<u32>>,
    /// Why the first matrix that could not be read was not.
    damage: OnceLock<String>,
}

impl<'a> NaturalOrder<'a> {
    /// Reads the orders of a model's columns.
    ///
    /// # Errors
    /// [`Error::BadModel`] for one that is none, or of a matrix that is not there or in no format of candle's.
    pub fn new(source: &'a dyn Weights) -> Result<Self> {
        let whole = source.header();
        let mut columns = HashMap::new();
        for (name, info) in whole.tensors() {
            let Some(matrix) = matrix_of(name) else {
                continue;
            };
            let bad = |reason: &str| Error::BadModel {
                path: source.path().to_path_buf(),
                reason: format!("tensor {name} {reason}"),
            };
            let of = whole.tensor(&matrix);
            let of = of.ok_or_else(|| bad("belongs to no matrix"))?;
            of.dtype()
                .map_err(|unsupported| bad(&format!("is of a matrix: {unsupported}")))?;
            if info.format != Format::I32 || of.dims.len() != 2 || info.dims != of.dims[..1] {
                return Err(bad("does not have a column for each input"));
            }
            let bytes = source.bytes(name, info);
            let order = bytes.chunks_exact(4);
            let mut of_inputs = vec![u32::MAX; bytes.len() / 4];
            for (column, input) in order.enumerate() {
                let input = u32::from_le_bytes([input[0], input[1], input[2], input[3]]);
                match of_inputs.get_mut(input as usize) {
                    Some(of_input) if *of_input == u32::MAX => *of_input = column as u32,
                    _ => return Err(bad(&format!("has no input {input} of its own"))),
                }
            }
            columns.insert(matrix, of_inputs);
        }
        let tensors = whole.tensors().filter(|(name, _)| {
            let of = matrix_of(name);
            of.is_none_or(|matrix| !columns.contains_key(&matrix))
        });
        let tensors = tensors.map(|(name, info)| {
            let info = match columns.contains_key(name) {
                true => TensorInfo {
                    format: Format::F32,
                    bytes: info.elem_count() * 4,
                    ..info.clone()
                },
                false => info.clone(),
            };
            (name.to_string(), info)
        });
        let metadata = whole.metadata();
        let metadata = metadata.map(|(key, value)| (key.to_string(), value.clone()));
        let header = Gguf::from_parts(metadata, tensors.collect::<Vec<_>>());
        Ok(Self {
            source,
            header,
            columns,
            damage: OnceLock::new(),
        })
    }

    fn floats(&self, name: &str, columns: &[u32]) -> candle_core::Result<Vec<u8>> {
        let Some(info) = self.source.header().tensor(name) else {
            return Ok(Vec::new());
        };
        let bytes = self.source.bytes(name, info);
        let dtype = info.dtype().map_err(candle_core::Error::wrap)?;
        let values = dequantize(&bytes, dtype, columns.len())?;
        let columns = Tensor::new(columns, values.device())?;
        let values = values.index_select(&columns, 1)?.flatten_all()?;
        let values = values.to_vec1::<f32>()?;
        Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
    }
}

impl Weights for NaturalOrder<'_> {
    fn path(&self) -> &Path {
        self.source.path()
    }

    fn header(&self) -> &Gguf {
        &self.header
    }

    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]> {
        match (self.columns.get(name), self.source.header().tensor(name)) {
            (Some(columns), _) => Cow::Owned(self.floats(name, columns).unwrap_or_else(|error| {
                // The first is told.
                let _ = self.damage.set(format!("tensor {name}: {error}"));
                vec![0; info.bytes as usize]
            })),
            (None, Some(info)) => self.source.bytes(name, info),
            (None, None) => Cow::Borrowed(&[]),
        }
    }

    fn shared(&self, name: &str, info: &TensorInfo) -> Option<SharedBytes> {
        match self.columns.contains_key(name) {
            true => None,
            false => self.source.shared(name, info),
        }
    }

    fn parts(&self, name: &str, info: &TensorInfo, ranges: &[Range<usize>]) -> Cow<'_, [u8]> {
        match self.columns.contains_key(name) {
            true => parts_of(self.bytes(name, info), ranges),
            false => self.source.parts(name, info, ranges),
        }
    }

    fn give_back(&self, name: &str, _: &TensorInfo) {
        if let Some(info) = self.source.header().tensor(name) {
            self.source.give_back(name, info);
        }
    }

    fn intact(&self) -> Result<()> {
        match self.damage.get() {
            None => self.source.intact(),
            Some(reason) => Err(Error::BadModel {
                path: self.path().to_path_buf(),
                reason: reason.clone(),
            }),
        }
    }
}
