//! Operations that write: scatter_set, scatter_add and index_add.

use super::{besides, check, check_dim, check_operand, id_type, only, Along, Indexing, ROW_BYTES};
use crate::ops::copy::{address, check_count};
use crate::ops::{collapse, sort, Collapsed, Dims, Strides};
use crate::{Args, Device, IndexOp, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// With this many columns (places outside of the indexed dimension), one thread for each is enough to do in parallel. A
/// constant, as [`ENOUGH_WINDOWS`] is, so that floats are added in order on all GPUs or on none.
const ENOUGH_COLUMNS: usize = 4096;
/// So many steps along the indexed dimension cost a thread less than a second launch or contended atomics would.
const FEW_STEPS: usize = 256;
/// Parts of the places of a column at most; each part reads all ids.
const MOST_PARTS: usize = 64;
/// Steps along the indexed dimension that are worth a wave of their own, and windows of a row, each of which reads all ids.
const ENOUGH_STEPS: usize = 64;
const MOST_WINDOWS: usize = 8;
/// Waves of a block of `scatter_rows` at most.
const SCATTER_WAVES: usize = 8;
/// With so many windows there is enough to do in parallel.
const ENOUGH_WINDOWS: usize = 64;
/// So many ids of `index_add` cost a thread for each column less than sorting them would.
const FEW_IDS: usize = 32;

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
    fn windows(&self) -> Option<usize> {
        let (steps, places) = (self.src.dims[self.dim], self.dst.dims[self.dim]);
        let windows = (places * self.dst.dtype.size_in_bytes()).div_ceil(ROW_BYTES);
        let dense = self.src.strides[self.dim] == 1 && self.dst.strides[self.dim] == 1;
        // Rows go to LDS and back whole.
        let pays = steps >= ENOUGH_STEPS && places <= 4 * steps && windows <= MOST_WINDOWS;
        let tasks = self.elements() / steps * windows;
        let enough = (ENOUGH_WINDOWS..=u32::MAX as usize).contains(&tasks);
        (dense && pays && enough).then_some(windows)
    }

    pub(super) fn set(&self, device: &Device) -> Result<()> {
        if self.elements() == 0 {
            return Ok(());
        }
        let bits = self.src.dtype.size_in_bytes() * 8;
        if let Some(windows) = self.windows() {
            return self.launch_rows(device, &format!("scatter_rows_set_b{bits}"), windows);
        }
        if self.in_order() {
            return self.launch_in_order(device, &format!("scatter_set_b{bits}"));
        }
        // Find the last writer of each place, then let only that one write.
        let owners = device.alloc_zeroed(self.dst.elem_count() * size_of::<u32>())?;
        let positions = only(self.dim, self.src.dims.len(), 1);
        let (dims, [dst_strides, src_strides, id_strides, position_strides]) =
            self.layout(&positions)?;
        let n = self.elements();
        let config = LaunchConfig::for_elements(n);
        let args = self
            .indices(device, Args::new().ptr(&owners, 0))
            .u64(n as u64)
            .value(&self.indexing)
            .value(&dims)
            .value(&dst_strides)
            .value(&id_strides)
            .value(&position_strides);
        device
            .kernel(Family::Indexing, "scatter_claim")?
            .launch(config, &args)?;
        let args = self
            .indices(device, self.operands().ptr(&owners, 0))
            .u64(n as u64)
            .value(&self.indexing)
            .value(&dims)
            .value(&dst_strides)
            .value(&src_strides)
            .value(&id_strides)
            .value(&position_strides);
        device
            .kernel(Family::Indexing, &format!("scatter_place_b{bits}"))?
            .launch(config, &args)
    }

    pub(super) fn add(&self, device: &Device) -> Result<()> {
        if self.elements() == 0 {
            return Ok(());
        }
        let dtype = self.src.dtype;
        if let Some(windows) = self.windows() {
            return self.launch_rows(device, &format!("scatter_rows_add_{dtype}"), windows);
        }
        if self.op == IndexOp::IndexAdd && self.src.dims[self.dim] > FEW_IDS {
            return self.add_sorted(device);
        }
        if self.in_order() {
            return self.launch_in_order(device, &format!("scatter_add_{dtype}"));
        }
        let (dims, [dst_strides, src_strides, id_strides, _]) =
            self.layout(&vec![0; self.src.dims.len()])?;
        let n = self.elements();
        let args = self
            .indices(device, self.operands())
            .u64(n as u64)
            .value(&self.indexing)
            .value(&dims)
            .value(&dst_strides)
            .value(&src_strides)
            .value(&id_strides);
        device
            .kernel(Family::Indexing, &format!("scatter_add_atomic_{dtype}"))?
            .launch(LaunchConfig::for_elements(n), &args)
    }

    /// Of `index_add`: sorts the ids, so that what goes to one place lies together and is added up in order, places in parallel.
    fn add_sorted(&self, device: &Device) -> Result<()> {
        let order = sort::argsort(device, self.ids, true)?;
        let (mut layout, mut along) = self.columns()?;
        let mut indexing = self.indexing;
        let mut columns = self.elements() / along.count as usize;
        check_count(self.op.as_str(), self.elements())?;
        let dtype = self.src.dtype;
        let pack = self.pack(&layout, &along);
        let name = if pack == 1 {
            format!("index_add_{dtype}")
        } else {
            format!("index_add_packs_{dtype}")
        };
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
        let args = self
            .indices(device, self.operands())
            .ptr(&order, 0)
            .u32(columns as u32)
            .value(&indexing)
            .value(&along)
            .value(&layout.dims)
            .value(&dst_strides)
            .value(&src_strides);
        device.kernel(Family::Indexing, &name)?.launch(
            LaunchConfig::for_elements(columns * along.count as usize),
            &args,
        )
    }

    /// Neighbouring columns that one thread of `index_add` takes: 16 bytes of them where layout and addresses allow it, else one.
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
    fn launch_in_order(&self, device: &Device, kernel: &str) -> Result<()> {
        let columns = self.elements() / self.src.dims[self.dim];
        check_count(self.op.as_str(), columns)?;
        let parts = (device.properties().busy_threads())
            .div_ceil(columns)
            .min(self.src.dims[self.dim] / 16)
            .clamp(1, MOST_PARTS.min(self.dst.dims[self.dim].max(1)));
        self.launch_columns(
            device,
            Family::Indexing,
            kernel,
            LaunchConfig::for_elements(columns * parts),
            parts,
        )
    }

    /// One wave per row and window of its places.
    fn launch_rows(&self, device: &Device, kernel: &str, windows: usize) -> Result<()> {
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
        self.launch_columns(device, Family::IndexingRows, kernel, config, windows)
    }

    fn launch_columns(
        &self,
        device: &Device,
        family: Family,
        kernel: &str,
        config: LaunchConfig,
        parts: usize,
    ) -> Result<()> {
        let (layout, along) = self.columns()?;
        let [dst_strides, src_strides, id_strides] = layout.strides;
        let columns = self.elements() / along.count as usize;
        let args = self
            .indices(device, self.operands())
            .u32(columns as u32)
            .u32(parts as u32)
            .value(&self.indexing)
            .value(&along)
            .value(&layout.dims)
            .value(&dst_strides)
            .value(&src_strides)
            .value(&id_strides);
        device.kernel(family, kernel)?.launch(config, &args)
    }

    /// Common dimensions, and strides of destination (0 along the indexed dimension), source, ids, and whatever the caller adds.
    fn layout(&self, extra: &[usize]) -> Result<(Dims, [Strides; 4])> {
        let name = self.op.as_str();
        check_count(name, self.elements())?;
        let mut dst_strides = self.dst.strides.to_vec();
        dst_strides[self.dim] = 0;
        let strides = [&dst_strides, self.src.strides, self.id_strides, extra];
        let layout = collapse(name, self.src.dims, strides)?;
        Ok((layout.dims, layout.strides))
    }

    fn operands(&self) -> Args {
        let bytes = |view: &View| view.offset * view.dtype.size_in_bytes();
        Args::new()
            .ptr(self.src.buffer, bytes(self.src))
            .ptr(self.dst.buffer, bytes(self.dst))
    }

    fn indices(&self, device: &Device, args: Args) -> Args {
        args.ptr(
            self.ids.buffer,
            self.ids.offset * self.ids.dtype.size_in_bytes(),
        )
        .ptr(&device.error_word(), 0)
    }
}
