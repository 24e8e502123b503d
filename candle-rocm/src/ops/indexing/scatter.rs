//! Operations that write: scatter_set, scatter_add and index_add.

use super::tuning::{
    ENOUGH_COLUMNS, ENOUGH_STEPS, ENOUGH_WINDOWS, FEW_IDS, FEW_STEPS, MOST_PARTS, MOST_WINDOWS,
};
use super::{besides, check, check_dim, check_operand, id_type, only, Along, Indexing, ROW_BYTES};
use crate::kernels::{kernels, Axis, Ptr};
use crate::ops::copy::{address, check_count};
use crate::ops::{collapse, sort, Collapsed, Dims, Strides};
use crate::{DType, Device, Family, IndexOp, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::indexing as shared;

kernels! {
    /// Marks each place with the last position that writes to it.
    claim = "scatter_claim" in Family::Indexing
        => (owners: Ptr, ids: Ptr, error: Ptr, n: u64, indexing: Indexing, dims: Dims, dst_strides: Strides,
            id_strides: Strides, position_strides: Strides);

    /// Writes what places are marked with, elements of so many bits.
    place = "scatter_place_b{bits}" [bits: u32 = [8, 16, 32, 64]] in Family::Indexing
        => (src: Ptr, dst: Ptr, owners: Ptr, ids: Ptr, error: Ptr, n: u64, indexing: Indexing, dims: Dims,
            dst_strides: Strides, src_strides: Strides, id_strides: Strides, position_strides: Strides);

    /// A thread for each column and part of its places.
    update_columns = "scatter_{update}" [update: Update = Update::ALL] in Family::Indexing
        => (src: Ptr, dst: Ptr, ids: Ptr, error: Ptr, columns: u32, parts: u32, indexing: Indexing, along: Along,
            dims: Dims, dst_strides: Strides, src_strides: Strides, id_strides: Strides);

    /// A wave for each row and window of its places.
    update_rows = "scatter_rows_{update}" [update: Update = Update::ALL] in Family::IndexingRows
        => (src: Ptr, dst: Ptr, ids: Ptr, error: Ptr, columns: u32, windows: u32, indexing: Indexing, along: Along,
            dims: Dims, dst_strides: Strides, src_strides: Strides, id_strides: Strides);

    /// Adds by sorted ids, one column or packs of 16 bytes of them a thread.
    add_by_order = "index_add_{packs}{dtype}" [packs: &'static str = ["", "packs_"], dtype: DType = DType::ALL]
        in Family::Indexing
        => (src: Ptr, dst: Ptr, ids: Ptr, error: Ptr, order: Ptr, columns: u32, indexing: Indexing, along: Along,
            dims: Dims, dst_strides: Strides, src_strides: Strides);

    /// Adds in no fixed order.
    add_atomically = "scatter_add_atomic_{dtype}" [dtype: DType = IN_PLACE] in Family::Indexing
        => (src: Ptr, dst: Ptr, ids: Ptr, error: Ptr, n: u64, indexing: Indexing, dims: Dims, dst_strides: Strides,
            src_strides: Strides, id_strides: Strides);
}

/// The dtypes whose sums are kept in place while they grow: not the small floats, whose would be rounded each time.
const IN_PLACE: [DType; 7] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F32,
    DType::F64,
];

pub(super) fn sums_in_place(dtype: DType) -> bool {
    IN_PLACE.contains(&dtype)
}

/// What is done to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Update {
    /// It gets an element of so many bits.
    Set(u32),
    /// An element of the dtype is added.
    Add(DType),
}

impl Update {
    const ALL: [Update; 11] = [
        Update::Set(8),
        Update::Set(16),
        Update::Set(32),
        Update::Set(64),
        Update::Add(DType::U8),
        Update::Add(DType::U32),
        Update::Add(DType::I16),
        Update::Add(DType::I32),
        Update::Add(DType::I64),
        Update::Add(DType::F32),
        Update::Add(DType::F64),
    ];
}

