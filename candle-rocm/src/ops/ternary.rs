//! Selection by a condition.

use super::elementwise::Elementwise;
use super::{Dims, Strides};
use crate::dtype::INTEGERS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, Result, View};

kernels! {
    /// By conditions of a dtype, elements of so many bits.
    select = "where_{condition}_{bits}bit" [condition: DType = INTEGERS, bits: u32 = [8, 16, 32, 64]] in Family::Ternary
        => (n: u64, dims: Dims, cs: Strides, xs: Strides, ys: Strides, cond: Ptr, x: Ptr, y: Ptr, out: Ptr);
}

const OP: &str = "where_cond";

/// `on_true` where `cond` is not zero, `on_false` elsewhere. The condition is of any integer type, the others of one
/// type.
///
/// # Errors
/// [`Error::UnsupportedDType`] for a condition of floats, [`Error::DTypeMismatch`], [`Error::ShapeMismatch`],
/// [`Error::InvalidView`], [`Error::TooLarge`].
pub fn where_cond(device: &Device, cond: &View, on_true: &View, on_false: &View) -> Result<Buffer> {
    if cond.dtype.is_float() {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: cond.dtype,
        });
    }
    if on_true.dtype != on_false.dtype {
        return Err(Error::DTypeMismatch {
            op: OP,
            lhs: on_true.dtype,
            rhs: on_false.dtype,
        });
    }
    let inputs = [cond, on_true, on_false];
    let out = on_true.dtype;
    let kernel = select::of(cond.dtype, 8 * out.size_in_bytes() as u32)?;
    Elementwise::new(OP, inputs, out)?.run(device, inputs, out, |work| {
        let ([cs, xs, ys], [cond, x, y]) = (work.strides, work.inputs);
        let (config, n, dims, out) = (work.config, work.count, work.dims, work.output);
        // SAFETY: the operands are those of `Work`.
        unsafe { kernel.launch(device, config, n, dims, cs, xs, ys, cond, x, y, out) }
    })
}
