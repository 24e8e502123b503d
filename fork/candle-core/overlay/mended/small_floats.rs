//! The formats that candle stores and does not compute with: f4, f6e2m3 and f6e3m2, whose elements are packed without
//! gaps, and f8e8m0.

use crate::{CpuStorage, DType, Device, Error, Layout, Result, Storage, Tensor};

/// Bits of an element of these formats.
pub(crate) fn bits(dtype: DType) -> Option<usize> {
    match dtype {
        DType::F4 => Some(4),
        DType::F6E2M3 | DType::F6E3M2 => Some(6),
        DType::F8E8M0 => Some(8),
        _ => None,
    }
}

/// An error for the formats whose elements are parts of bytes, which no operation addresses.
pub(crate) fn check_addressable(dtype: DType, op: &'static str) -> Result<()> {
    match bits(dtype) {
        Some(bits) if bits < 8 => Err(Error::UnsupportedDTypeForOp(dtype, op).bt()),
        _ => Ok(()),
    }
}

/// Bytes that `count` elements of these formats take.
pub(crate) fn stored_bytes(dtype: DType, count: usize) -> Option<usize> {
    bits(dtype).map(|bits| (count * bits).div_ceil(8))
}

/// An error if the tensor is of these formats and its elements are not a range of whole bytes.
pub(crate) fn check_saved(tensor: &Tensor) -> Result<()> {
    match bits(tensor.dtype()) {
        Some(bits) => byte_range(tensor.layout(), bits, tensor.dtype()).map(|_| ()),
        None => Ok(()),
    }
}

/// The bytes of a tensor of these formats.
pub(crate) fn bits_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let dtype = tensor.dtype();
    let Some(bits) = bits(dtype) else {
        return Err(Error::UnsupportedDTypeForOp(dtype, "stored bits").bt());
    };
    let range = byte_range(tensor.layout(), bits, dtype)?;
    let tensor = tensor.to_device(&Device::Cpu)?;
    let (storage, _) = tensor.storage_and_layout();
    use CpuStorage::{F4, F6E2M3, F6E3M2, F8E8M0};
    let stored = match &*storage {
        Storage::Cpu(F4(v) | F6E2M3(v) | F6E3M2(v) | F8E8M0(v)) => v.get(range),
        _ => None,
    };
    match stored {
        Some(bytes) => Ok(bytes.to_vec()),
        None => crate::bail!(
            "a tensor {:?} of {dtype:?} does not hold its elements",
            tensor.dims()
        ),
    }
}

fn byte_range(layout: &Layout, bits: usize, dtype: DType) -> Result<std::ops::Range<usize>> {
    let range = layout
        .contiguous_offsets()
        .map(|(start, end)| start * bits..end * bits);
    match range {
        Some(range) if range.start % 8 == 0 && range.end % 8 == 0 => {
            Ok(range.start / 8..range.end / 8)
        }
        _ => crate::bail!(
            "a view {:?} of {dtype:?} that has gaps, or begins or ends within a byte, cannot be saved",
            layout.dims()
        ),
    }
}
