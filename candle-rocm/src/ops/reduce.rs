//! Reductions along axes.

use super::{collapse, Dims, Strides};
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// What a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum; integers wrap on overflow, floats add up in at least f32.
    Sum,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
    /// Index of the smallest element, the first if several are equal.
    ArgMin,
    /// Index of the largest element, the first if several are equal.
    ArgMax,
}

impl ReduceOp {
    /// Every reduction.
    pub const ALL: [ReduceOp; 5] = [
        ReduceOp::Sum,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::ArgMin,
        ReduceOp::ArgMax,
    ];

    /// The name in kernel names and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::ArgMin => "argmin",
            ReduceOp::ArgMax => "argmax",
        }
    }

    const fn gives_index(self) -> bool {
        matches!(self, ReduceOp::ArgMin | ReduceOp::ArgMax)
    }
}

/// Reduces `src` along `axes`. The result has the other axes' elements in row-major order, of the source's dtype; `ArgMin` and `ArgMax`
/// give u32, which count the reduced axes' elements in row-major order. A NaN is the result of the extrema if it comes first, and is
/// passed over otherwise, as on candle's CPU.
///
/// The result does not depend on the GPU. The sum of no elements is 0.
///
/// # Errors
/// [`Error::InvalidArgument`] for an axis that `src` lacks, and for all but sums of a tensor without elements;
/// [`Error::InvalidView`]; [`Error::TooLarge`] for a strided view that spans 2^32 elements or more.
pub fn reduce(device: &Device, op: ReduceOp, src: &View, axes: &[usize]) -> Result<Buffer> {
    let name = op.as_str();
    src.check(name)?;
    if let Some(axis) = axes.iter().find(|&&axis| axis >= src.dims.len()) {
        return Err(Error::InvalidArgument {
            op: name,
            reason: format!(
                "there is no axis {axis} in a tensor of shape {:?}",
                src.dims
            ),
        });
    }
    let is_reduced = |axis: usize| axes.contains(&axis);
    let product = |reduced: bool| -> usize {
        let sizes = src.dims.iter().enumerate();
        sizes
            .filter(|&(axis, _)| is_reduced(axis) == reduced)
            .map(|(_, &size)| size)
            .product()
    };
    let (outputs, reduced) = (product(false), product(true));
    let out_bytes = if op.gives_index() {
        DType::U32
    } else {
        src.dtype
    }
    .size_in_bytes();
    if outputs == 0 || reduced == 0 {
        if op == ReduceOp::Sum {
            return device.alloc_zeroed(outputs * out_bytes);
        }
        return Err(Error::InvalidArgument {
            op: name,
            reason: format!(
                "a tensor of shape {:?} has no elements to choose from",
                src.dims
            ),
        });
    }
    if op.gives_index() && reduced > u32::MAX as usize {
        return Err(Error::TooLarge {
            op: name,
            what: "number of elements behind a u32 index",
            value: reduced,
            limit: u32::MAX as usize,
        });
    }

    let dst = device.alloc(outputs * out_bytes)?;
    let plan = Plan::new(name, src, is_reduced, outputs, reduced)?;
    let pass = Pass {
        device,
        op,
        src: src.buffer,
        src_bytes: src.offset * src.dtype.size_in_bytes(),
        indices: None,
        from: src.dtype,
    };
    if plan.parts == 1 {
        pass.launch(&plan, src.dtype, &dst, None)?;
        return Ok(dst);
    }

    // Sums of small floats stay in f32 until the end.
    let narrow = matches!(src.dtype, DType::F16 | DType::BF16 | DType::F8E4M3);
    let between = if op == ReduceOp::Sum && narrow {
        DType::F32
    } else {
        src.dtype
    };
    let partials = outputs * plan.parts as usize;
    let values = device.alloc(partials * between.size_in_bytes())?;
    let indices = if op.gives_index() {
        Some(device.alloc(partials * size_of::<u32>())?)
    } else {
        None
    };
    match &indices {
        Some(indices) => pass.launch(&plan, between, indices, Some(&values))?,
        None => pass.launch(&plan, between, &values, None)?,
    }
    let join = Pass {
        device,
        op,
        src: &values,
        src_bytes: 0,
        indices: indices.as_ref(),
        from: between,
    };
    join.launch(
        &Plan::rows(outputs, plan.parts as usize),
        src.dtype,
        &dst,
        None,
    )?;
    Ok(dst)
}

/// One launch.
struct Pass<'a> {
    device: &'a Device,
    op: ReduceOp,
    src: &'a Buffer,
    src_bytes: usize,
    /// Of partial results: what to report instead of their positions.
    indices: Option<&'a Buffer>,
    from: DType,
}

impl Pass<'_> {
    fn launch(&self, plan: &Plan, to: DType, dst: &Buffer, values: Option<&Buffer>) -> Result<()> {
        let (op, from) = (self.op.as_str(), self.from);
        let name = if from == to {
            format!("{op}_{from}")
        } else {
            format!("{op}_{from}_{to}")
        };
        let optional = |args: Args, buffer: Option<&Buffer>| match buffer {
            Some(buffer) => args.ptr(buffer, 0),
            None => args.u64(0),
        };
        let mut args = Args::new().ptr(self.src, self.src_bytes);
        if self.op.gives_index() {
            args = optional(args, self.indices).ptr(dst, 0);
            args = optional(args, values);
        } else {
            args = args.ptr(dst, 0);
        }
        self.device
            .kernel(Family::Reduce, &name)?
            .launch(plan.config(), &args.value(plan))
    }
}

