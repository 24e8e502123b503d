//! Copies between layouts of the same element type.

use super::{collapse, Dims, Strides};
use crate::kernels::{kernels, Ptr};
use crate::pinned::Pinned;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::copy::{TILE_WORDS, TRANSPOSE_BLOCK};

kernels! {
    /// Any layout, gathered into a contiguous one, in pieces of so many bits.
    gather_pieces = "copy_b{bits}" [bits: u32 = [8, 16, 32, 64, 128]] in Family::Copy
        => (src: Ptr, dst: Ptr, n: u64, dims: Dims, strides: Strides);

    /// Rows of `columns` pieces.
    copy_rows = "copy2d_b{bits}" [bits: u32 = [8, 16, 32, 64, 128]] in Family::Copy
        => (src: Ptr, dst: Ptr, n: u32, columns: u32, src_stride: u64, dst_stride: u64);

    /// Matrices of which the source has the columns dense and the destination the rows.
    transpose = "transpose_b{bits}" [bits: u32 = [8, 16, 32, 64]] in Family::Copy
        => (src: Ptr, dst: Ptr, rows: u32, columns: u32, src_column_stride: u32, dst_row_stride: u32, batch: u32,
            dims: Dims, src_strides: Strides, dst_strides: Strides);

    /// Words from memory that host and device reach.
    copy_words = "copy_words" in Family::Copy => (src: Ptr, dst: Ptr, n: u32);

    /// The error word and words behind it into such memory.
    copy_answer = "copy_answer" in Family::Copy => (src: Ptr, error: Ptr, dst: Ptr, n: u32);
}

const OP: &str = "copy";

/// Shorter sides than this leave most of a tile idle; the plain strided kernel is used for them.
const MIN_TRANSPOSED_SIDE: u32 = 8;

/// Enqueues reading `n` words of the host's memory from byte `from_offset` into `to`, from byte `to_offset`.
///
/// # Safety
/// Both sides have room for the words, and the host leaves them alone until the device is done.
pub(super) unsafe fn read_words(
    device: &Device,
    (from, from_offset): (&Pinned, usize),
    (to, to_offset): (&Buffer, usize),
    n: u32,
) -> Result<()> {
    let (from, to) = (Ptr::pinned(from, from_offset), Ptr::at(to, to_offset));
    let config = LaunchConfig::for_elements(n as usize);
    // SAFETY: as the caller promises.
    unsafe { copy_words::of()?.launch(device, config, from, to, n) }
}

/// Enqueues writing the device's error word and behind it `n` words of `from` into the host's memory. The error word is
/// zero from then on, and need not be fetched.
///
/// # Safety
/// `from` has `n` words, and the host's memory room for them and the error word; it stays until the device is done, in
/// each launch of a graph that this is recorded in.
pub(super) unsafe fn write_answer(
    device: &Device,
    from: &Buffer,
    to: &Pinned,
    n: u32,
) -> Result<()> {
    let (config, word) = (LaunchConfig::for_elements(1), device.error_word());
    let (from, error, to) = (Ptr::to(from), Ptr::to(&word), Ptr::pinned(to, 0));
    // SAFETY: as the caller promises.
    unsafe { copy_answer::of()?.launch(device, config, from, error, to, n)? };
    device.error_state().set_armed(false);
    Ok(())
}

