//! Operations that read: gather, of which index_select is a case.

use super::tuning::{ENOUGH_IDS, WORTH};
use super::{besides, check_operand, id_type, Along, Indexing, ROW_BYTES};
use crate::kernels::{kernels, Ptr};
use crate::ops::copy::{address, check_count, piece_bytes};
use crate::ops::{collapse, Dims, Strides};
use crate::{Buffer, Device, Family, IndexOp, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::indexing::GATHER_BLOCK;

kernels! {
    /// A thread for each piece of so many bits.
    gather_pieces = "gather_b{bits}" [bits: u32 = [8, 16, 32, 64, 128]] in Family::Indexing
        => (src: Ptr, dst: Ptr, ids: Ptr, error: Ptr, n: u64, indexing: Indexing, dims: Dims, src_strides: Strides,
            id_strides: Strides);

    /// A block for each row of elements of so many bits.
    gather_rows = "gather_rows_b{bits}" [bits: u32 = [8, 16, 32, 64]] in Family::IndexingRows
        => (src: Ptr, dst: Ptr, ids: Ptr, error: Ptr, columns: u32, indexing: Indexing, along: Along, dims: Dims,
            dst_strides: Strides, src_strides: Strides, id_strides: Strides);
}

/// The common part of the operations that read.
pub(super) struct Gather<'a> {
    pub(super) op: IndexOp,
    pub(super) src: &'a View<'a>,
    pub(super) ids: &'a View<'a>,
    /// Of the result.
    pub(super) dims: &'a [usize],
    /// Of the ids spread over the result.
    pub(super) id_strides: &'a [usize],
    pub(super) dim: usize,
}

impl Gather<'_> {
    pub(super) fn run(&self, device: &Device) -> Result<Buffer> {
        let bits = 8 * self.src.dtype.size_in_bytes() as u32;
        let by_rows = self.takes_rows(device) && gather_rows::of(bits)?.works(device)?;
        self.run_by(device, by_rows)
    }

    pub(super) fn run_by_rows(&self, device: &Device) -> Result<Buffer> {
        self.run_by(device, true)
    }

    fn run_by(&self, device: &Device, rows: bool) -> Result<Buffer> {
        check_operand(self.op, self.src)?;
        check_operand(self.op, self.ids)?;
        let id_type = id_type(self.op, self.ids.dtype)?;
        let n: usize = self.dims.iter().product();
        let dst = device.alloc(n.saturating_mul(self.src.dtype.size_in_bytes()))?;
        if n == 0 {
            return Ok(dst);
        }
        let indexing = Indexing {
            op: self.op as u32,
            id_type,
            size: self.src.dims[self.dim] as u32,
            stride: self.src.strides[self.dim] as u32,
        };
        match rows {
            true => self.rows(device, indexing, &dst, n)?,
            false => self.pieces(device, indexing, &dst, n)?,
        }
        Ok(dst)
    }

    /// Whether rows come whole: if a good part of them is asked for.
    fn takes_rows(&self, device: &Device) -> bool {
        let n: usize = self.dims.iter().product();
        let (count, row) = (self.dims[self.dim], self.src.dims[self.dim]);
        if n == 0 {
            return false;
        }
        let size = self.src.dtype.size_in_bytes();
        let inner = &self.dims[self.dim + 1..];
        let dense = self.src.strides[self.dim] == 1 && inner.iter().all(|&d| d == 1);
        let fits = row * size <= ROW_BYTES && row <= 4 * count && n <= u32::MAX as usize;
        let threads = n / count * GATHER_BLOCK as usize * WORTH;
        dense && fits && count >= ENOUGH_IDS && device.properties().fills(threads)
    }

    /// A thread for each piece of up to 16 bytes.
    fn pieces(
        &self,
        device: &Device,
        mut indexing: Indexing,
        dst: &Buffer,
        n: usize,
    ) -> Result<()> {
        let (name, src) = (self.op.as_str(), self.src);
        let size = src.dtype.size_in_bytes();
        let mut src_strides = src.strides.to_vec();
        src_strides[self.dim] = 0;
        let layout = collapse(name, self.dims, [&src_strides, self.id_strides])?;
        let (mut dims, [mut src_strides, id_strides]) = (layout.dims, layout.strides);

        // Whole rows per index move in larger pieces than an element.
        let mut piece = size;
        let last = dims.rank as usize - 1;
        if src_strides.s[last] == 1 && id_strides.s[last] == 0 {
            let bytes = |elements: u32| elements as usize * size;
            let stride = src.strides[self.dim];
            let places = [
                address(src.buffer, src.offset * size),
                address(dst, 0),
                bytes(dims.size[last]),
                stride * size,
            ];
            let steps = src_strides.s[..last].iter().copied().map(bytes);
            piece = piece_bytes(places.into_iter().chain(steps));
            dims.size[last] = (bytes(dims.size[last]) / piece) as u32;
            for stride in &mut src_strides.s[..last] {
                *stride = (bytes(*stride) / piece) as u32;
            }
            indexing.stride = (stride * size / piece) as u32;
        }
        let pieces = n * size / piece;
        check_count(name, pieces)?;
        // SAFETY: the operands lie in their views, and the result has room for all pieces.
        unsafe {
            gather_pieces::of(8 * piece as u32)?.launch(
                device,
                LaunchConfig::for_elements(pieces),
                Ptr::of(src),
                Ptr::to(dst),
                Ptr::of(self.ids),
                Ptr::to(&device.error_word()),
                pieces as u64,
                indexing,
                dims,
                src_strides,
                id_strides,
            )
        }
    }

    /// A block for each row of the source, which it has in LDS.
    fn rows(&self, device: &Device, indexing: Indexing, dst: &Buffer, n: usize) -> Result<()> {
        let along = Along {
            count: self.dims[self.dim] as u32,
            id_stride: self.id_strides[self.dim] as u32,
            src_stride: 1,
        };
        let dst_strides = crate::contiguous_strides(self.dims);
        let strides = [&dst_strides, self.src.strides, self.id_strides];
        let layout = besides(self.op, self.dim, self.dims, strides)?;
        let [dst_strides, src_strides, id_strides] = layout.strides;
        let rows = n / self.dims[self.dim];
        let config = LaunchConfig {
            grid: rows.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: GATHER_BLOCK,
            shared_bytes: 0,
        };
        // SAFETY: the operands lie in their views, and the result has room for all rows.
        unsafe {
            gather_rows::of(8 * self.src.dtype.size_in_bytes() as u32)?.launch(
                device,
                config,
                Ptr::of(self.src),
                Ptr::to(dst),
                Ptr::of(self.ids),
                Ptr::to(&device.error_word()),
                rows as u32,
                indexing,
                along,
                layout.dims,
                dst_strides,
                src_strides,
                id_strides,
            )
        }
    }
}