/// Threads of a block, as in `reduce.hip`.
const BLOCK: u64 = 256;
/// Enough blocks to fill any GPU; a constant, so that the order of additions is the same on all of them.
const WANTED_BLOCKS: u64 = 1024;
/// Elements that a thread should have at least before a reduction is cut into more parts.
const MIN_PER_THREAD: u64 = 16;
/// Neighbouring outputs whose elements, adjacent in memory, make a wave's loads dense.
const DENSE_COLUMNS: u64 = 32;

/// How the work is laid out; the fields are those of `Plan` in `reduce.hip`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Plan {
    outputs: u64,
    reduced: u64,
    part_size: u64,
    parts: u32,
    lanes: u32,
    lanes_fast: u32,
    kept_dims: Dims,
    kept_strides: Strides,
    reduced_dims: Dims,
    reduced_strides: Strides,
}

impl Plan {
    fn new(
        op: &'static str,
        src: &View,
        is_reduced: impl Fn(usize) -> bool,
        outputs: usize,
        reduced: usize,
    ) -> Result<Self> {
        let rank = src.dims.len();
        let kept = (0..rank).take_while(|&axis| !is_reduced(axis)).count();
        if src.is_contiguous()
            && (kept..rank).all(&is_reduced)
            && (outputs == 1 || reduced <= u32::MAX as usize)
        {
            let mut plan = Self::rows(outputs, reduced);
            plan.cut();
            return Ok(plan);
        }
        let side = |wanted: bool| -> (Vec<usize>, Vec<usize>) {
            (0..rank)
                .filter(|&axis| is_reduced(axis) == wanted)
                .map(|axis| (src.dims[axis], src.strides[axis]))
                .unzip()
        };
        let (kept_dims, kept_strides) = side(false);
        let (reduced_dims, reduced_strides) = side(true);
        let kept = collapse(op, &kept_dims, [&kept_strides])?;
        let inner = collapse(op, &reduced_dims, [&reduced_strides])?;
        let innermost = |dims: &Dims, strides: &Strides| {
            let last = dims.rank as usize - 1;
            if dims.size[last] == 1 {
                u32::MAX
            } else {
                strides.s[last]
            }
        };
        let mut plan = Plan {
            outputs: outputs as u64,
            reduced: reduced as u64,
            part_size: reduced as u64,
            parts: 1,
            lanes: 1,
            lanes_fast: u32::from(
                innermost(&inner.dims, &inner.strides[0])
                    <= innermost(&kept.dims, &kept.strides[0]),
            ),
            kept_dims: kept.dims,
            kept_strides: kept.strides[0],
            reduced_dims: inner.dims,
            reduced_strides: inner.strides[0],
        };
        plan.choose_lanes();
        plan.cut();
        Ok(plan)
    }

    /// Contiguous rows of `reduced` elements, not cut: fewer than 2^32, or one row. The kernel does not look at the size of a single
    /// dimension.
    fn rows(outputs: usize, reduced: usize) -> Self {
        let line = |stride: u32| {
            let mut strides = Strides::default();
            strides.s[0] = stride;
            let dims = Dims {
                rank: 1,
                ..Dims::default()
            };
            (dims, strides)
        };
        let (kept_dims, kept_strides) = line(if outputs == 1 { 0 } else { reduced as u32 });
        let (reduced_dims, reduced_strides) = line(1);
        let mut plan = Plan {
            outputs: outputs as u64,
            reduced: reduced as u64,
            part_size: reduced as u64,
            parts: 1,
            lanes: 1,
            lanes_fast: 1,
            kept_dims,
            kept_strides,
            reduced_dims,
            reduced_strides,
        };
        plan.choose_lanes();
        plan
    }

    /// Along rows, about eight elements a thread until the block is full; along columns, a block spans enough neighbouring columns for
    /// dense loads first.
    fn choose_lanes(&mut self) {
        let lanes = if self.lanes_fast == 1 {
            (self.reduced / 8).max(1).next_power_of_two().min(BLOCK)
        } else {
            let columns = self.outputs.next_power_of_two().min(DENSE_COLUMNS);
            (self.reduced / 8)
                .max(1)
                .next_power_of_two()
                .min(BLOCK / columns)
        };
        self.lanes = lanes as u32;
    }

    fn tiles(&self) -> u64 {
        self.outputs.div_ceil(BLOCK / u64::from(self.lanes)) * u64::from(self.parts)
    }

    /// Cuts the reduced elements into parts if there are too few outputs to fill a GPU.
    fn cut(&mut self) {
        let lanes = u64::from(self.lanes);
        let most = (self.reduced / (lanes * MIN_PER_THREAD)).max(1);
        let parts = (WANTED_BLOCKS / self.tiles()).clamp(1, most);
        self.part_size = self.reduced.div_ceil(parts).next_multiple_of(lanes);
        self.parts = self.reduced.div_ceil(self.part_size) as u32;
    }

    fn config(&self) -> LaunchConfig {
        LaunchConfig {
            grid: self.tiles().min(LaunchConfig::MAX_GRID.into()) as u32,
            block: BLOCK as u32,
            shared_bytes: 0,
        }
    }
}
