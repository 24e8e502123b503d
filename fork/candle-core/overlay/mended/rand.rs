//! Random numbers in the small floats.

use rand::prelude::*;

use super::checks;
use crate::scalar::Scalar;
use crate::{DType, Error, Result, WithDType};

/// The only number of the dtype from `lo` up to `up`, if rounding leaves just one; an error where there is none.
pub(crate) fn only_number(lo: f64, up: f64, dtype: DType) -> Result<Option<Scalar>> {
    fn only<T: WithDType>(lo: f64, up: f64) -> Option<Scalar> {
        let lo = T::from_f64(lo);
        (lo == T::from_f64(up)).then(|| lo.to_scalar())
    }
    checks::uniform(lo, up)?;
    Ok(match dtype {
        DType::BF16 => only::<half::bf16>(lo, up),
        DType::F16 => only::<half::f16>(lo, up),
        DType::F32 => only::<f32>(lo, up),
        DType::F64 => only::<f64>(lo, up),
        DType::F8E4M3 => only::<float8::F8E4M3>(lo, up),
        _ => return Err(Error::UnsupportedDTypeForOp(dtype, "rand_uniform").bt()),
    })
}

/// Numbers from `lo` to below `up`, which the dtype must tell apart. One that is rounded to `up` is drawn anew.
pub(crate) fn uniform<T: WithDType>(count: usize, lo: f64, up: f64) -> Vec<T> {
    let (lo, up) = (T::from_f64(lo), T::from_f64(up));
    let (low, span) = (lo.to_f64(), up.to_f64() - lo.to_f64());
    let mut generator = rand::rng();
    let mut draw = || T::from_f64(low + span * f64::from(generator.random::<f32>()));
    let below_the_bound = || loop {
        let number = draw();
        if number < up {
            return number;
        }
    };
    std::iter::repeat_with(below_the_bound)
        .take(count)
        .collect()
}

/// Normally distributed numbers, rounded once.
pub(crate) fn normal<T: WithDType>(count: usize, mean: f64, deviation: f64) -> Vec<T> {
    let mut generator = rand::rng();
    let mut draw = || {
        let number: f32 = generator.sample(rand_distr::StandardNormal);
        T::from_f64(mean + deviation * f64::from(number))
    };
    std::iter::repeat_with(&mut draw).take(count).collect()
}
