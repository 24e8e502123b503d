//! Operations that read: gather, of which index_select is a case.

use super::{besides, check_operand, id_type, Along, Indexing, ROW_BYTES};
use crate::ops::collapse;
use crate::ops::copy::{address, check_count, piece_bytes};
use crate::{Args, Buffer, Device, IndexOp, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Threads of a block of `gather_rows`.
const GATHER_BLOCK: u32 = 256;
/// Ids of a row that occupy such a block, eight for each thread, and rows that occupy a GPU.
const ENOUGH_IDS: usize = 2048;
const ENOUGH_ROWS: usize = 128;

/// The common part of the operations that read. `dims` and `id_strides` are those of the result and of the ids spread over it.
pub(super) fn read(
    device: &Device,
    op: IndexOp,
    src: &View,
    ids: &View,
    dims: &[usize],
    id_strides: &[usize],
    dim: usize,
) -> Result<Buffer> {
    let name = op.as_str();
    check_operand(op, src)?;
    check_operand(op, ids)?;
    let id_type = id_type(op, ids.dtype)?;
    let n: usize = dims.iter().product();
    let size = src.dtype.size_in_bytes();
    let dst = device.alloc(n.saturating_mul(size))?;
    if n == 0 {
        return Ok(dst);
    }
    // Rows come whole if a good part of them is asked for.
    let (count, row) = (dims[dim], src.dims[dim]);
    let dense = src.strides[dim] == 1 && dims[dim + 1..].iter().all(|&d| d == 1);
    let fits = row * size <= ROW_BYTES && row <= 4 * count && n <= u32::MAX as usize;
    if dense && fits && count >= ENOUGH_IDS && n / count >= ENOUGH_ROWS {
        return gather_rows(device, op, src, ids, dims, id_strides, dim, dst);
    }
    let mut src_strides = src.strides.to_vec();
    src_strides[dim] = 0;
    let layout = collapse(name, dims, [&src_strides, id_strides])?;
    let (mut dims, [mut src_strides, id_strides]) = (layout.dims, layout.strides);
    let mut stride = src.strides[dim];

    // Whole rows per index move in pieces of up to 16 bytes.
    let from = src.offset * size;
    let mut piece = size;
    let last = dims.rank as usize - 1;
    if src_strides.s[last] == 1 && id_strides.s[last] == 0 {
        let bytes = |elements: u32| elements as usize * size;
        let places = [
            address(src.buffer, from),
            address(&dst, 0),
            bytes(dims.size[last]),
            stride * size,
        ];
        let steps = src_strides.s[..last].iter().copied().map(bytes);
        piece = piece_bytes(places.into_iter().chain(steps));
        dims.size[last] = (bytes(dims.size[last]) / piece) as u32;
        for stride in &mut src_strides.s[..last] {
            *stride = (bytes(*stride) / piece) as u32;
        }
        stride = stride * size / piece;
    }
    let pieces = n * size / piece;
    check_count(name, pieces)?;
    let indexing = Indexing {
        op: op as u32,
        id_type,
        size: src.dims[dim] as u32,
        stride: stride as u32,
    };
    device
        .kernel(Family::Indexing, &format!("gather_b{}", piece * 8))?
        .launch(
            LaunchConfig::for_elements(pieces),
            &Args::new()
                .ptr(src.buffer, from)
                .ptr(&dst, 0)
                .ptr(ids.buffer, ids.offset * ids.dtype.size_in_bytes())
                .ptr(&device.error_word(), 0)
                .u64(pieces as u64)
                .value(&indexing)
                .value(&dims)
                .value(&src_strides)
                .value(&id_strides),
        )?;
    Ok(dst)
}

/// Fills `dst` by [`read`], a row of `src` in LDS at a time.
#[allow(clippy::too_many_arguments)]
fn gather_rows(
    device: &Device,
    op: IndexOp,
    src: &View,
    ids: &View,
    dims: &[usize],
    id_strides: &[usize],
    dim: usize,
    dst: Buffer,
) -> Result<Buffer> {
    let along = Along {
        count: dims[dim] as u32,
        id_stride: id_strides[dim] as u32,
        src_stride: 1,
    };
    let dst_strides = crate::contiguous_strides(dims);
    let layout = besides(op, dim, dims, [&dst_strides, src.strides, id_strides])?;
    let [dst_strides, src_strides, id_strides] = layout.strides;
    let rows = dims.iter().product::<usize>() / dims[dim];
    let indexing = Indexing {
        op: op as u32,
        id_type: id_type(op, ids.dtype)?,
        size: src.dims[dim] as u32,
        stride: 1,
    };
    let size = src.dtype.size_in_bytes();
    device
        .kernel(Family::IndexingRows, &format!("gather_rows_b{}", size * 8))?
        .launch(
            LaunchConfig {
                grid: rows.min(LaunchConfig::MAX_GRID as usize) as u32,
                block: GATHER_BLOCK,
                shared_bytes: 0,
            },
            &Args::new()
                .ptr(src.buffer, src.offset * size)
                .ptr(&dst, 0)
                .ptr(ids.buffer, ids.offset * ids.dtype.size_in_bytes())
                .ptr(&device.error_word(), 0)
                .u32(rows as u32)
                .value(&indexing)
                .value(&along)
                .value(&layout.dims)
                .value(&dst_strides)
                .value(&src_strides)
                .value(&id_strides),
        )?;
    Ok(dst)
}
