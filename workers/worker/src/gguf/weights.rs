//! Models on disk, whatever their format, seen in GGUF's terms.

use super::{Gguf, SharedBytes, TensorInfo};
use crate::{Error, Result};
use candle_core::quantized::{QStorage, QTensor};
use candle_core::Device;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// A checked model: metadata and tensor table at hand, data on demand.
pub trait Weights: Send + Sync {
    /// Where it is.
    fn path(&self) -> &Path;

    /// Metadata and tensor table.
    fn header(&self) -> &Gguf;

    /// The blocks of a tensor of the table, aligned for its type.
    fn bytes(&self, name: &str, info: &TensorInfo) -> Cow<'_, [u8]>;

    /// The same where they lie, for as long as somebody holds them; none of a tensor that lies nowhere as it is.
    fn shared(&self, name: &str, info: &TensorInfo) -> Option<SharedBytes> {
        let _ = (name, info);
        None
    }

    /// Some of the bytes that [`Weights::bytes`] gives, ascending and behind each other. The others are not read where
    /// that can be.
    fn parts(&self, name: &str, info: &TensorInfo, ranges: &[Range<usize>]) -> Cow<'_, [u8]> {
        parts_of(self.bytes(name, info), ranges)
    }

    /// Some of the bytes that [`Weights::shared`] gives.
    fn shared_part(
        &self,
        name: &str,
        info: &TensorInfo,
        range: Range<usize>,
    ) -> Option<SharedBytes> {
        self.shared(name, info).map(|all| all.slice(range))
    }

    /// Lets the system drop the pages of a tensor that will not be read again soon.
    fn give_back(&self, name: &str, info: &TensorInfo);

    /// Whether nothing was wrong with what has been read so far, where that is seen only by reading: bytes that were
    /// given before are of no use otherwise.
    ///
    /// # Errors
    /// [`Error::BadModel`] with what was wrong first.
    fn intact(&self) -> Result<()> {
        Ok(())
    }
}

/// Some of these bytes behind each other, where they are if they are one piece.
pub fn parts_of<'a>(all: Cow<'a, [u8]>, ranges: &[Range<usize>]) -> Cow<'a, [u8]> {
    match (all, ranges) {
        (Cow::Borrowed(all), [one]) => Cow::Borrowed(&all[one.clone()]),
        (all, ranges) => {
            let mut parts = Vec::with_capacity(ranges.iter().map(|range| range.len()).sum());
            for range in ranges {
                parts.extend_from_slice(&all[range.clone()]);
            }
            Cow::Owned(parts)
        }
    }
}

/// Loads a tensor, outermost dimension first as candle has it.
///
/// # Errors
/// [`Error::BadModel`] if there is no such tensor or candle does not compute with its type, [`Error::Candle`] if the
/// device has no room.
pub fn load(weights: &dyn Weights, name: &str, device: &Device) -> Result<QTensor> {
    let bad = |reason: String| Error::BadModel {
        path: weights.path().to_path_buf(),
        reason,
    };
    let info = weights
        .header()
        .tensor(name)
        .ok_or_else(|| bad(format!("tensor {name} is missing")))?;
    let dtype = info
        .dtype()
        .map_err(|unsupported| bad(format!("tensor {name}: {unsupported}")))?;
    let dims: Vec<usize> = info.dims.iter().rev().map(|&d| d as usize).collect();
    let loaded = QStorage::from_data(weights.bytes(name, info), device, dtype)
        .and_then(|storage| QTensor::new(storage, dims));
    weights.give_back(name, info);
    weights.intact()?;
    loaded.map_err(Error::candle("loading the model"))
}
