//! Integer tensors and numbers that are none of their dtype.
//!
//! One rule for every device: with whole numbers, products, sums and quotients are computed on integers, which wrap;
//! quotients are cut off towards zero. With fractions they are computed in f64, and the outcome is cut off towards zero
//! and saturates. Comparisons are those of the numbers as they stand, whatever the dtype can hold. Infinities and NaN
//! as factors, and 0 as a divisor, are errors.

use crate::cpu_backend::unary_map;
use crate::op::{BackpropOp, CmpOp};
use crate::tensor::from_storage;
use crate::{bail, CpuStorage, DType, Device, Layout, Result, Tensor, WithDType};

/// The bounds of i64 and beyond: -2^63 and 2^63 in f64.
const I64_END: f64 = 9_223_372_036_854_775_808.;

/// The number as an integer, if it is one that i64 holds.
pub(crate) fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0. && (-I64_END..I64_END).contains(&value)).then_some(value as i64)
}

/// Least and greatest number of an integer dtype.
fn range(dtype: DType) -> Option<(i64, i64)> {
    Some(match dtype {
        DType::U8 => (0, u8::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I64 => (i64::MIN, i64::MAX),
        _ => return None,
    })
}

/// An error for factors and summands that integers cannot be computed with.
pub(crate) fn check_affine(dtype: DType, mul: f64, add: f64) -> Result<()> {
    if dtype.is_int() && !(mul.is_finite() && add.is_finite()) {
        bail!(
            "{dtype:?} times {mul} plus {add} has no value; convert the tensor with to_dtype first"
        )
    }
    Ok(())
}

/// `x * mul + add` by the rule above.
pub(crate) fn affine(src: &CpuStorage, layout: &Layout, mul: f64, add: f64) -> Result<CpuStorage> {
    fn map<T: WithDType>(src: &[T], layout: &Layout, mul: f64, add: f64) -> Vec<T> {
        match (whole(mul), whole(add)) {
            (Some(mul), Some(add)) => {
                let (mul, add) = (T::from_integer(mul), T::from_integer(add));
                unary_map(src, layout, |v| v.product_with(mul).sum_with(add))
            }
            _ => unary_map(src, layout, |v| T::from_f64(v.to_f64() * mul + add)),
        }
    }
    use CpuStorage::{I16, I32, I64, U32, U8};
    Ok(match src {
        U8(v) => U8(map(v, layout, mul, add)),
        U32(v) => U32(map(v, layout, mul, add)),
        I16(v) => I16(map(v, layout, mul, add)),
        I32(v) => I32(map(v, layout, mul, add)),
        I64(v) => I64(map(v, layout, mul, add)),
        _ => bail!("internal error: integers were expected, not floats"),
    })
}

/// An integer tensor by a number. A product with the inverse would be off by one: 49 * (1 / 49) is less than 1.
pub(crate) fn div(x: &Tensor, by: f64) -> Result<Tensor> {
    let dtype = x.dtype();
    if by == 0. {
        return zero_divisor();
    }
    if !by.is_finite() {
        bail!("{dtype:?} by {by} has no value; convert the tensor with to_dtype first")
    }
    match (whole(by), range(dtype)) {
        (Some(whole), Some((least, most))) if (least..=most).contains(&whole) => {
            if x.elem_count() == 0 {
                return Ok(x.clone());
            }
            let by = number(whole, dtype, x.device())?.broadcast_as(x.shape())?;
            let quotients = (x.storage()).binary_impl::<crate::op::Div>(
                &by.storage(),
                x.layout(),
                by.layout(),
            )?;
            Ok(from_storage(
                quotients,
                x.shape(),
                BackpropOp::none(),
                false,
            ))
        }
        _ => {
            let by = Tensor::new(by, x.device())?.broadcast_as(x.shape())?;
            x.to_dtype(DType::F64)?.div(&by)?.to_dtype(dtype)
        }
    }
}

fn zero_divisor<T>() -> Result<T> {
    bail!("division of integers by zero")
}

/// An error if integers are to be divided by zero somewhere. Waits for the device.
pub(crate) fn check_divisor(op: &str, by: &Tensor) -> Result<()> {
    if op != "div" || !by.dtype().is_int() || by.elem_count() == 0 {
        return Ok(());
    }
    // What is broadcast is looked at once.
    let mut by = by.detach();
    for (dim, stride) in by.stride().to_vec().into_iter().enumerate() {
        if stride == 0 {
            by = by.narrow(dim, 0, 1)?;
        }
    }
    let zero = number(0, by.dtype(), by.device())?.broadcast_as(by.shape())?;
    match by.ne(&zero)?.flatten_all()?.min(0)?.to_scalar::<u8>()? {
        0 => zero_divisor(),
        _ => Ok(()),
    }
}

/// A number of an integer dtype, on the device.
fn number(value: i64, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::new(value, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(device)
}

/// What is to be compared: an integer, or a float.
enum Number {
    Integer(i64),
    Float(f64),
}

impl Number {
    fn of(scalar: &Tensor) -> Result<Self> {
        Ok(match scalar.dtype().is_int() {
            true => Self::Integer(scalar.to_dtype(DType::I64)?.to_scalar()?),
            false => Self::Float(scalar.to_dtype(DType::F64)?.to_scalar()?),
        })
    }
}

/// The scalar in a tensor's dtype, as the bound of a maximum or minimum: for integers, cut off towards zero and
/// saturated, which the outcome would be, too.
pub(crate) fn bound(dtype: DType, scalar: &Tensor) -> Result<Tensor> {
    let Some((least, most)) = range(dtype) else {
        return scalar.to_dtype(dtype);
    };
    match Number::of(scalar)? {
        Number::Integer(value) => number(value.clamp(least, most), dtype, &Device::Cpu),
        Number::Float(value) if value.is_nan() => {
            bail!("NaN is no bound for {dtype:?}; convert the tensor with to_dtype first")
        }
        Number::Float(_) => scalar.to_dtype(dtype),
    }
}

/// Integers compared with a scalar; nothing for floats.
pub(crate) fn compare(x: &Tensor, scalar: &Tensor, op: CmpOp) -> Result<Option<Tensor>> {
    use CmpOp::{Eq, Ge, Gt, Le, Lt, Ne};
    let dtype = x.dtype();
    let Some((least, most)) = range(dtype) else {
        return Ok(None);
    };
    let always = |holds: bool| Ok(Some(Tensor::full(u8::from(holds), x.shape(), x.device())?));
    let (op, value) = match Number::of(scalar)? {
        Number::Integer(value) => (op, value),
        Number::Float(value) if value.is_nan() => return always(op == Ne),
        Number::Float(value) => {
            // No integer lies between a number and the next one below.
            let op = match (op, value.fract() != 0.) {
                (Eq, true) => return always(false),
                (Ne, true) => return always(true),
                (Lt, true) => Le,
                (Ge, true) => Gt,
                (op, _) => op,
            };
            match whole(value.floor()) {
                Some(value) => (op, value),
                None if value > 0. => return always(matches!(op, Lt | Le | Ne)),
                None => return always(matches!(op, Gt | Ge | Ne)),
            }
        }
    };
    if value > most {
        return always(matches!(op, Lt | Le | Ne));
    }
    if value < least {
        return always(matches!(op, Gt | Ge | Ne));
    }
    let value = number(value, dtype, x.device())?.broadcast_as(x.shape())?;
    Ok(Some(x.cmp(&value, op)?))
}

/// Integers rounded to `decimals`, of which a negative number counts places before the point. Halves away from zero.
pub(crate) fn round_to(x: &Tensor, decimals: i32) -> Result<Tensor> {
    if decimals >= 0 {
        return Ok(x.clone());
    }
    let unit = 10f64.powi(decimals.saturating_neg());
    let tenths = (x.to_dtype(DType::F64)? / unit)?;
    (tenths.round()? * unit)?.to_dtype(x.dtype())
}
