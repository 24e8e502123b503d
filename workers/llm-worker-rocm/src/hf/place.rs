//! A tensor as GGUF has it, and what of the files it is made of.

use super::change::Change;
use super::files::{bytes_of, Files, Source};
use super::quantized::Matrix;
use super::tensors::{floats, interleave};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use worker::gguf::{Format, SharedBytes, TensorInfo};

/// Where the rows of a tensor, or of one expert's, come from.
#[derive(Clone)]
pub(super) enum Origin {
    /// They lie in a file.
    File(Source),
    /// They are made, in the format of the place.
    Matrix(Arc<Matrix>),
}

/// See the module.
pub(super) struct Place {
    /// One for each expert, or just one.
    pub origins: BTreeMap<u32, Origin>,
    /// In which rows come from there.
    pub format: Format,
    /// Shape there, outermost first, of one expert.
    pub shape: Vec<usize>,
    /// Heads whose rows are to be reordered.
    pub heads: Option<u32>,
    /// Whether the experts are stacked.
    pub stacked: bool,
    /// Added to each element.
    pub plus_one: bool,
    /// What becomes of it, if it does not stay as it is.
    pub change: Option<Change>,
}

impl Place {
    /// Vectors are float32 in GGUF files.
    fn as_floats(&self) -> bool {
        self.shape.len() == 1
    }

    /// Bytes that each origin gives.
    fn origin_bytes(&self) -> usize {
        bytes_of(self.format, self.shape.iter().product())
    }

    /// Whether bytes are not those that come from the origins.
    fn is_changed(&self) -> bool {
        let moved = self.change.is_some() || self.heads.is_some();
        moved || self.as_floats() || self.plus_one
    }

    /// The tensor in GGUF's terms.
    pub(super) fn info(&self) -> TensorInfo {
        if let Some(change) = &self.change {
            return change.info(self.format, &self.shape);
        }
        let format = match self.as_floats() {
            true => Format::F32,
            false => self.format,
        };
        let mut dims: Vec<u64> = self.shape.iter().rev().map(|&d| d as u64).collect();
        if self.stacked {
            dims.push(self.origins.len() as u64);
        }
        let elements = self.shape.iter().product::<usize>() * self.origins.len();
        TensorInfo {
            format,
            offset: 0,
            dims,
            bytes: bytes_of(format, elements) as u64,
        }
    }

    /// The tensor's bytes.
    pub(super) fn bytes<'a>(&self, files: &'a Files) -> Result<Cow<'a, [u8]>, String> {
        let mut origins = self.origins.values();
        let data = match (origins.next(), origins.next()) {
            // The format does not promise alignment; fresh memory has it.
            (Some(Origin::File(only)), None) if only.start % 4 == 0 => {
                Cow::Borrowed(files.bytes(*only))
            }
            _ => {
                let size = self.origin_bytes() * self.origins.len();
                #[allow(clippy::single_range_in_vec_init)]
                Cow::Owned(self.parts_of_origins(files, &[0..size])?)
            }
        };
        if let Some(change) = &self.change {
            return Ok(Cow::Owned(change.apply(&data, self.format, &self.shape)));
        }
        let data = match self.heads {
            Some(heads) => Cow::Owned(interleave(&data, self.shape[0], heads as usize)),
            None => data,
        };
        if self.as_floats() && (self.format != Format::F32 || self.plus_one) {
            let added = if self.plus_one { 1.0 } else { 0.0 };
            return Ok(Cow::Owned(floats(&data, self.format, added)));
        }
        Ok(data)
    }

    /// Some bytes of a tensor that lies in several pieces, or is made; none of others.
    pub(super) fn parts(
        &self,
        files: &Files,
        ranges: &[Range<usize>],
    ) -> Option<Result<Vec<u8>, String>> {
        let first = self.origins.values().next()?;
        let pieces = self.origins.len() > 1 || matches!(first, Origin::Matrix(_));
        (pieces && !self.is_changed()).then(|| self.parts_of_origins(files, ranges))
    }

    /// Some of the bytes that come from the origins, which ascend and lie behind each other.
    fn parts_of_origins(&self, files: &Files, ranges: &[Range<usize>]) -> Result<Vec<u8>, String> {
        let mut parts = vec![0; ranges.iter().map(|range| range.len()).sum()];
        let size = self.origin_bytes();
        // What to write, from where, and which of its bytes.
        let mut pieces = Vec::new();
        let mut rest = &mut parts[..];
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let index = start / size;
                let end = range.end.min((index + 1) * size);
                let (piece, behind) = rest.split_at_mut(end - start);
                pieces.push((piece, index, start - index * size..end - index * size));
                rest = behind;
                start = end;
            }
        }
        let origins: Vec<&Origin> = self.origins.values().collect();
        let pieces = pieces.into_par_iter();
        pieces.try_for_each(|(out, index, bytes)| match origins[index] {
            Origin::File(source) => {
                out.copy_from_slice(&files.bytes(*source)[bytes]);
                Ok(())
            }
            Origin::Matrix(matrix) => matrix.make_bytes(files, self.format, bytes, out),
        })?;
        Ok(parts)
    }

    /// The tensor where it lies, if it is in a file as GGUF has it.
    pub(super) fn shared(&self, files: &Files) -> Option<SharedBytes> {
        let mut origins = self.origins.values();
        match (origins.next(), origins.next()) {
            (Some(Origin::File(only)), None) if !self.is_changed() => {
                let range = only.start..only.start + only.bytes;
                Some(SharedBytes::of_map(&files.maps[only.shard], range))
            }
            _ => None,
        }
    }

    /// What of the files it is made of.
    pub(super) fn sources(&self) -> impl Iterator<Item = Source> + '_ {
        self.origins.values().flat_map(|origin| match origin {
            Origin::File(source) => vec![*source],
            Origin::Matrix(matrix) => matrix.sources.clone(),
        })
    }
}
