//! Rows of quantized tables.

use super::format::DeviceFormat;
use super::matrix::{check_u32, QuantizedMatrix};
use super::matvec::result_bytes;
use super::{Format, QUANTIZED};
use crate::kernels::{kernels, Ptr};
use crate::ops::cast::cast;
use crate::ops::copy::contiguous;
use crate::ops::indexing::index_select;
use crate::{Buffer, DType, Device, Error, Family, IndexOp, LaunchConfig, Result, View};

kernels! {
    /// A thread for each group of a row; `op` is the operation's number in an IndexError.
    read_rows = "embedding_{format}" [format: Format = QUANTIZED] in Family::QuantizedEmbedding
        => (rows: u32, groups: u32, count: u64, op: u32, table: Ptr, ids: Ptr, error: Ptr, y: Ptr);
}

/// Consecutive elements that one thread of the kernels handles.
const GROUP: usize = 8;

/// The rows of `table` that the u32 `ids`, of any shape, name: f32 `[ids..., cols]`. Only those rows are read.
///
/// An id of `u32::MAX` gives zeros. Any other id out of range does the same, and the next call that waits for the
/// device fails with [`Error::IndexOutOfRange`].
///
/// # Errors
/// [`Error::UnsupportedDType`] for other ids, [`Error::OutOfBounds`], [`Error::TooLarge`].
pub fn embedding(device: &Device, table: &QuantizedMatrix, ids: &View) -> Result<Buffer> {
    const OP: &str = "quantized embedding";
    table.check(OP)?;
    ids.check(OP)?;
    if ids.dtype != DType::U32 {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: ids.dtype,
        });
    }
    let count = ids.elem_count();
    let packed = contiguous(device, ids)?;
    if let Some(dtype) = table.format.plain() {
        let (id_dims, dims, strides) = ([count], [table.rows, table.cols], [table.cols, 1]);
        let ids = View::contiguous(&packed, DType::U32, &id_dims, &[1]);
        let rows = View {
            buffer: table.buffer,
            dtype,
            offset: table.offset / dtype.size_in_bytes(),
            dims: &dims,
            strides: &strides,
        };
        let chosen = index_select(device, &rows, &ids, 0)?;
        let (dims, strides) = ([count, table.cols], [table.cols, 1]);
        let chosen = View::contiguous(&chosen, dtype, &dims, &strides);
        return cast(device, &chosen, DType::F32);
    }
    check_u32(OP, "row count", table.rows)?;
    let y = device.alloc(result_bytes(OP, (count, table.cols), DType::F32)?)?;
    if y.is_empty() {
        return Ok(y);
    }
    let groups = table.cols / GROUP;
    // SAFETY: the table was checked, ids are dense, and there is room for their rows.
    unsafe {
        read_rows::of(table.format)?.launch(
            device,
            LaunchConfig::for_elements(count * groups),
            table.rows as u32,
            groups as u32,
            (count * groups) as u64,
            IndexOp::IndexSelect as u32,
            Ptr::at(table.buffer, table.offset),
            Ptr::to(&packed),
            Ptr::to(&device.error_word()),
            Ptr::to(&y),
        )?;
    }
    Ok(y)
}
