//! What is checked before values are quantized.

use std::borrow::Cow;

use crate::quantized::{GgmlDType, QuantizedType};
use crate::{bail, DType, Result, Storage, Tensor};

/// The tensor's elements in f32, alone in their storage.
pub(crate) fn source(src: &Tensor) -> Result<Tensor> {
    let src = src.to_dtype(DType::F32)?.flatten_all()?;
    let is_alone = match &*src.storage() {
        Storage::Cpu(storage) => storage.as_slice::<f32>()?.len() == src.elem_count(),
        _ => false,
    };
    match is_alone {
        true => Ok(src),
        false => src.force_contiguous(),
    }
}

/// An error for values that blocks have no code for: they would become numbers.
pub(crate) fn check(dtype: GgmlDType, values: &[f32]) -> Result<()> {
    if matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16) {
        return Ok(());
    }
    match values.iter().position(|v| !v.is_finite()) {
        Some(at) => bail!(
            "element {at} is {} and cannot be quantized to {dtype:?}",
            values[at]
        ),
        None => Ok(()),
    }
}

/// An error if values were so large that a scale became infinite.
pub(crate) fn check_scales(blocks: &dyn QuantizedType, values: &[f32]) -> Result<()> {
    let greatest = values.iter().fold(0f32, |most, v| most.max(v.abs()));
    if greatest <= f32::from(half::f16::MAX) {
        return Ok(());
    }
    let back = blocks.dequantize(values.len())?;
    match back.as_slice::<f32>()?.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => bail!(
            "values up to {greatest:e} do not fit into {:?}",
            blocks.dtype()
        ),
    }
}

/// A scale for elements whose levels are `-nmax..nmax`, and these plus `nmax`, if one has less than half of the error
/// that `scale` leaves: that of values which are as large in both directions, as only one of the ends is a level.
pub(crate) fn better_scale(
    values: &[f32],
    weight: impl Fn(usize) -> f32,
    nmax: i32,
    scale: f32,
) -> Option<(f32, Vec<i8>)> {
    let bounds = |(least, most): (f32, f32), &v: &f32| (least.min(v), most.max(v));
    let (least, most) = values.iter().fold((0f32, 0f32), bounds);
    let greatest = most.max(-least);
    if most.min(-least) < 0.97 * greatest {
        return None;
    }
    let level = |v: f32, inverse: f32| ((v * inverse).round() as i32).clamp(-nmax, nmax - 1);
    let loss = |scale: f32| -> f32 {
        let inverse = 1. / scale;
        let errors = values.iter().map(|&v| v - scale * level(v, inverse) as f32);
        errors.enumerate().map(|(i, e)| weight(i) * e * e).sum()
    };
    let own = loss(scale);
    let candidates = (-9..=9).flat_map(|step| {
        let candidate = greatest / (nmax as f32 + 0.1 * step as f32);
        [candidate, -candidate]
    });
    let symmetric = std::iter::once(greatest / (nmax - 1) as f32);
    let (best, scale) = candidates
        .chain(symmetric)
        .map(|scale| (loss(scale), scale))
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    let levels = |scale: f32| {
        values
            .iter()
            .map(|&v| (level(v, 1. / scale) + nmax) as i8)
            .collect()
    };
    (best < own * 0.5).then(|| (scale, levels(scale)))
}

/// The importance of the columns, none of which counts for nothing: a sum of zeros decides about no scale. Zeros become
/// a millionth of the greatest.
pub(crate) fn importance(dtype: GgmlDType, given: &[f32]) -> Result<Cow<'_, [f32]>> {
    use GgmlDType::{BF16, F16, F32, Q4_0, Q4_1, Q5_0, Q5_1, Q8K, Q8_0, Q8_1};
    if matches!(
        dtype,
        Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q8_1 | Q8K | F32 | F16 | BF16
    ) {
        bail!("{dtype:?} takes no importance matrix; quantize without one")
    }
    if let Some(at) = given.iter().position(|w| !(w.is_finite() && *w >= 0.)) {
        bail!(
            "the importance of column {at} is {}; it must be finite and not negative",
            given[at]
        )
    }
    let greatest = given.iter().fold(0f32, |most, &w| most.max(w));
    let least = match greatest > 0. {
        true => greatest * 1e-6,
        false => 1.,
    };
    Ok(match given.iter().all(|&w| w >= least) {
        true => Cow::Borrowed(given),
        false => Cow::Owned(given.iter().map(|w| w.max(least)).collect()),
    })
}
