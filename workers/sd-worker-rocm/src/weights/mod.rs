//! Weights on disk: found, checked, and given the names that [`crate::models`] reads.
//!
//! | Module       | Gives                                                                          |
//! |--------------|--------------------------------------------------------------------------------|
//! | [`bytes`]    | the bytes of a file: mapped, or part of the program                            |
//! | [`file`](mod@file) | a safetensors file, checked whole before a tensor is taken                     |
//! | [`float8`]   | matrices of 8-bit and 4-bit floats with their scales                           |
//! | [`folder`]   | a model as diffusers stores it                                                 |
//! | [`gguf`]     | a GGUF file, whose matrices may stay quantized                                 |
//! | [`ldm`]      | single-file checkpoints: which model it is, and diffusers' names for its parts |
//! | [`openclip`] | OpenCLIP's text tower under transformers' names                                |
//! | [`packed`]   | single files that have a transformer with text encoders and VAE                |
//! | [`transformer`] | single files of transformers: diffusers' names for the originals'           |

pub mod block_controls;
pub mod bytes;
pub mod file;
pub mod float8;
pub mod folder;
pub mod gguf;
pub mod language;
pub mod ldm;
pub mod ltx;
pub mod ltx_vae;
pub mod named;
pub mod openclip;
pub mod packed;
pub mod transformer;
pub mod wan;
pub mod wan_vae;

use bytes::Bytes;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::{DType, Device, Tensor};
use file::SafetensorsFile;
use float8::{Layout, Small};
use gguf::GgufFile;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use worker::fault::of_file;
use worker::{Error, Result};

/// Ends of the names of matrices of which networks take rows. They are loaded as numbers.
const TABLES: [&str; 5] = [
    "token_embedding.weight",
    "position_embedding.weight",
    "embed_tokens.weight",
    "shared.weight",
    "relative_attention_bias.weight",
];

/// A file with tensors.
#[derive(Debug)]
enum Source {
    Safetensors(SafetensorsFile),
    Gguf(GgufFile),
}

/// A stretch of a tensor in a file.
#[derive(Debug, Clone)]
struct Piece {
    file: Arc<Source>,
    name: String,
    /// First row and number of rows, if not all.
    rows: Option<(usize, usize)>,
    transposed: bool,
    /// How it becomes numbers, if it is of fewer than 16 bits.
    scaled: Option<Arc<Small>>,
    /// Whether such a matrix may stay one.
    stays: bool,
}

/// Tensors by name, still in their files.
#[derive(Debug, Clone, Default)]
pub struct Weights {
    /// Pieces are put one below the other.
    tensors: BTreeMap<String, Vec<Piece>>,
}

impl Weights {
    /// All tensors of some files that belong together, under their own names. `layout` says what their configuration
    /// knows of 8-bit floats.
    ///
    /// # Errors
    /// [`Error::BadModel`] if weights are in a kind of quantization that is not implemented, or without their scales.
    pub fn new(files: impl IntoIterator<Item = SafetensorsFile>, layout: Layout) -> Result<Self> {
        Self::of(files.into_iter().map(Source::Safetensors).collect(), layout)
    }

    fn of(files: Vec<Source>, layout: Layout) -> Result<Self> {
        let safetensors: Vec<&SafetensorsFile> = files
            .iter()
            .filter_map(|file| match file {
                Source::Safetensors(file) => Some(file),
                Source::Gguf(_) => None,
            })
            .collect();
        let found = float8::find(&safetensors, layout)?;
        let mut tensors = BTreeMap::new();
        for file in files {
            let file = Arc::new(file);
            for name in file.names() {
                if found.is_companion(&name) {
                    continue;
                }
                let piece = Piece {
                    file: file.clone(),
                    scaled: found.scaled(&name).cloned(),
                    name: name.clone(),
                    rows: None,
                    transposed: false,
                    stays: true,
                };
                tensors.insert(name, vec![piece]);
            }
        }
        Ok(Self { tensors })
    }

