//! Selection by a condition.

use super::elementwise::Elementwise;
use crate::{Buffer, Device, Error, Family, Result, View};

const OP: &str = "where_cond";

/// `on_true` where `cond` is not zero, `on_false` elsewhere. The condition is of any integer type, the others of one type.
///
/// # Errors
/// [`Error::UnsupportedDType`] for a condition of floats, [`Error::DTypeMismatch`], [`Error::ShapeMismatch`], [`Error::InvalidView`],
/// [`Error::TooLarge`].
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
    let bits = out.size_in_bytes() * 8;
    Elementwise::new(OP, inputs, out)?.run(
        device,
        Family::Ternary,
        &format!("where_{}_{bits}bit", cond.dtype),
        inputs,
        out,
        &[],
    )
}
