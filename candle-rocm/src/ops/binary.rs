//! Arithmetic and comparison of two operands of one shape. Broadcast an operand with strides of 0.

use super::elementwise::{Elementwise, Work};
use super::{Dims, Strides};
use crate::dtype::ALL_FLOATS;
use crate::kernels::{kernels, Axis, Ptr};
use crate::{Buffer, DType, Device, Error, Family, Result, View};

kernels! {
    /// Arithmetic.
    arithmetic = "{op}_{dtype}" [op: BinaryOp = BinaryOp::ALL, dtype: DType = DType::ALL] in Family::Binary, part dtype
        => (n: u64, dims: Dims, xs: Strides, ys: Strides, x: Ptr, y: Ptr, out: Ptr);

    /// Powers of floats.
    powers = "pow_{dtype}" [dtype: DType = ALL_FLOATS] in Family::Binary, part dtype
        => (n: u64, dims: Dims, xs: Strides, ys: Strides, x: Ptr, y: Ptr, out: Ptr);

    /// Comparison; the output is of u8.
    comparison = "{op}_{dtype}" [op: CompareOp = CompareOp::ALL, dtype: DType = DType::ALL] in Family::Binary,
            part dtype
        => (n: u64, dims: Dims, xs: Strides, ys: Strides, x: Ptr, y: Ptr, out: Ptr);
}

/// Arithmetic on two operands of one type.
///
/// Integers wrap; dividing an integer by zero gives 0, so who must not have that looks at the divisor beforehand. Small
/// floats are computed in `f32` and rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// x + y
    Add,
    /// x - y
    Sub,
    /// x * y
    Mul,
    /// x / y
    Div,
    /// The smaller, x if they are equal; NaN if either is.
    Minimum,
    /// The larger, x if they are equal; NaN if either is.
    Maximum,
}

impl BinaryOp {
    /// Every operation.
    pub const ALL: [BinaryOp; 6] = [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Minimum,
        BinaryOp::Maximum,
    ];

    /// The name, as kernel names begin.
    pub const fn as_str(self) -> &'static str {
        match self {
            BinaryOp::Add => "add",
            BinaryOp::Sub => "sub",
            BinaryOp::Mul => "mul",
            BinaryOp::Div => "div",
            BinaryOp::Minimum => "minimum",
            BinaryOp::Maximum => "maximum",
        }
    }
}

impl std::fmt::Display for BinaryOp {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Axis for BinaryOp {}

/// Comparison of two operands of one type. With NaN only `Ne` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompareOp {
    /// x = y
    Eq,
    /// x ≠ y
    Ne,
    /// x < y
    Lt,
    /// x ≤ y
    Le,
    /// x > y
    Gt,
    /// x ≥ y
    Ge,
}

impl CompareOp {
    /// Every comparison.
    pub const ALL: [CompareOp; 6] = [
        CompareOp::Eq,
        CompareOp::Ne,
        CompareOp::Lt,
        CompareOp::Le,
        CompareOp::Gt,
        CompareOp::Ge,
    ];

    /// The name, as kernel names begin.
    pub const fn as_str(self) -> &'static str {
        match self {
            CompareOp::Eq => "eq",
            CompareOp::Ne => "ne",
            CompareOp::Lt => "lt",
            CompareOp::Le => "le",
            CompareOp::Gt => "gt",
            CompareOp::Ge => "ge",
        }
    }
}

impl std::fmt::Display for CompareOp {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Axis for CompareOp {}

/// `op` of every pair of elements, in the operands' type.
///
/// # Errors
/// [`Error::DTypeMismatch`], [`Error::ShapeMismatch`], [`Error::InvalidView`], [`Error::TooLarge`].
pub fn binary(device: &Device, op: BinaryOp, lhs: &View, rhs: &View) -> Result<Buffer> {
    run(device, op.as_str(), lhs, rhs, lhs.dtype, |work| {
        let ([xs, ys], [x, y]) = (work.strides, work.inputs);
        let (config, n, dims, out) = (work.config, work.count, work.dims, work.output);
        let kernel = arithmetic::of(op, lhs.dtype)?;
        // SAFETY: the operands are those of `Work`, of one dtype.
        unsafe { kernel.launch(device, config, n, dims, xs, ys, x, y, out) }
    })
}

/// Every element of `lhs` to the power of that of `rhs`, in the operands' type; special cases as in IEEE 754. Small
/// floats are computed in f32 and rounded once.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers, and those of [`binary`].
pub fn power(device: &Device, lhs: &View, rhs: &View) -> Result<Buffer> {
    const OP: &str = "pow";
    let dtype = lhs.dtype;
    if !dtype.is_float() {
        return Err(Error::UnsupportedDType { op: OP, dtype });
    }
    run(device, OP, lhs, rhs, dtype, |work| {
        let ([xs, ys], [x, y]) = (work.strides, work.inputs);
        let (config, n, dims, out) = (work.config, work.count, work.dims, work.output);
        let kernel = powers::of(dtype)?;
        // SAFETY: the operands are those of `Work`, of one dtype.
        unsafe { kernel.launch(device, config, n, dims, xs, ys, x, y, out) }
    })
}

/// 1 where the comparison holds, 0 elsewhere, as [`DType::U8`].
///
/// # Errors
/// Those of [`binary`].
pub fn compare(device: &Device, op: CompareOp, lhs: &View, rhs: &View) -> Result<Buffer> {
    run(device, op.as_str(), lhs, rhs, DType::U8, |work| {
        let ([xs, ys], [x, y]) = (work.strides, work.inputs);
        let (config, n, dims, out) = (work.config, work.count, work.dims, work.output);
        let kernel = comparison::of(op, lhs.dtype)?;
        // SAFETY: the operands are those of `Work`, of one dtype.
        unsafe { kernel.launch(device, config, n, dims, xs, ys, x, y, out) }
    })
}

fn run(
    device: &Device,
    op: &'static str,
    lhs: &View,
    rhs: &View,
    out: DType,
    launch: impl FnOnce(Work<2>) -> Result<()>,
) -> Result<Buffer> {
    if lhs.dtype != rhs.dtype {
        return Err(Error::DTypeMismatch {
            op,
            lhs: lhs.dtype,
            rhs: rhs.dtype,
        });
    }
    Elementwise::new(op, [lhs, rhs], out)?.run(device, [lhs, rhs], out, launch)
}
