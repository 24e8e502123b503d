//! Reductions along axes.

mod plan;

use crate::kernels::{kernels, Axis, Ptr};
use crate::{Buffer, DType, Device, Error, Family, Result, View};
use candle_rocm_kernels::shared::reduce::{PacksPlan, Plan as StridedPlan};
use plan::{KernelPlan, Plan};

kernels! {
    /// Sums of any layout.
    sums = "sum_{types}" [types: Types = Types::ALL] in Family::Reduce, part types.from
        => (src: Ptr, dst: Ptr, plan: StridedPlan);

    /// Extrema of any layout.
    extrema = "{op}_{dtype}" [op: ReduceOp = [ReduceOp::Min, ReduceOp::Max], dtype: DType = DType::ALL]
        in Family::Reduce, part dtype => (src: Ptr, dst: Ptr, plan: StridedPlan);

    /// Their indices, or `indices` at their places unless it is null; and the extrema, unless `values` is null.
    extremal_indices = "{op}_{dtype}" [op: ReduceOp = [ReduceOp::ArgMin, ReduceOp::ArgMax], dtype: DType = DType::ALL]
        in Family::Reduce, part dtype => (src: Ptr, indices: Ptr, dst: Ptr, values: Ptr, plan: StridedPlan);

    /// Sums along rows.
    sums_of_rows = "sum_rows_{types}" [types: Types = Types::ALL] in Family::ReducePacks, part types.from
        => (src: Ptr, dst: Ptr, plan: PacksPlan);

    /// Sums across columns. Partial results are rows: there is none to smaller floats.
    sums_of_columns = "sum_columns_{types}" [types: Types = Types::TO_PARTIAL] in Family::ReducePacks, part types.from
        => (src: Ptr, dst: Ptr, plan: PacksPlan);

    /// Extrema in packs.
    extrema_in_packs = "{op}_{way}_{dtype}" [op: ReduceOp = [ReduceOp::Min, ReduceOp::Max], way: &'static str = [ROWS,
            COLUMNS], dtype: DType = DType::ALL]
        in Family::ReducePacks, part dtype => (src: Ptr, dst: Ptr, plan: PacksPlan);

    /// Their indices; and the extrema, unless `values` is null.
    indices_in_packs = "{op}_{way}_{dtype}" [op: ReduceOp = [ReduceOp::ArgMin, ReduceOp::ArgMax],
            way: &'static str = [ROWS, COLUMNS], dtype: DType = DType::ALL]
        in Family::ReducePacks, part dtype => (src: Ptr, dst: Ptr, values: Ptr, plan: PacksPlan);
}

const ROWS: &str = "rows";
const COLUMNS: &str = "columns";

/// Dtypes of a sum's elements and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types {
    from: DType,
    to: DType,
}

/// The small floats, whose partial sums are f32.
const SMALL: [DType; 3] = [DType::F16, DType::BF16, DType::F8E4M3];

impl Types {
    /// Every pair: of one dtype, from small floats to partial sums, and from these back.
    const ALL: [Types; 16] = Self::first();
    /// The same without those back from partial sums.
    const TO_PARTIAL: [Types; 13] = Self::first();

    const fn first<const COUNT: usize>() -> [Types; COUNT] {
        let (from, to) = (DType::F32, DType::F32);
        let mut all = [Types { from, to }; COUNT];
        let mut i = 0;
        while i < COUNT {
            all[i] = match i {
                0..10 => Types {
                    from: DType::ALL[i],
                    to: DType::ALL[i],
                },
                10..13 => Types {
                    from: SMALL[i - 10],
                    to,
                },
                _ => Types {
                    from,
                    to: SMALL[i - 13],
                },
            };
            i += 1;
        }
        all
    }
}

impl std::fmt::Display for Types {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.from == self.to {
            true => write!(f, "{}", self.from),
            false => write!(f, "{}_{}", self.from, self.to),
        }
    }
}

impl Axis for Types {}

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

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Axis for ReduceOp {}

/// Reduces `src` along `axes`. The result has the other axes' elements in row-major order, of the source's dtype;
/// `ArgMin` and `ArgMax` give u32, which count the reduced axes' elements in row-major order. NaN is the result of the
/// extrema if there is one, and the first one's index that of the indices, as in PyTorch.
///
/// The result does not depend on the GPU. The sum of no elements is 0.
///
/// # Errors
/// [`Error::InvalidArgument`] for an axis that `src` lacks, and for all but sums of a tensor without elements;
/// [`Error::InvalidView`]; [`Error::TooLarge`] for a strided view that spans 2^32 elements or more.
pub fn reduce(device: &Device, op: ReduceOp, src: &View, axes: &[usize]) -> Result<Buffer> {
    reduce_and_divide(device, op, src, axes, 1.0)
}