    /// Opens one file: safetensors or GGUF.
    ///
    /// # Errors
    /// If it is of another kind, or damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = Bytes::map(path)?;
        if bytes.starts_with(b"GGUF") {
            return Self::gguf(bytes, path);
        }
        let file = SafetensorsFile::new(bytes, path)?;
        Self::of(vec![Source::Safetensors(file)], Layout::default())
    }

    /// The tensors of a GGUF file.
    ///
    /// # Errors
    /// Those of [`GgufFile::open`].
    pub fn gguf(bytes: Bytes, path: &Path) -> Result<Self> {
        let file = GgufFile::new(bytes, path)?;
        Self::of(vec![Source::Gguf(file)], Layout::default())
    }

    /// The same tensors, of which those in small floats are loaded as wider numbers.
    #[must_use]
    pub fn expanded(mut self) -> Self {
        let pieces = self.tensors.values_mut().flatten();
        pieces.for_each(|piece| piece.stays &= piece.scaled.is_none());
        self
    }

    /// Names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is such a tensor.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Whether there are no tensors.
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

    /// Replaces the tensors `old` by one, `new`, in which they lie one below the other. Does nothing unless all are
    /// there.
    pub fn stack(&mut self, old: &[String], new: String) {
        if old.iter().all(|name| self.contains(name)) {
            let pieces = old.iter().filter_map(|name| self.tensors.remove(name));
            let pieces = pieces.flatten().collect();
            self.tensors.insert(new, pieces);
        }
    }

    /// Leaves a tensor out.
    pub fn remove(&mut self, name: &str) {
        self.tensors.remove(name);
    }

    /// Adds the tensors of `other`, which win over those of the same name.
    pub fn extend(&mut self, other: Self) {
        self.tensors.extend(other.tensors);
    }

    /// The dtype that most floating-point numbers have.
    pub fn dtype(&self) -> DType {
        let mut bytes: HashMap<DType, usize> = HashMap::new();
        for piece in self.tensors.values().flatten() {
            if let Some((dtype, count)) = piece.size() {
                *bytes.entry(dtype).or_default() += count;
            }
        }
        bytes.retain(|dtype, _| dtype.is_float());
        let most = bytes.into_iter().max_by_key(|(_, count)| *count);
        most.map_or(DType::F32, |(dtype, _)| dtype)
    }

    /// The file with a tensor, for messages; of one that is in none, nothing.
    fn path(&self, name: &str) -> &Path {
        let piece = self.tensors.get(name).and_then(|pieces| pieces.first());
        piece.map_or(Path::new(""), |piece| piece.file.path())
    }

    /// One of the files, for messages.
    pub fn any_path(&self) -> Option<&Path> {
        let (_, pieces) = self.tensors.first_key_value()?;
        Some(pieces.first()?.file.path())
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        let sizes = self.tensors.values().flatten();
        sizes
            .filter_map(Piece::size)
            .map(|(dtype, count)| dtype.size_in_bytes() * count)
            .sum()
    }

    /// Bytes of all tensors on a device, floating-point numbers as `dtype`, quantized matrices as they are.
    pub fn bytes_as(&self, dtype: DType) -> u64 {
        let bytes = self.tensors.iter().map(|(name, pieces)| {
            let quantized = self.quantization(name);
            let sizes = pieces.iter();
            let sizes = sizes.filter_map(|piece| {
                // Of a piece that is a stretch of rows, the rows count.
                let (stored, whole) = piece.size()?;
                let count = match (piece.rows, piece.file.shape(&piece.name)) {
                    (Some((_, rows)), Some(shape)) if shape.first().is_some_and(|all| *all > 0) => {
                        whole / shape[0] * rows
                    }
                    _ => whole,
                };
                Some(match quantized {
                    Some(kind) => count / kind.block_size() * kind.type_size(),
                    None if stored.is_float() => count * dtype.size_in_bytes(),
                    None => count * stored.size_in_bytes(),
                } as u64)
            });
            sizes.sum::<u64>()
        });
        bytes.sum()
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
                .map(|piece| piece.load(dtype, device))
                .collect::<candle_core::Result<Vec<_>>>()?;
            match parts.as_slice() {
                [one] => Ok(one.clone()),
                many => Tensor::cat(many, 0),
            }
        };
        load().map_err(of_file("loading weights", self.path(name)))
    }

    /// The type of a matrix that stays quantized.
    fn quantization(&self, name: &str) -> Option<GgmlDType> {
        let pieces = self.tensors.get(name)?;
        let first = pieces.first()?.quantization()?;
        let stays = name.ends_with("weight")
            && !TABLES.iter().any(|table| name.ends_with(table))
            && self.shape(name).is_some_and(|shape| shape.len() == 2)
            && pieces
                .iter()
                .all(|p| p.quantization() == Some(first) && !p.transposed)
            && pieces.iter().all(|p| p.factor() == pieces[0].factor());
        stays.then_some(first)
    }

    /// Whether a matrix is quantized and may stay so.
    pub fn is_quantized(&self, name: &str) -> bool {
        self.quantization(name).is_some()
    }

    /// The name of the quantization of most matrices.
    pub fn most_quantized(&self) -> Option<String> {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for name in self.tensors.keys() {
            if let Some(dtype) = self.quantization(name) {
                *counts.entry(format!("{dtype:?}")).or_default() += 1;
            }
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(name, _)| name)
    }

    /// How many tensors in small floats stay so, and how many become wider numbers; none without any.
    pub fn small(&self) -> Option<(usize, usize)> {
        let small = self.tensors.iter();
        let small = small.filter(|(_, pieces)| pieces.iter().any(|p| p.scaled.is_some()));
        let (stay, expand): (Vec<_>, Vec<_>) = small.partition(|(name, _)| self.is_quantized(name));
        (!stay.is_empty() || !expand.is_empty()).then_some((stay.len(), expand.len()))
    }

    /// Names of the matrices that are quantized and may stay so.
    pub fn quantized(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|name| self.is_quantized(name))
    }

    /// A matrix as it is quantized.
    ///
    /// # Errors
    /// If it is not, or the device has no room.
    pub fn load_quantized(&self, name: &str, device: &Device) -> Result<QTensor> {
        let (Some(dtype), Some(shape), Some(pieces)) = (
            self.quantization(name),
            self.shape(name),
            self.tensors.get(name),
        ) else {
            return Err(Error::Runtime(format!("{name} is not a quantized matrix")));
        };
        let load = || {
            let mut parts = pieces.iter().map(|piece| piece.blocks(dtype));
            let bytes = match (parts.next(), pieces.len()) {
                (Some(only), 1) => only?,
                (first, _) => {
                    let mut all = Vec::new();
                    for part in first.into_iter().chain(parts) {
                        all.extend_from_slice(&part?);
                    }
                    Cow::Owned(all)
                }
            };
            QTensor::new(QStorage::from_data(bytes, device, dtype)?, shape)
        };
        load().map_err(of_file("loading weights", self.path(name)))
    }

    /// By what the numbers of [`Weights::load_quantized`] are multiplied, if that is not 1.
    pub fn factor(&self, name: &str) -> Option<f32> {
        let pieces = self.tensors.get(name)?;
        let factor = pieces.first()?.factor();
        Some(factor).filter(|factor| *factor != 1.0)
    }

    /// All tensors but those of [`Weights::quantized`].
    ///
    /// # Errors
    /// Those of [`Weights::load`].
    pub fn load_all(&self, dtype: DType, device: &Device) -> Result<HashMap<String, Tensor>> {
        self.tensors
            .keys()
            .filter(|name| !self.is_quantized(name))
            .map(|name| Ok((name.clone(), self.load(name, dtype, device)?)))
            .collect()
    }
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Self::Safetensors(file) => file.path(),
            Self::Gguf(file) => file.path(),
        }
    }

    fn names(&self) -> Vec<String> {
        match self {
            Self::Safetensors(file) => file.names().map(String::from).collect(),
            Self::Gguf(file) => file.names().map(String::from).collect(),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match self {
            Self::Safetensors(file) => file.shape(name).map(<[usize]>::to_vec),
            Self::Gguf(file) => file.shape(name),
        }
    }

    /// Dtype, that of the numbers after all for quantized ones, and number of elements.
    fn size(&self, name: &str) -> Option<(DType, usize)> {
        match self {
            Self::Safetensors(file) => file.size(name),
            Self::Gguf(file) => file.size(name),
        }
    }

    fn metadata(&self, key: &str) -> Option<&str> {
        match self {
            Self::Safetensors(file) => file.metadata(key),
            Self::Gguf(_) => None,
        }
    }

    fn load(&self, name: &str, device: &Device) -> candle_core::Result<Tensor> {
        match self {
            Self::Safetensors(file) => file.load(name, device),
            Self::Gguf(file) => file.load(name, device),
        }
    }
}

