//! `x * mul + add`, powers and ELU.

use super::cast::cast;
use super::elementwise::Elementwise;
use super::{Dims, Strides};
use crate::dtype::ALL_FLOATS;
use crate::kernels::{kernels, Element, Ptr};
use crate::{contiguous_strides, Buffer, DType, Device, Error, Family, Result, Scalar, View};
use float8::F8E4M3;
use half::{bf16, f16};

kernels! {
    /// `x * mul + add`
    linear = "affine_{dtype}" [dtype: DType = DType::ALL] in Family::Affine
        => (n: u64, dims: Dims, xs: Strides, x: Ptr, out: Ptr, mul: Element, add: Element);

    /// Functions of an element and a number.
    with_number = "{function}_{dtype}" [function: &'static str = [POWF, ELU], dtype: DType = ALL_FLOATS]
        in Family::Affine
        => (n: u64, dims: Dims, xs: Strides, x: Ptr, out: Ptr, number: f64);
}

const POWF: &str = "powf";
const ELU: &str = "elu";

/// `x * mul + add`. Floats: every step in the type of `x`, so small floats are rounded after the product and after the
/// sum. Integers: with whole numbers of 64 bits they wrap; with others both steps are made in f64, and the outcome is
/// cut off towards zero and saturates.
///
/// # Errors
/// [`Error::InvalidView`], [`Error::TooLarge`].
pub fn affine(device: &Device, x: &View, mul: f64, add: f64) -> Result<Buffer> {
    let (mul, add) = match (x.dtype.is_float(), whole(mul), whole(add)) {
        (true, ..) => (convert(x.dtype, mul), convert(x.dtype, add)),
        (false, Some(mul), Some(add)) => (wrapped(x.dtype, mul), wrapped(x.dtype, add)),
        _ => return in_f64(device, x, mul, add),
    };
    let kernel = linear::of(x.dtype)?;
    Elementwise::new("affine", [x], x.dtype)?.run(device, [x], x.dtype, |work| {
        let ([xs], [x]) = (work.strides, work.inputs);
        // SAFETY: the operands are those of `Work`.
        unsafe {
            kernel.launch(
                device,
                work.config,
                work.count,
                work.dims,
                xs,
                x,
                work.output,
                Element::new(mul),
                Element::new(add),
            )
        }
    })
}

/// The number as an integer, if i64 holds it.
fn whole(value: f64) -> Option<i64> {
    // -2^63 and 2^63.
    let bounds = i64::MIN as f64..-(i64::MIN as f64);
    (value.fract() == 0. && bounds.contains(&value)).then_some(value as i64)
}

/// [`affine`] of integers by way of f64.
fn in_f64(device: &Device, x: &View, mul: f64, add: f64) -> Result<Buffer> {
    let strides = contiguous_strides(x.dims);
    let view = |buffer| View {
        buffer,
        dtype: DType::F64,
        offset: 0,
        dims: x.dims,
        strides: &strides,
    };
    let wide = cast(device, x, DType::F64)?;
    let outcome = affine(device, &view(&wide), mul, add)?;
    cast(device, &view(&outcome), x.dtype)
}

/// `x` to the power `e`, for floats; special cases as in IEEE 754. Small floats are computed in f32, as is the exponent,
/// and rounded once.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers, [`Error::InvalidView`], [`Error::TooLarge`].
pub fn powf(device: &Device, x: &View, e: f64) -> Result<Buffer> {
    apply(device, POWF, x, e)
}

/// `x` where its sign is positive, `(exp(x) - 1) * alpha` elsewhere, for floats. Small floats are computed in f32, as is
/// `alpha`, and rounded once; nothing cancels for small `x`.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers, [`Error::InvalidView`], [`Error::TooLarge`].
pub fn elu(device: &Device, x: &View, alpha: f64) -> Result<Buffer> {
    apply(device, ELU, x, alpha)
}

fn apply(device: &Device, op: &'static str, x: &View, number: f64) -> Result<Buffer> {
    let dtype = x.dtype;
    if !dtype.is_float() {
        return Err(Error::UnsupportedDType { op, dtype });
    }
    let kernel = with_number::of(op, dtype)?;
    Elementwise::new(op, [x], dtype)?.run(device, [x], dtype, |work| {
        let ([xs], [x]) = (work.strides, work.inputs);
        // SAFETY: the operands are those of `Work`.
        unsafe {
            kernel.launch(
                device,
                work.config,
                work.count,
                work.dims,
                xs,
                x,
                work.output,
                number,
            )
        }
    })
}

/// The lowest bits of an integer, in an integer type.
fn wrapped(dtype: DType, v: i64) -> Scalar {
    match dtype {
        DType::U8 => Scalar::U8(v as u8),
        DType::U32 => Scalar::U32(v as u32),
        DType::I16 => Scalar::I16(v as i16),
        DType::I32 => Scalar::I32(v as i32),
        _ => Scalar::I64(v),
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