impl std::fmt::Display for Update {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Update::Set(bits) => write!(f, "set_b{bits}"),
            Update::Add(dtype) => write!(f, "add_{dtype}"),
        }
    }
}

impl Axis for Update {}

/// Waves of a block of `scatter_rows` at most.
const SCATTER_WAVES: usize = shared::SCATTER_WAVES as usize;

/// The common part of the operations that write.
pub(super) struct Scatter<'a> {
    op: IndexOp,
    dst: &'a View<'a>,
    ids: &'a View<'a>,
    /// Of the ids spread over `src`.
    id_strides: &'a [usize],
    src: &'a View<'a>,
    dim: usize,
    indexing: Indexing,
}

impl<'a> Scatter<'a> {
    pub(super) fn new(
        op: IndexOp,
        dst: &'a View<'a>,
        ids: &'a View<'a>,
        id_strides: &'a [usize],
        src: &'a View<'a>,
        dim: usize,
    ) -> Result<Self> {
        check_dim(op, dst, dim)?;
        let rank = dst.dims.len();
        let fits =
            src.dims.len() == rank && (0..rank).all(|d| d == dim || src.dims[d] == dst.dims[d]);
        if !fits {
            return Err(check(op).mismatch(dst, src));
        }
        if op != IndexOp::IndexAdd && ids.dims != src.dims {
            return Err(check(op).mismatch(ids, src));
        }
        check(op).same_dtype(dst, src)?;
        for view in [dst, ids, src] {
            check_operand(op, view)?;
        }
        if !dst.is_contiguous() {
            return Err(check(op).invalid(format!(
                "the destination must be contiguous, not of shape {:?} with strides {:?}; make it contiguous first",
                dst.dims, dst.strides
            )));
        }
        let indexing = Indexing {
            op: op as u32,
            id_type: id_type(op, ids.dtype)?,
            size: dst.dims[dim] as u32,
            stride: dst.strides[dim] as u32,
        };
        Ok(Scatter {
            op,
            dst,
            ids,
            id_strides,
            src,
            dim,
            indexing,
        })
    }

    fn elements(&self) -> usize {
        self.src.elem_count()
    }

    fn in_order(&self) -> bool {
        let steps = self.src.dims[self.dim];
        steps <= FEW_STEPS || self.elements() / steps >= ENOUGH_COLUMNS
    }

    /// In how many windows of LDS each row of the destination lies, if that is a good way.
    fn windows(&self, device: &Device, update: Update) -> Result<Option<usize>> {
        let (steps, places) = (self.src.dims[self.dim], self.dst.dims[self.dim]);
        let windows = (places * self.dst.dtype.size_in_bytes()).div_ceil(ROW_BYTES);
        let dense = self.src.strides[self.dim] == 1 && self.dst.strides[self.dim] == 1;
        // Rows go to LDS and back whole.
        let pays = steps >= ENOUGH_STEPS && places <= 4 * steps && windows <= MOST_WINDOWS;
        let tasks = self.elements() / steps * windows;
        let enough = (ENOUGH_WINDOWS..=u32::MAX as usize).contains(&tasks);
        let chosen = dense && pays && enough && update_rows::of(update)?.works(device)?;
        Ok(chosen.then_some(windows))
    }

    pub(super) fn set(&self, device: &Device) -> Result<()> {
        if self.elements() == 0 {
            return Ok(());
        }
        let bits = 8 * self.src.dtype.size_in_bytes() as u32;
        if let Some(windows) = self.windows(device, Update::Set(bits))? {
            return self.launch_rows(device, Update::Set(bits), windows);
        }
        if self.in_order() {
            return self.launch_in_order(device, Update::Set(bits));
        }
        // Find the last writer of each place, then let only that one write.
        let owners = device.alloc_zeroed(self.dst.elem_count() * size_of::<u32>())?;
        let positions = only(self.dim, self.src.dims.len(), 1);
        let (dims, [dst_strides, src_strides, id_strides, position_strides]) =
            self.layout(&positions)?;
        let n = self.elements();
        let config = LaunchConfig::for_elements(n);
        let (ids, error) = (Ptr::of(self.ids), device.error_word());
        let error = Ptr::to(&error);
        // SAFETY: the operands lie in their views and fit together, and each place of the destination has an owner.
        unsafe {
            claim::of()?.launch(
                device,
                config,
                Ptr::to(&owners),
                ids,
                error,
                n as u64,
                self.indexing,
                dims,
                dst_strides,
                id_strides,
                position_strides,
            )?;
            place::of(bits)?.launch(
                device,
                config,
                Ptr::of(self.src),
                Ptr::of(self.dst),
                Ptr::to(&owners),
                ids,
                error,
                n as u64,
                self.indexing,
                dims,
                dst_strides,
                src_strides,
                id_strides,
                position_strides,
            )
        }
    }

