//! Reading and writing at places that an index tensor names.
//!
//! An index equal to the largest value of its dtype (255, `u32::MAX`, `i64::MAX`, …) names no place: reads give 0, writes are left out.
//! Any other index out of range does the same, and the next call that waits for the device fails with [`Error::IndexOutOfRange`].

use super::copy::{address, check_count, contiguous, piece_bytes};
use super::{collapse, sort, Collapsed, Dims, Strides};
use crate::{Args, Buffer, DType, Device, Error, IndexOp, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Takes the slices of `src` along `dim` that the one-dimensional `ids` (u8, u32 or i64) name. The result has `src`'s shape with
/// `ids`' length in `dim`.
///
/// # Errors
/// [`Error::UnsupportedDType`] for other index dtypes, [`Error::ShapeMismatch`], [`Error::InvalidArgument`] for `dim`,
/// [`Error::InvalidView`], [`Error::TooLarge`] for operands of 2^32 elements or more.
pub fn index_select(device: &Device, src: &View, ids: &View, dim: usize) -> Result<Buffer> {
    const OP: IndexOp = IndexOp::IndexSelect;
    check_dim(OP, src, dim)?;
    let [count] = ids.dims else {
        return Err(shape_mismatch(OP, src, ids));
    };
    let mut dims = src.dims.to_vec();
    dims[dim] = *count;
    let id_strides = only(dim, dims.len(), ids.strides[0]);
    read(device, OP, src, ids, &dims, &id_strides, dim)
}

/// Takes one element of `src` for each of `ids` (u8, u32 or i64): the one at the id's own place, except for `dim`, where the id says the
/// place. `ids` has `src`'s rank and is nowhere larger than `src`, except in `dim`. The result has `ids`' shape.
///
/// # Errors
/// Those of [`index_select`].
pub fn gather(device: &Device, src: &View, ids: &View, dim: usize) -> Result<Buffer> {
    const OP: IndexOp = IndexOp::Gather;
    check_dim(OP, src, dim)?;
    let fits = src.dims.len() == ids.dims.len()
        && (0..src.dims.len()).all(|d| d == dim || ids.dims[d] <= src.dims[d]);
    if !fits {
        return Err(shape_mismatch(OP, src, ids));
    }
    read(device, OP, src, ids, ids.dims, ids.strides, dim)
}

/// Writes each element of `src` to `dst`: to its own place, except for `dim`, where the id (u8, u32 or i64) says the place. Of several
/// elements for one place the last along `dim` stays. `ids` has `src`'s shape, which is `dst`'s except in `dim`; `dst` is contiguous.
///
/// # Errors
/// Those of [`index_select`], [`Error::DTypeMismatch`], and [`Error::InvalidArgument`] for a strided `dst`.
pub fn scatter_set(device: &Device, dst: &View, ids: &View, src: &View, dim: usize) -> Result<()> {
    let scatter = Scatter::new(IndexOp::ScatterSet, dst, ids, ids.strides, src, dim)?;
    scatter.set(device)
}

/// As [`scatter_set`], but adds to what is there; `ids` may be of any integer dtype. Integers wrap on overflow. Floats are added in order
/// along `dim`, and the result is rounded each time, if that leaves enough to do in parallel, as 64 rows of a few thousand elements or 4,096
/// columns do; otherwise in no fixed order.
///
/// # Errors
/// Those of [`scatter_set`].
pub fn scatter_add(device: &Device, dst: &View, ids: &View, src: &View, dim: usize) -> Result<()> {
    let scatter = Scatter::new(IndexOp::ScatterAdd, dst, ids, ids.strides, src, dim)?;
    scatter.add(device)
}

/// A copy of `base` to whose slices along `dim`, named by the one-dimensional `ids` of any integer dtype, those of `src` are added. As by
/// [`scatter_add`], but always in order. `src` has `base`'s shape with `ids`' length in `dim`.
///
/// # Errors
/// Those of [`scatter_add`].
pub fn index_add(
    device: &Device,
    base: &View,
    ids: &View,
    src: &View,
    dim: usize,
) -> Result<Buffer> {
    const OP: IndexOp = IndexOp::IndexAdd;
    check_dim(OP, src, dim)?;
    if *ids.dims != [src.dims[dim]] {
        return Err(shape_mismatch(OP, ids, src));
    }
    let id_strides = only(dim, src.dims.len(), ids.strides[0]);
    let out = contiguous(device, base)?;
    let strides = crate::contiguous_strides(base.dims);
    let dst = View::contiguous(&out, base.dtype, base.dims, &strides);
    Scatter::new(OP, &dst, ids, &id_strides, src, dim)?.add(device)?;
    Ok(out)
}

/// What the kernels are told about the indexed dimension; the fields are those of `Indexing` in `indexing.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Indexing {
    op: u32,
    id_type: u32,
    size: u32,
    stride: u32,
}

/// Bytes of LDS that `gather_rows` has for a row and `scatter_rows` for the windows of a block's waves: `ROW_BYTES` of `indexing_rows.hip`.
const ROW_BYTES: usize = 16 << 10;
/// Threads of a block of `gather_rows`.
const GATHER_BLOCK: u32 = 256;
/// Ids of a row that occupy such a block, eight for each thread, and rows that occupy a GPU.
const ENOUGH_IDS: usize = 2048;
const ENOUGH_ROWS: usize = 128;

