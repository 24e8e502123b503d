//! What the fixes of upstream's faults consist of (see `FIXES.md`), where it is more than a line.

pub(crate) mod accumulate;
pub(crate) mod activations;
pub(crate) mod arange;
pub(crate) mod arithmetic;
pub(crate) mod avg_pool;
pub(crate) mod blocks;
pub(crate) mod checks;
pub(crate) mod clamp;
pub(crate) mod conv2d;
pub(crate) mod cumsum;
pub(crate) mod gather;
pub(crate) mod halves;
pub(crate) mod ids;
pub(crate) mod integers;
pub(crate) mod mean;
pub(crate) mod order;
pub(crate) mod pool_grad;
pub(crate) mod power;
pub(crate) mod quantizers;
pub(crate) mod rand;
pub(crate) mod slopes;
pub(crate) mod small_floats;

use crate::{DType, Error, Result};

/// Unary operations that mean something for integers.
const ON_INTEGERS: [&str; 6] = ["abs", "ceil", "floor", "relu", "round", "sign"];

/// An error for a unary operation of integers that only floats have.
pub(crate) fn check_unary(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_int() && !ON_INTEGERS.contains(&op) {
        return Err(Error::UnsupportedDTypeForOp(dtype, op).bt());
    }
    Ok(())
}

/// An error for the formats that candle only stores.
pub(crate) fn check_computes(dtype: DType, op: &'static str) -> Result<()> {
    match small_floats::bits(dtype) {
        Some(_) => Err(Error::UnsupportedDTypeForOp(dtype, op).bt()),
        None => Ok(()),
    }
}

/// The order of values of which at least one is NaN: NaN is the greatest.
pub(crate) fn nan_order<T: PartialOrd>(a: &T, b: &T) -> std::cmp::Ordering {
    let is_nan = |v: &T| v.partial_cmp(v).is_none();
    is_nan(a).cmp(&is_nan(b))
}
