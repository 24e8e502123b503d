//! `x * mul + add`, powers and ELU.

use super::elementwise::Elementwise;
use crate::{Buffer, DType, Device, Error, Family, Result, Scalar, View};
use float8::F8E4M3;
use half::{bf16, f16};

/// `x * mul + add`, every step in the type of `x`: scalars are converted first (integers truncate and saturate), small floats are
/// rounded after the product and after the sum, and integers wrap.
///
/// # Errors
/// [`Error::InvalidView`], [`Error::TooLarge`].
pub fn affine(device: &Device, x: &View, mul: f64, add: f64) -> Result<Buffer> {
    launch(device, "affine", x, &[mul, add])
}

/// `x` to the power `e`, for floats; special cases as in IEEE 754.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers, [`Error::InvalidView`], [`Error::TooLarge`].
pub fn powf(device: &Device, x: &View, e: f64) -> Result<Buffer> {
    floats_only("powf", x.dtype)?;
    launch(device, "powf", x, &[e])
}

/// `x` where its sign is positive, `(exp(x) - 1) * alpha` elsewhere, for floats.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers, [`Error::InvalidView`], [`Error::TooLarge`].
pub fn elu(device: &Device, x: &View, alpha: f64) -> Result<Buffer> {
    floats_only("elu", x.dtype)?;
    launch(device, "elu", x, &[alpha])
}

fn launch(device: &Device, op: &'static str, x: &View, scalars: &[f64]) -> Result<Buffer> {
    let scalars: Vec<Scalar> = scalars.iter().map(|&v| convert(x.dtype, v)).collect();
    Elementwise::new(op, [x], x.dtype)?.run(
        device,
        Family::Affine,
        &format!("{op}_{}", x.dtype),
        [x],
        x.dtype,
        &scalars,
    )
}

fn floats_only(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        Ok(())
    } else {
        Err(Error::UnsupportedDType { op, dtype })
    }
}

/// The value in the given type, as Rust converts it.
fn convert(dtype: DType, v: f64) -> Scalar {
    match dtype {
        DType::U8 => Scalar::U8(v as u8),
        DType::U32 => Scalar::U32(v as u32),
        DType::I16 => Scalar::I16(v as i16),
        DType::I32 => Scalar::I32(v as i32),
        DType::I64 => Scalar::I64(v as i64),
        DType::F16 => Scalar::F16(f16::from_f64(v)),
        DType::BF16 => Scalar::BF16(bf16::from_f64(v)),
        DType::F32 => Scalar::F32(v as f32),
        DType::F64 => Scalar::F64(v),
        DType::F8E4M3 => Scalar::F8E4M3(F8E4M3::from_f64(v)),
    }
}
