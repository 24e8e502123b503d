//! Weights on disk: found, checked, and given the names that [`crate::models`] reads.
//!
//! | Module       | Gives                                                                          |
//! |--------------|--------------------------------------------------------------------------------|
//! | [`bytes`]    | the bytes of a file: mapped, or part of the program                            |
//! | [`file`]     | a safetensors file, checked whole before a tensor is taken                     |
//! | [`folder`]   | a model as diffusers stores it                                                 |
//! | [`ldm`]      | single-file checkpoints: which model it is, and diffusers' names for its parts |
//! | [`openclip`] | OpenCLIP's text tower under transformers' names                                |

pub mod bytes;
pub mod file;
pub mod folder;
pub mod ldm;
pub mod openclip;

use candle_core::{DType, Device, Tensor};
use file::SafetensorsFile;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use worker::{Error, Result};

/// A stretch of a tensor in a file.
#[derive(Debug, Clone)]
struct Piece {
    file: Arc<SafetensorsFile>,
    name: String,
    /// First row and number of rows, if not all.
    rows: Option<(usize, usize)>,
    transposed: bool,
}

/// Tensors by name, still in their files.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    /// Pieces are put one below the other.
    tensors: BTreeMap<String, Vec<Piece>>,
}

impl Weights {
    /// All tensors of some files under their own names.
    pub fn new(files: impl IntoIterator<Item = SafetensorsFile>) -> Self {
        let mut tensors = BTreeMap::new();
        for file in files {
            let file = Arc::new(file);
            for name in file.names() {
                let piece = Piece {
                    file: file.clone(),
                    name: name.to_string(),
                    rows: None,
                    transposed: false,
                };
                tensors.insert(name.to_string(), vec![piece]);
            }
        }
        Self { tensors }
    }

    /// Opens one safetensors file.
    ///
    /// # Errors
    /// If it is no safetensors file, or a damaged one.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self::new([SafetensorsFile::open(path)?]))
    }

    /// Names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is such a tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let pieces = self.tensors.get(name)?;
        let mut shape = pieces.first()?.shape()?;
        for piece in &pieces[1..] {
            *shape.first_mut()? += piece.shape()?.first()?;
        }
        Some(shape)
    }

    /// A number in the file's metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        let (_, pieces) = self.tensors.first_key_value()?;
        pieces.first()?.file.metadata(key)
    }

    /// The same tensors under other names; those for which `name` gives none are left out.
    pub fn renamed(&self, name: impl Fn(&str) -> Option<String>) -> Self {
        let tensors = self.tensors.iter();
        Self {
            tensors: tensors
                .filter_map(|(old, pieces)| Some((name(old)?, pieces.clone())))
                .collect(),
        }
    }

    /// The tensors whose names begin with `prefix`, without it.
    pub fn under(&self, prefix: &str) -> Self {
        self.renamed(|name| name.strip_prefix(prefix).map(String::from))
    }

    /// Adds `new`: the given rows of `old`.
    pub fn split(&mut self, old: &str, new: String, first: usize, rows: usize) {
        if let Some([piece]) = self.tensors.get(old).map(Vec::as_slice) {
            let piece = Piece {
                rows: Some((first, rows)),
                ..piece.clone()
            };
            self.tensors.insert(new, vec![piece]);
        }
    }

    /// Replaces a matrix by its transpose.
    pub fn transpose(&mut self, name: &str) {
        if let Some(pieces) = self.tensors.get_mut(name) {
            for piece in pieces {
                piece.transposed = !piece.transposed;
            }
        }
    }

    /// Replaces the tensors `old` by one, `new`, in which they lie one below the other. Does nothing unless all are there.
    pub fn stack(&mut self, old: &[String], new: String) {
        if old.iter().all(|name| self.contains(name)) {
            let pieces = old.iter().filter_map(|name| self.tensors.remove(name));
            let pieces = pieces.flatten().collect();
            self.tensors.insert(new, pieces);
        }
    }

    /// Adds the tensors of `other`, which win over those of the same name.
    pub fn extend(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
    }

    /// The dtype that most floating-point numbers have.
    pub fn dtype(&self) -> DType {
        let mut bytes: HashMap<DType, usize> = HashMap::new();
        for piece in self.tensors.values().flatten() {
            if let Some((dtype, count)) = piece.file.size(&piece.name) {
                *bytes.entry(dtype).or_default() += count;
            }
        }
        bytes.retain(|dtype, _| dtype.is_float());
        let most = bytes.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(DType::F32, |(dtype, _)| dtype)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        let sizes = self.tensors.values().flatten();
        sizes
            .filter_map(|piece| piece.file.size(&piece.name))
            .map(|(dtype, count)| dtype.size_in_bytes() * count)
            .sum()
    }

    /// One tensor; floating-point numbers as `dtype`.
    ///
    /// # Errors
    /// If there is none of this name, or the device has no room.
    pub fn load(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let Some(pieces) = self.tensors.get(name) else {
            return Err(Error::Runtime(format!("the model has no tensor {name}")));
        };
        let load = || {
            let parts = pieces
                .iter()
                .map(|piece| piece.load(device))
                .collect::<candle_core::Result<Vec<_>>>()?;
            let tensor = match parts.as_slice() {
                [one] => one.clone(),
                many => Tensor::cat(many, 0)?,
            };
            match tensor.dtype().is_float() {
                true => tensor.to_dtype(dtype),
                false => Ok(tensor),
            }
        };
        load().map_err(Error::candle("loading weights"))
    }

    /// All tensors.
    ///
    /// # Errors
    /// Those of [`Weights::load`].
    pub fn load_all(&self, dtype: DType, device: &Device) -> Result<HashMap<String, Tensor>> {
        self.tensors
            .keys()
            .map(|name| Ok((name.clone(), self.load(name, dtype, device)?)))
            .collect()
    }
}

impl Piece {
    fn shape(&self) -> Option<Vec<usize>> {
        let mut shape = self.file.shape(&self.name)?.to_vec();
        if let (Some((_, rows)), Some(first)) = (self.rows, shape.first_mut()) {
            *first = rows;
        }
        if self.transposed {
            shape.reverse();
        }
        Some(shape)
    }

    fn load(&self, device: &Device) -> candle_core::Result<Tensor> {
        let mut tensor = self.file.load(&self.name, device)?;
        if let Some((first, rows)) = self.rows {
            tensor = tensor.narrow(0, first, rows)?.force_contiguous()?;
        }
        if self.transposed {
            tensor = tensor.t()?.force_contiguous()?;
        }
        Ok(tensor)
    }
}