/// Copies `src` in row-major order to `dst`, from element `dst_offset` on.
///
/// # Errors
/// [`Error::InvalidView`], [`Error::OutOfBounds`], [`Error::TooLarge`] for a strided view that spans 2^32 elements or
/// more.
pub fn copy_strided(device: &Device, src: &View, dst: &Buffer, dst_offset: usize) -> Result<()> {
    src.check(OP)?;
    let size = src.dtype.size_in_bytes();
    let n = src.elem_count();
    dst.check_range(OP, dst_offset.saturating_mul(size), n.saturating_mul(size))?;
    if n == 0 {
        return Ok(());
    }
    let (from, to) = (src.offset * size, dst_offset * size);
    if src.is_contiguous() {
        return device.copy(src.buffer, from, dst, to, n * size);
    }
    let layout = collapse(OP, src.dims, [src.strides])?;
    let strides = &layout.strides[0];
    let last = layout.dims.rank as usize - 1;
    if strides.s[last] == 1 && last == 1 {
        let [rows, columns] = [layout.dims.size[0], layout.dims.size[1]].map(|d| d as usize);
        let stride = strides.s[0] as usize;
        return copy2d(
            device, src.dtype, src.buffer, dst, rows, columns, stride, columns, src.offset,
            dst_offset,
        );
    }
    if let Some(matrices) = Transpose::find(&layout.dims, strides) {
        return matrices.launch(device, size, Ptr::of(src), Ptr::at(dst, to));
    }
    let (mut dims, mut strides) = (layout.dims, *strides);
    let mut piece = size;
    if strides.s[last] == 1 {
        let bytes = |elements: u32| elements as usize * size;
        let places = [
            address(src.buffer, from),
            address(dst, to),
            bytes(dims.size[last]),
        ];
        let steps = strides.s[..last].iter().copied().map(bytes);
        piece = piece_bytes(places.into_iter().chain(steps));
        dims.size[last] = (bytes(dims.size[last]) / piece) as u32;
        for stride in &mut strides.s[..last] {
            *stride = (bytes(*stride) / piece) as u32;
        }
    }
    let pieces = n * size / piece;
    check_count(OP, pieces)?;
    let kernel = gather_pieces::of(8 * piece as u32)?;
    // SAFETY: the view was checked, and the destination has room for its elements.
    unsafe {
        kernel.launch(
            device,
            LaunchConfig::for_elements(pieces),
            Ptr::of(src),
            Ptr::at(dst, to),
            pieces as u64,
            dims,
            strides,
        )
    }
}

/// Copies `d1` rows of `d2` contiguous elements. Row `i` moves from element `src_offset + i * src_stride1` of `src` to
/// element `dst_offset + i * dst_stride1` of `dst`.
///
/// # Errors
/// [`Error::OutOfBounds`] if a row leaves its buffer, [`Error::InvalidArgument`] if rows overlap in `dst`.
#[allow(clippy::too_many_arguments)] // candle's signature
pub fn copy2d(
    device: &Device,
    dtype: DType,
    src: &Buffer,
    dst: &Buffer,
    d1: usize,
    d2: usize,
    src_stride1: usize,
    dst_stride1: usize,
    src_offset: usize,
    dst_offset: usize,
) -> Result<()> {
    if d1 == 0 || d2 == 0 {
        return Ok(());
    }
    let size = dtype.size_in_bytes();
    let bytes = |elements: usize| elements.saturating_mul(size);
    let reach = |stride: usize| bytes((d1 - 1).saturating_mul(stride).saturating_add(d2));
    src.check_range(OP, bytes(src_offset), reach(src_stride1))?;
    dst.check_range(OP, bytes(dst_offset), reach(dst_stride1))?;
    let (from, to) = (bytes(src_offset), bytes(dst_offset));
    if d1 == 1 || (src_stride1 == d2 && dst_stride1 == d2) {
        return device.copy(src, from, dst, to, bytes(d1 * d2));
    }
    if dst_stride1 < d2 {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("rows of {d2} elements would overlap: they are written {dst_stride1} elements apart"),
        });
    }
    let (row, src_step, dst_step) = (bytes(d2), bytes(src_stride1), bytes(dst_stride1));
    let piece = piece_bytes([
        address(src, from),
        address(dst, to),
        row,
        src_step,
        dst_step,
    ]);
    let columns = row / piece;
    // The kernel counts pieces in 32 bits.
    let rows_at_once = u32::MAX as usize / columns;
    if rows_at_once == 0 {
        return (0..d1)
            .try_for_each(|i| device.copy(src, from + i * src_step, dst, to + i * dst_step, row));
    }
    let kernel = copy_rows::of(8 * piece as u32)?;
    (0..d1).step_by(rows_at_once).try_for_each(|first| {
        let pieces = (d1 - first).min(rows_at_once) * columns;
        // SAFETY: both sides were checked to have the rows.
        unsafe {
            kernel.launch(
                device,
                LaunchConfig::for_elements(pieces),
                Ptr::at(src, from + first * src_step),
                Ptr::at(dst, to + first * dst_step),
                pieces as u32,
                columns as u32,
                (src_step / piece) as u64,
                (dst_step / piece) as u64,
            )
        }
    })
}