impl Piece {
    /// The type of blocks that it is or may become.
    fn quantization(&self) -> Option<GgmlDType> {
        match (&*self.file, &self.scaled) {
            (Source::Gguf(file), _) => file.quantization(&self.name),
            (Source::Safetensors(_), None) => None,
            (Source::Safetensors(file), Some(scaled)) => {
                let [_, columns] = *file.shape(&self.name)? else {
                    return None;
                };
                let columns = columns.saturating_mul(scaled.in_byte());
                scaled.format(columns).filter(|_| self.stays)
            }
        }
    }

    /// By what the blocks' numbers are multiplied.
    fn factor(&self) -> f32 {
        self.scaled.as_ref().map_or(1.0, |scaled| scaled.factor())
    }

    /// Dtype, [`DType::F8E4M3`] for all small floats, and number of elements of the file's tensor.
    fn size(&self) -> Option<(DType, usize)> {
        let (dtype, count) = self.file.size(&self.name)?;
        Some(match &self.scaled {
            Some(scaled) => (DType::F8E4M3, count.saturating_mul(scaled.in_byte())),
            None => (dtype, count),
        })
    }

    /// Rows of bytes of a file's tensor, `row` bytes each, and the number of the first.
    fn stretch<'a>(
        &self,
        bytes: Cow<'a, [u8]>,
        rows: usize,
        row: usize,
    ) -> candle_core::Result<(Cow<'a, [u8]>, usize)> {
        let (first, count) = self.rows.unwrap_or((0, rows));
        let range = first.saturating_mul(row)..first.saturating_add(count).saturating_mul(row);
        if range.end > bytes.len() {
            candle_core::bail!("{} has fewer rows", self.name)
        }
        let stretch = match bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
            Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
        };
        Ok((stretch, first))
    }

    /// The bits of small floats, the number of their first row, and the bytes of a row.
    fn bits(&self) -> candle_core::Result<(Cow<'_, [u8]>, usize, usize)> {
        let Source::Safetensors(file) = &*self.file else {
            candle_core::bail!("{} is in no safetensors file", self.name)
        };
        let (Some(bytes), Some([rows, columns])) =
            (file.bytes(&self.name), file.rows_and_columns(&self.name))
        else {
            candle_core::bail!("no tensor {}", self.name)
        };
        let (bits, first) = self.stretch(Cow::Borrowed(bytes), rows, columns)?;
        Ok((bits, first, columns))
    }

    /// The piece's rows as they are quantized.
    fn blocks(&self, dtype: GgmlDType) -> candle_core::Result<Cow<'_, [u8]>> {
        if let Some(scaled) = &self.scaled {
            let (bits, first, row) = self.bits()?;
            let blocks = scaled.blocks(&bits, first, row * scaled.in_byte());
            return blocks.map(Cow::Owned).map_err(|e| self.named(e));
        }
        let (Source::Gguf(file), Some(shape)) = (&*self.file, self.file.shape(&self.name)) else {
            candle_core::bail!("{} is not quantized", self.name)
        };
        let [rows, columns] = shape[..] else {
            candle_core::bail!("{} is not a matrix", self.name)
        };
        let row = columns / dtype.block_size() * dtype.type_size();
        let (blocks, _) = self.stretch(file.bytes(&self.name)?, rows, row)?;
        Ok(blocks)
    }

    /// An error about this piece.
    fn named(&self, error: candle_core::Error) -> candle_core::Error {
        candle_core::Error::msg(format!("{}: {error}", self.name))
    }

    fn shape(&self) -> Option<Vec<usize>> {
        let mut shape = self.stored_shape()?;
        if self.transposed {
            shape.reverse();
        }
        Some(shape)
    }

    /// Shape before it is transposed.
    fn stored_shape(&self) -> Option<Vec<usize>> {
        let mut shape = self.file.shape(&self.name)?;
        if let (Some(scaled), Some(last)) = (&self.scaled, shape.last_mut()) {
            *last = last.saturating_mul(scaled.in_byte());
        }
        if let (Some((_, rows)), Some(first)) = (self.rows, shape.first_mut()) {
            *first = rows;
        }
        Some(shape)
    }

    /// As a tensor; floating-point numbers as `dtype`.
    fn load(&self, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        let mut tensor = match (&self.scaled, self.stored_shape()) {
            (Some(scaled), Some(shape)) => {
                let (bits, first, row) = self.bits()?;
                let values = scaled.values(&bits, first, row * scaled.in_byte());
                let values = values.map_err(|e| self.named(e))?;
                let values = Tensor::from_vec(values, shape, &Device::Cpu)?;
                values.to_dtype(dtype)?.to_device(device)?
            }
            _ => {
                let mut tensor = self.file.load(&self.name, device)?;
                if let Some((first, rows)) = self.rows {
                    tensor = tensor.narrow(0, first, rows)?.force_contiguous()?;
                }
                match tensor.dtype().is_float() {
                    true => tensor.to_dtype(dtype)?,
                    false => tensor,
                }
            }
        };
        if self.transposed {
            tensor = tensor.t()?.force_contiguous()?;
        }
        Ok(tensor)
    }
}
