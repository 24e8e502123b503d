//! Softmax and norms of one row on the CPU: nothing is rounded to the dtype before the outcome.

use super::lanes;
use candle::{CpuStorageRef, WithDType};
use num_traits::{AsPrimitive, Float};

/// exp(x - max) / sum of these. A row of -inf only, or one that holds inf or NaN, gives NaN everywhere.
pub(crate) fn softmax<T: WithDType>(src: &[T], dst: &mut [T]) {
    match T::cpu_storage_ref(src) {
        CpuStorageRef::F32(row) => {
            for (y, share) in dst.iter_mut().zip(lanes::softmax(row)) {
                *y = T::from_f64(share.into());
            }
        }
        CpuStorageRef::F64(_) => softmax_in::<T, f64>(src, dst),
        _ => softmax_in::<T, f32>(src, dst),
    }
}

/// Powers in W, their sum in f64.
fn softmax_in<T: WithDType, W: Float + AsPrimitive<f64>>(src: &[T], dst: &mut [T])
where
    f64: AsPrimitive<W>,
{
    let mut powers: Vec<W> = src.iter().map(|x| x.to_f64().as_()).collect();
    let max = powers.iter().copied().fold(W::neg_infinity(), W::max);
    let mut sum = 0f64;
    for power in &mut powers {
        *power = (*power - max).exp();
        sum += (*power).as_();
    }
    for (y, power) in dst.iter_mut().zip(powers) {
        *y = T::from_f64(power.as_() / sum);
    }
}

/// The sum of `of` of all elements.
fn sum<T: WithDType>(row: &[T], of: impl Fn(f64) -> f64) -> f64 {
    match T::cpu_storage_ref(row) {
        CpuStorageRef::F32(row) => lanes::sum(row, of),
        _ => row.iter().map(|x| of(x.to_f64())).sum(),
    }
}

/// x / sqrt(mean(x²) + eps) * weight
pub(crate) fn rms_norm<T: WithDType>(src: &[T], weight: &[T], eps: f32, dst: &mut [T]) {
    let squares = sum(src, |x| x * x);
    let mean = squares / src.len() as f64;
    // As plain operations round it, where f32 has the mean.
    let root = match (f32::MIN_POSITIVE.into()..=f32::MAX.into()).contains(&mean) {
        true => f64::from((mean as f32 + eps).sqrt()),
        false => (mean + f64::from(eps)).sqrt(),
    };
    for ((y, x), weight) in dst.iter_mut().zip(src).zip(weight) {
        *y = T::from_f64(x.to_f64() / root * weight.to_f64());
    }
}

/// (x - mean) / sqrt(variance + eps) * weight + bias. The variance is that of the differences to the mean: that of
/// squares cancels.
pub(crate) fn layer_norm<T: WithDType>(
    src: &[T],
    weight: &[T],
    bias: &[T],
    eps: f32,
    dst: &mut [T],
) {
    if let (CpuStorageRef::F32(x), CpuStorageRef::F32(weight), CpuStorageRef::F32(bias)) = (
        T::cpu_storage_ref(src),
        T::cpu_storage_ref(weight),
        T::cpu_storage_ref(bias),
    ) {
        // SAFETY: an element of f32 is one: `T` is f32.
        let dst = unsafe { std::slice::from_raw_parts_mut(dst.as_mut_ptr().cast(), dst.len()) };
        return cpu_kernels::layer_norm::row(x, weight, bias, eps.into(), dst);
    }
    let count = src.len() as f64;
    let mean = sum(src, |x| x) / count;
    let away = |x: &T| x.to_f64() - mean;
    let squares = sum(src, |x| (x - mean) * (x - mean));
    let scale = (squares / count + f64::from(eps)).sqrt().recip();
    for ((y, x), (weight, bias)) in dst.iter_mut().zip(src).zip(weight.iter().zip(bias)) {
        *y = T::from_f64(away(x) * scale * weight.to_f64() + bias.to_f64());
    }
}