/// The common part of the operations that read. `dims` and `id_strides` are those of the result and of the ids spread over it.
fn read(
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

/// The dimensions besides `dim`, with the strides of `K` operands.
fn besides<const K: usize>(
    op: IndexOp,
    dim: usize,
    dims: &[usize],
    strides: [&[usize]; K],
) -> Result<Collapsed<K>> {
    let others = |values: &[usize]| -> Vec<usize> {
        let mut values = values.to_vec();
        values.remove(dim);
        values
    };
    let strides = strides.map(others);
    collapse(
        op.as_str(),
        &others(dims),
        std::array::from_fn(|k| &strides[k][..]),
    )
}

/// With this many columns (places outside of the indexed dimension), one thread for each keeps a GPU busy.
const ENOUGH_COLUMNS: usize = 4096;
/// So many steps along the indexed dimension cost a thread less than a second launch or contended atomics would.
const FEW_STEPS: usize = 256;
/// Threads that keep a GPU busy with columns of many steps, and parts of the places of a column at most; each part reads all ids.
const ENOUGH_THREADS: usize = 1 << 17;
const MOST_PARTS: usize = 64;
/// Steps along the indexed dimension that are worth a wave of their own, and windows of a row, each of which reads all ids.
const ENOUGH_STEPS: usize = 64;
const MOST_WINDOWS: usize = 8;
/// Waves of a block of `scatter_rows` at most.
const SCATTER_WAVES: usize = 8;
/// So many windows occupy a GPU.
const ENOUGH_WINDOWS: usize = 64;
/// So many ids of `index_add` cost a thread for each column less than sorting them would.
const FEW_IDS: usize = 32;

/// The common part of the operations that write.
struct Scatter<'a> {
    op: IndexOp,
    dst: &'a View<'a>,
    ids: &'a View<'a>,
    /// Of the ids spread over `src`.
    id_strides: &'a [usize],
    src: &'a View<'a>,
    dim: usize,
    indexing: Indexing,
}

/// Steps along the indexed dimension; the fields are those of `Along` in `indexing.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Along {
    count: u32,
    id_stride: u32,
    src_stride: u32,
}

impl<'a> Scatter<'a> {
    fn new(
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
            return Err(shape_mismatch(op, dst, src));
        }
        if op != IndexOp::IndexAdd && ids.dims != src.dims {
            return Err(shape_mismatch(op, ids, src));
        }
        if dst.dtype != src.dtype {
            return Err(Error::DTypeMismatch {
                op: op.as_str(),
                lhs: dst.dtype,
                rhs: src.dtype,
            });
        }
        for view in [dst, ids, src] {
            check_operand(op, view)?;
        }
        if !dst.is_contiguous() {
            return Err(Error::InvalidArgument {
                op: op.as_str(),
                reason: format!(
                    "the destination must be contiguous, not of shape {:?} with strides {:?}; make it contiguous first",
                    dst.dims, dst.strides
                ),
            });
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

    fn set(&self, device: &Device) -> Result<()> {
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

    fn add(&self, device: &Device) -> Result<()> {
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
        let parts = ENOUGH_THREADS
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

/// Number of an index dtype in `indexing.h`. As on candle's CPU, i16 and i32 are for the operations that add.
fn id_type(op: IndexOp, dtype: DType) -> Result<u32> {
    let adds = matches!(op, IndexOp::ScatterAdd | IndexOp::IndexAdd);
    match dtype {
        DType::U8 => Ok(0),
        DType::U32 => Ok(1),
        DType::I64 => Ok(2),
        DType::I16 if adds => Ok(3),
        DType::I32 if adds => Ok(4),
        _ => Err(Error::UnsupportedDType {
            op: match op {
                IndexOp::IndexSelect => "index-select by ids",
                IndexOp::Gather => "gather by ids",
                IndexOp::ScatterSet => "scatter by ids",
                IndexOp::ScatterAdd => "scatter-add by ids",
                IndexOp::IndexAdd => "index-add by ids",
                IndexOp::MoeGemm | IndexOp::IndexedMoe => op.as_str(),
            },
            dtype,
        }),
    }
}

/// Strides that are 0 except along `dim`.
fn only(dim: usize, rank: usize, stride: usize) -> Vec<usize> {
    let mut strides = vec![0; rank];
    strides[dim] = stride;
    strides
}

fn check_dim(op: IndexOp, view: &View, dim: usize) -> Result<()> {
    if dim < view.dims.len() {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        op: op.as_str(),
        reason: format!(
            "there is no dimension {dim} in a tensor of shape {:?}",
            view.dims
        ),
    })
}

/// The kernels compute places in 32 bits.
fn check_operand(op: IndexOp, view: &View) -> Result<()> {
    view.check(op.as_str())?;
    check_count(op.as_str(), view.span().unwrap_or(usize::MAX))
}

fn shape_mismatch(op: IndexOp, lhs: &View, rhs: &View) -> Error {
    Error::ShapeMismatch {
        op: op.as_str(),
        lhs: lhs.dims.to_vec(),
        rhs: rhs.dims.to_vec(),
    }
}
