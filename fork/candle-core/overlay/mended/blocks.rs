//! Blocks of quantized tensors from the bytes of files that are not trusted.

use std::borrow::Cow;
use std::io::Read;

use crate::quantized::{GgmlDType, GgmlType};
use crate::Result;

/// Number of elements of a tensor with these dimensions.
///
/// # Errors
/// If it does not fit.
pub(crate) fn elem_count(dims: &[usize]) -> Result<usize> {
    let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    match count {
        Some(count) => Ok(count),
        None => {
            crate::bail!("a tensor of dimensions {dims:?} has more elements than can be counted")
        }
    }
}

/// Bytes that such a tensor takes in a file.
///
/// # Errors
/// If they do not fit.
pub(crate) fn size_in_bytes(dtype: GgmlDType, dims: &[usize]) -> Result<usize> {
    let blocks = elem_count(dims)? / dtype.block_size();
    match blocks.checked_mul(dtype.type_size()) {
        Some(size) => Ok(size),
        None => crate::bail!("a tensor of dimensions {dims:?} has more bytes than can be counted"),
    }
}

/// `len` bytes; memory grows with what is really there.
///
/// # Errors
/// If there are fewer.
pub(crate) fn read<R: Read>(reader: &mut R, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        crate::bail!("the file ends after {} of {len} bytes", bytes.len())
    }
    Ok(bytes)
}

/// The first `size` of at least as many bytes as blocks, copied if they are not aligned as blocks are.
pub(crate) fn of_bytes<T: GgmlType>(bytes: &[u8], size: usize) -> Cow<'_, [T]> {
    let bytes = &bytes[..size];
    let count = size / std::mem::size_of::<T>();
    let first = bytes.as_ptr().cast::<T>();
    if first.is_aligned() {
        // SAFETY: aligned, within `bytes`, and blocks are plain numbers, of which every bit pattern is a value.
        return Cow::Borrowed(unsafe { std::slice::from_raw_parts(first, count) });
    }
    let mut blocks = Vec::<T>::with_capacity(count);
    // SAFETY: `blocks` has room for `count` blocks and does not overlap `bytes`; blocks are plain numbers as above.
    unsafe {
        let target = blocks.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, count * std::mem::size_of::<T>());
        blocks.set_len(count);
    }
    Cow::Owned(blocks)
}

/// The bytes of blocks.
pub(crate) fn bytes<T: GgmlType>(blocks: &[T]) -> &[u8] {
    // SAFETY: blocks are plain numbers without padding, all of whose bytes are initialised.
    unsafe { std::slice::from_raw_parts(blocks.as_ptr().cast(), std::mem::size_of_val(blocks)) }
}