/// The mean of floats along `axes`, otherwise as [`reduce`]: sums in at least f32 are divided before they are rounded.
///
/// # Errors
/// Those of [`reduce`], [`Error::UnsupportedDType`] for integers, and [`Error::InvalidArgument`] for the mean of no
/// elements.
pub fn mean(device: &Device, src: &View, axes: &[usize]) -> Result<Buffer> {
    const OP: &str = "mean";
    let dtype = src.dtype;
    if !dtype.is_float() {
        return Err(Error::UnsupportedDType { op: OP, dtype });
    }
    let sizes = axes.iter().filter_map(|&axis| src.dims.get(axis));
    let count: usize = sizes.product();
    if count == 0 {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("a tensor of shape {:?} has no elements", src.dims),
        });
    }
    reduce_and_divide(device, ReduceOp::Sum, src, axes, count as f64)
}

/// `divisor` is 1 for all but sums of floats.
fn reduce_and_divide(
    device: &Device,
    op: ReduceOp,
    src: &View,
    axes: &[usize],
    divisor: f64,
) -> Result<Buffer> {
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
    let sizes = (outputs, reduced);
    let mut plan = Plan::new(op, src, is_reduced, sizes, true)?;
    if !works(device, op, &plan, types(op, src.dtype, plan.parts()))? {
        plan = Plan::new(op, src, is_reduced, sizes, false)?;
    }
    let pass = Pass {
        device,
        op,
        src: src.buffer,
        src_bytes: src.offset * src.dtype.size_in_bytes(),
        indices: None,
        from: src.dtype,
    };
    if plan.parts() == 1 {
        plan.divide_by(divisor);
        pass.launch(&plan, src.dtype, &dst, None)?;
        return Ok(dst);
    }

    let between = types(op, src.dtype, plan.parts()).to;
    let partials = outputs * plan.parts();
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
    let mut plan_of_join = Plan::join(op, outputs, plan.parts(), true);
    let (from, to) = (between, src.dtype);
    if !works(device, op, &plan_of_join, Types { from, to })? {
        plan_of_join = Plan::join(op, outputs, plan.parts(), false);
    }
    plan_of_join.divide_by(divisor);
    join.launch(&plan_of_join, to, &dst, None)?;
    Ok(dst)
}

/// Dtypes of the first pass: sums of small floats that are cut into parts stay in f32 until the end.
fn types(op: ReduceOp, from: DType, parts: usize) -> Types {
    let to = match op == ReduceOp::Sum && parts > 1 && SMALL.contains(&from) {
        true => DType::F32,
        false => from,
    };
    Types { from, to }
}

/// Whether the plan's kernel may be used: one for packs that is switched off leaves the work to those of any layout.
fn works(device: &Device, op: ReduceOp, plan: &Plan, types: Types) -> Result<bool> {
    match (plan.of_kernel(), op) {
        (KernelPlan::Strided(_), _) => Ok(true),
        (KernelPlan::Packs(ROWS, _), ReduceOp::Sum) => sums_of_rows::of(types)?.works(device),
        (KernelPlan::Packs(..), ReduceOp::Sum) => sums_of_columns::of(types)?.works(device),
        (KernelPlan::Packs(way, _), ReduceOp::Min | ReduceOp::Max) => {
            extrema_in_packs::of(op, way, types.from)?.works(device)
        }
        (KernelPlan::Packs(way, _), _) => indices_in_packs::of(op, way, types.from)?.works(device),
    }
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
        let (device, op, from) = (self.device, self.op, self.from);
        let config = plan.config();
        let (src, dst) = (Ptr::at(self.src, self.src_bytes), Ptr::to(dst));
        let (indices, values) = (
            self.indices.map_or(Ptr::NULL, Ptr::to),
            values.map_or(Ptr::NULL, Ptr::to),
        );
        let types = Types { from, to };
        // SAFETY: the plan is for the source, which was checked or has partial results, and destinations have room for
        // its outputs.
        unsafe {
            match (plan.of_kernel(), op) {
                (KernelPlan::Strided(plan), ReduceOp::Sum) => {
                    sums::of(types)?.launch(device, config, src, dst, plan)
                }
                (KernelPlan::Strided(plan), ReduceOp::Min | ReduceOp::Max) => {
                    extrema::of(op, from)?.launch(device, config, src, dst, plan)
                }
                (KernelPlan::Strided(plan), _) => extremal_indices::of(op, from)?
                    .launch(device, config, src, indices, dst, values, plan),
                (KernelPlan::Packs(ROWS, plan), ReduceOp::Sum) => {
                    sums_of_rows::of(types)?.launch(device, config, src, dst, plan)
                }
                (KernelPlan::Packs(_, plan), ReduceOp::Sum) => {
                    sums_of_columns::of(types)?.launch(device, config, src, dst, plan)
                }
                (KernelPlan::Packs(way, plan), ReduceOp::Min | ReduceOp::Max) => {
                    extrema_in_packs::of(op, way, from)?.launch(device, config, src, dst, plan)
                }
                (KernelPlan::Packs(way, plan), _) => indices_in_packs::of(op, way, from)?
                    .launch(device, config, src, dst, values, plan),
            }
        }
    }
}