    /// Not for small floats but by `index_add`, which adds them up in registers.
    pub(super) fn add(&self, device: &Device) -> Result<()> {
        if self.elements() == 0 {
            return Ok(());
        }
        let dtype = self.src.dtype;
        if !sums_in_place(dtype) {
            return self.add_sorted(device);
        }
        if let Some(windows) = self.windows(device, Update::Add(dtype))? {
            return self.launch_rows(device, Update::Add(dtype), windows);
        }
        if self.op == IndexOp::IndexAdd && self.src.dims[self.dim] > FEW_IDS {
            return self.add_sorted(device);
        }
        if self.in_order() {
            return self.launch_in_order(device, Update::Add(dtype));
        }
        let (dims, [dst_strides, src_strides, id_strides, _]) =
            self.layout(&vec![0; self.src.dims.len()])?;
        let n = self.elements();
        // SAFETY: the operands lie in their views and fit together.
        unsafe {
            add_atomically::of(dtype)?.launch(
                device,
                LaunchConfig::for_elements(n),
                Ptr::of(self.src),
                Ptr::of(self.dst),
                Ptr::of(self.ids),
                Ptr::to(&device.error_word()),
                n as u64,
                self.indexing,
                dims,
                dst_strides,
                src_strides,
                id_strides,
            )
        }
    }

    /// Of `index_add`: sorts the ids, so that what goes to one place lies together and is added up in order, places in
    /// parallel.
    fn add_sorted(&self, device: &Device) -> Result<()> {
        let order = sort::argsort(device, self.ids, true)?;
        let (mut layout, mut along) = self.columns()?;
        let mut indexing = self.indexing;
        let mut columns = self.elements() / along.count as usize;
        check_count(self.op.as_str(), self.elements())?;
        let dtype = self.src.dtype;
        let pack = self.pack(&layout, &along);
        let packs = if pack == 1 { "" } else { "packs_" };
        // In units of packs.
        let last = layout.dims.rank as usize - 1;
        layout.dims.size[last] /= pack;
        for strides in &mut layout.strides[..2] {
            strides.s[..last].iter_mut().for_each(|s| *s /= pack);
        }
        along.src_stride /= pack;
        indexing.stride /= pack;
        columns /= pack as usize;
        let [dst_strides, src_strides, _] = layout.strides;
        // SAFETY: the operands lie in their views and fit together, and the order has all ids.
        unsafe {
            add_by_order::of(packs, dtype)?.launch(
                device,
                LaunchConfig::for_elements(columns * along.count as usize),
                Ptr::of(self.src),
                Ptr::of(self.dst),
                Ptr::of(self.ids),
                Ptr::to(&device.error_word()),
                Ptr::to(&order),
                columns as u32,
                indexing,
                along,
                layout.dims,
                dst_strides,
                src_strides,
            )
        }
    }

