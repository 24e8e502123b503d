//! Reductions along axes.

mod plan;

use crate::{Args, Buffer, DType, Device, Error, Result, View};
use plan::Plan;

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
    let plan = Plan::new(op, src, is_reduced, outputs, reduced)?;
    let pass = Pass {
        device,
        op,
        src: src.buffer,
        src_bytes: src.offset * src.dtype.size_in_bytes(),
        indices: None,
        from: src.dtype,
    };
    if plan.parts() == 1 {
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
    join.launch(
        &Plan::join(op, outputs, plan.parts()),
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
        let from = self.from;
        let stem = format!("{}{}", self.op.as_str(), plan.infix());
        let name = if from == to {
            format!("{stem}_{from}")
        } else {
            format!("{stem}_{from}_{to}")
        };
        let optional = |args: Args, buffer: Option<&Buffer>| match buffer {
            Some(buffer) => args.ptr(buffer, 0),
            None => args.u64(0),
        };
        let mut args = Args::new().ptr(self.src, self.src_bytes);
        if self.op.gives_index() {
            if plan.takes_indices() {
                args = optional(args, self.indices);
            }
            args = optional(args.ptr(dst, 0), values);
        } else {
            args = args.ptr(dst, 0);
        }
        self.device
            .kernel(plan.family(), &name)?
            .launch(plan.config(), &plan.append(args))
    }
}
