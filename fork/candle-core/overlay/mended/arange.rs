//! Numbers at equal steps.

use crate::{bail, DType, Result, WithDType};

/// `start + i * step` for every `i` from 0 on whose value is before `end`. Each value is computed by itself, integers
/// exactly and floats in f64, and rounded once. A step that leads away from `end` gives no numbers.
///
/// How many floats there are is the quotient `(end - start) / step`, rounded up, as in PyTorch. The step is as exact as
/// its type: where the quotient is an integer within that, it is taken for one, so that the last number is not `end`.
pub(crate) fn values<D: WithDType>(start: D, end: D, step: D) -> Result<Vec<D>> {
    if D::is_zero(&step) {
        bail!("step cannot be zero")
    }
    if let (Some(first), Some(end), Some(step)) = (start.integer(), end.integer(), step.integer()) {
        let [first, end, step] = [first, end, step].map(i128::from);
        let distance = (end - first) * step.signum();
        let count = match distance > 0 {
            true => (distance + step.abs() - 1) / step.abs(),
            false => 0,
        };
        let mut values = room(count as f64)?;
        values.extend((0..count).map(|i| D::from_integer((first + i * step) as i64)));
        return Ok(values);
    }
    let [first, end, step] = [start, end, step].map(D::to_f64);
    if ![first, end, step].iter().all(|v| v.is_finite()) {
        bail!("numbers from {first} to {end} in steps of {step}: all three must be finite")
    }
    let quotient = (end - first) / step;
    let near = quotient.round();
    let count = match (quotient - near).abs() <= quotient.abs() * half_unit(D::DTYPE) {
        true => near,
        false => quotient.ceil(),
    };
    let mut values = room(count.max(0.))?;
    values.extend((0..count.max(0.) as u64).map(|i| D::from_f64(first + i as f64 * step)));
    Ok(values)
}

/// Half of the distance between a number and the next one, for a number of 1.
fn half_unit(dtype: DType) -> f64 {
    let bits = match dtype {
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F8E4M3 => 4,
        // As in PyTorch, whose bounds are of f64.
        _ => return 0.,
    };
    0.5f64.powi(bits)
}

/// An empty vector with room for `count` numbers, or an error where there is no memory for them.
fn room<D>(count: f64) -> Result<Vec<D>> {
    let mut values = Vec::new();
    let reserved = match count < isize::MAX as f64 {
        true => values.try_reserve_exact(count as usize).is_ok(),
        false => false,
    };
    match reserved {
        true => Ok(values),
        false => bail!("no memory for {count:e} numbers"),
    }
}