/// A row-major copy of `src` in a new buffer.
///
/// # Errors
/// Those of [`copy_strided`], and [`Error::OutOfMemory`].
pub fn contiguous(device: &Device, src: &View) -> Result<Buffer> {
    src.check(OP)?;
    let dst = device.alloc(src.elem_count().saturating_mul(src.dtype.size_in_bytes()))?;
    copy_strided(device, src, &dst, 0)?;
    Ok(dst)
}

/// Batches of matrices of which the source has the columns dense and the destination the rows.
struct Transpose {
    rows: u32,
    columns: u32,
    src_column_stride: u32,
    dst_row_stride: u32,
    batch: Dims,
    batch_src: Strides,
    batch_dst: Strides,
}

impl Transpose {
    /// Looks for a dimension other than the last that is dense in the source.
    fn find(dims: &Dims, strides: &Strides) -> Option<Self> {
        let last = dims.rank as usize - 1;
        let columns = dims.size[last];
        let dense =
            (0..last).find(|&d| strides.s[d] == 1 && dims.size[d] >= MIN_TRANSPOSED_SIDE)?;
        if columns < MIN_TRANSPOSED_SIDE || strides.s[last] <= 1 {
            return None;
        }
        let mut found = Transpose {
            rows: dims.size[dense],
            columns,
            src_column_stride: strides.s[last],
            dst_row_stride: 0,
            batch: Dims::default(),
            batch_src: Strides::default(),
            batch_dst: Strides::default(),
        };
        let others: Vec<usize> = (0..last).filter(|&d| d != dense).collect();
        found.batch.rank = others.len() as u32;
        let dst_stride = |d: usize| {
            u32::try_from(
                dims.size[d + 1..=last]
                    .iter()
                    .map(|&s| s as u64)
                    .product::<u64>(),
            )
            .ok()
        };
        found.dst_row_stride = dst_stride(dense)?;
        for (to, &d) in others.iter().enumerate() {
            found.batch.size[to] = dims.size[d];
            found.batch_src.s[to] = strides.s[d];
            found.batch_dst.s[to] = dst_stride(d)?;
        }
        Some(found)
    }

    fn launch(&self, device: &Device, size: usize, src: Ptr, dst: Ptr) -> Result<()> {
        let batch: u32 = self.batch.size[..self.batch.rank as usize].iter().product();
        let tile = TILE_WORDS as usize * if size <= 4 { 2 } else { 1 };
        let tiles = [self.rows, self.columns]
            .map(|side| (side as usize).div_ceil(tile))
            .into_iter()
            .product::<usize>()
            .saturating_mul(batch as usize);
        let config = LaunchConfig {
            grid: tiles.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: TRANSPOSE_BLOCK,
            shared_bytes: 0,
        };
        // SAFETY: the caller's view was checked, and the destination has room for its elements.
        unsafe {
            transpose::of(8 * size as u32)?.launch(
                device,
                config,
                src,
                dst,
                self.rows,
                self.columns,
                self.src_column_stride,
                self.dst_row_stride,
                batch,
                self.batch,
                self.batch_src,
                self.batch_dst,
            )
        }
    }
}

/// Device address of a byte of a buffer.
pub(super) fn address(buffer: &Buffer, byte_offset: usize) -> usize {
    buffer.as_ptr() as usize + byte_offset
}

/// The largest piece, of 1 to 16 bytes, that all the given addresses and distances in bytes are multiples of.
pub(super) fn piece_bytes(quantities: impl IntoIterator<Item = usize>) -> usize {
    1 << quantities
        .into_iter()
        .fold(16, |all, q| all | q)
        .trailing_zeros()
}

/// Kernels that walk strides count elements in 32 bits.
pub(super) fn check_count(op: &'static str, n: usize) -> Result<()> {
    let limit = u32::MAX as usize;
    if n <= limit {
        return Ok(());
    }
    Err(Error::TooLarge {
        op,
        what: "number of elements",
        value: n,
        limit,
    })
}

#[cfg(test)]
mod tests {
    use super::piece_bytes;

    #[test]
    fn pieces_divide_everything() {
        assert_eq!(piece_bytes([0, 32, 48]), 16);
        assert_eq!(piece_bytes([0, 32, 40]), 8);
        assert_eq!(piece_bytes([4096, 6]), 2);
        assert_eq!(piece_bytes([4096, 7]), 1);
    }
}