    /// Neighbouring columns that one thread of `index_add` takes: 16 bytes of them where layout and addresses allow it,
    /// else one.
    fn pack(&self, layout: &Collapsed<3>, along: &Along) -> u32 {
        let size = self.src.dtype.size_in_bytes();
        let pack = (16 / size) as u32;
        let last = layout.dims.rank as usize - 1;
        let [dst, src, _] = &layout.strides;
        let mut steps = dst.s[..last].iter().chain(&src.s[..last]).chain([
            &layout.dims.size[last],
            &along.src_stride,
            &self.indexing.stride,
        ]);
        let whole = steps.all(|step| step.is_multiple_of(pack));
        let aligned = [self.src, self.dst]
            .iter()
            .all(|view| address(view.buffer, view.offset * size).is_multiple_of(16));
        if dst.s[last] == 1 && src.s[last] == 1 && whole && aligned {
            pack
        } else {
            1
        }
    }

    /// The dimensions besides the indexed one, with strides of destination, source and ids, and the steps along that.
    fn columns(&self) -> Result<(Collapsed<3>, Along)> {
        let strides = [self.dst.strides, self.src.strides, self.id_strides];
        let layout = besides(self.op, self.dim, self.src.dims, strides)?;
        let along = Along {
            count: self.src.dims[self.dim] as u32,
            id_stride: self.id_strides[self.dim] as u32,
            src_stride: self.src.strides[self.dim] as u32,
        };
        Ok((layout, along))
    }

    /// One thread per column and part of its places.
    fn launch_in_order(&self, device: &Device, update: Update) -> Result<()> {
        let columns = self.elements() / self.src.dims[self.dim];
        check_count(self.op.as_str(), columns)?;
        let parts = (device.properties().busy_threads())
            .div_ceil(columns)
            .min(self.src.dims[self.dim] / 16)
            .clamp(1, MOST_PARTS.min(self.dst.dims[self.dim].max(1)));
        let (layout, along) = self.columns()?;
        let [dst_strides, src_strides, id_strides] = layout.strides;
        // SAFETY: the operands lie in their views and fit together.
        unsafe {
            update_columns::of(update)?.launch(
                device,
                LaunchConfig::for_elements(columns * parts),
                Ptr::of(self.src),
                Ptr::of(self.dst),
                Ptr::of(self.ids),
                Ptr::to(&device.error_word()),
                columns as u32,
                parts as u32,
                self.indexing,
                along,
                layout.dims,
                dst_strides,
                src_strides,
                id_strides,
            )
        }
    }

    /// One wave per row and window of its places.
    fn launch_rows(&self, device: &Device, update: Update, windows: usize) -> Result<()> {
        let rows = self.elements() / self.src.dims[self.dim];
        // Short rows leave room for those of other waves.
        let row_bytes = self.dst.dims[self.dim] * self.dst.dtype.size_in_bytes();
        let fit = (ROW_BYTES / row_bytes).clamp(1, SCATTER_WAVES);
        let waves = 1 << fit.ilog2();
        let config = LaunchConfig {
            grid: (rows * windows)
                .div_ceil(waves)
                .min(LaunchConfig::MAX_GRID as usize) as u32,
            block: waves as u32 * device.properties().wave_size,
            shared_bytes: 0,
        };
        let (layout, along) = self.columns()?;
        let [dst_strides, src_strides, id_strides] = layout.strides;
        // SAFETY: the operands lie in their views and fit together.
        unsafe {
            update_rows::of(update)?.launch(
                device,
                config,
                Ptr::of(self.src),
                Ptr::of(self.dst),
                Ptr::of(self.ids),
                Ptr::to(&device.error_word()),
                rows as u32,
                windows as u32,
                self.indexing,
                along,
                layout.dims,
                dst_strides,
                src_strides,
                id_strides,
            )
        }
    }

    /// Common dimensions, and strides of destination (0 along the indexed dimension), source, ids, and whatever the
    /// caller adds.
    fn layout(&self, extra: &[usize]) -> Result<(Dims, [Strides; 4])> {
        let name = self.op.as_str();
        check_count(name, self.elements())?;
        let mut dst_strides = self.dst.strides.to_vec();
        dst_strides[self.dim] = 0;
        let strides = [&dst_strides, self.src.strides, self.id_strides, extra];
        let layout = collapse(name, self.src.dims, strides)?;
        Ok((layout.dims, layout.strides))
    }
}
