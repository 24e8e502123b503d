//! Powers of one tensor by another.

use super::accumulate::wide;
use crate::backend::BackendStorage;
use crate::cpu_backend::binary_map;
use crate::{CpuStorage, CustomOp2, Error, Layout, Result, Shape, Tensor};

/// Each element to the power of the other tensor's, as IEEE 754 has it: negative numbers have integer powers, and the
/// 0th is 1 of everything.
struct Power;

impl CustomOp2 for Power {
    fn name(&self) -> &'static str {
        "pow"
    }

    fn cpu_fwd(
        &self,
        base: &CpuStorage,
        base_l: &Layout,
        exponent: &CpuStorage,
        exponent_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        use CpuStorage as C;
        // Floats of less than 32 bits are rounded once.
        macro_rules! powers {
            ($variant:ident, $a:ident, $b:ident, $float:ty) => {{
                let power = |x: $float, y: $float| {
                    let (x, y) = (x.to_f32(), y.to_f32());
                    <$float>::from_f32(x.powf(y))
                };
                C::$variant(binary_map(base_l, exponent_l, $a, $b, power))
            }};
        }
        let powers = match (base, exponent) {
            (C::F32(a), C::F32(b)) => C::F32(binary_map(base_l, exponent_l, a, b, f32::powf)),
            (C::F64(a), C::F64(b)) => C::F64(binary_map(base_l, exponent_l, a, b, f64::powf)),
            (C::F16(a), C::F16(b)) => powers!(F16, a, b, half::f16),
            (C::BF16(a), C::BF16(b)) => powers!(BF16, a, b, half::bf16),
            (C::F8E4M3(a), C::F8E4M3(b)) => powers!(F8E4M3, a, b, float8::F8E4M3),
            (a, b) if a.dtype() == b.dtype() => {
                return Err(Error::UnsupportedDTypeForOp(a.dtype(), "pow").bt())
            }
            (a, b) => {
                return Err(Error::DTypeMismatchBinaryOp {
                    lhs: a.dtype(),
                    rhs: b.dtype(),
                    op: "pow",
                }
                .bt())
            }
        };
        Ok((powers, base_l.shape().clone()))
    }

    #[cfg(feature = "rocm")]
    fn rocm_fwd(
        &self,
        base: &crate::RocmStorage,
        base_l: &Layout,
        exponent: &crate::RocmStorage,
        exponent_l: &Layout,
    ) -> Result<(crate::RocmStorage, Shape)> {
        use candle_rocm::ops::binary;
        let shape = base_l.shape().clone();
        let (a, b) = (base.view(base_l, "pow")?, exponent.view(exponent_l, "pow")?);
        let buffer = binary::power(base.buffer().device(), &a, &b)?;
        let powers = base.with_buffer(buffer, base.dtype(), shape.elem_count());
        Ok((powers, shape))
    }

    /// y x^(y-1), and 0 for the 0th power, which does not depend on the base; x^y log(x), and 0 where a base of 0 stays
    /// 0.
    fn bwd(
        &self,
        base: &Tensor,
        exponent: &Tensor,
        power: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let dtype = grad.dtype();
        let widened = |t: &Tensor| t.to_dtype(wide(dtype));
        let (base, exponent) = (widened(base)?, widened(exponent)?);
        let (power, grad) = (widened(power)?, widened(grad)?);
        let zeros = grad.zeros_like()?;
        let slope = (&exponent * pow(&base, &(&exponent - 1.)?)?)?;
        let of_base = exponent.eq(&zeros)?.where_cond(&zeros, &(&grad * slope)?)?;
        let stays = (base.eq(&zeros)? * exponent.ge(&zeros)?)?;
        let slope = (power * base.log()?)?;
        let of_exponent = stays.where_cond(&zeros, &(grad * slope)?)?;
        Ok((
            Some(of_base.to_dtype(dtype)?),
            Some(of_exponent.to_dtype(dtype)?),
        ))
    }
}

/// `base` to the power of `exponent`, which has its shape.
pub(crate) fn pow(base: &Tensor, exponent: &Tensor) -> Result<Tensor> {
    let shape = base.same_shape_binary_op(exponent, "pow")?;
    if shape.elem_count() == 0 {
        return Ok(base.clone());
    }
    if base.device().is_cpu() || base.device().is_rocm() {
        return base.apply_op2(exponent, Power);
    }
    exponent.mul(&base.log()?)?.exp()
}

/// The same of tensors that are broadcast to one shape.
pub(crate) fn broadcast(base: &Tensor, exponent: &Tensor) -> Result<Tensor> {
    let (a, b) = (base.shape(), exponent.shape());
    let shape = a.broadcast_shape_binary_op(b, "pow")?;
    pow(&base.broadcast_as(&shape)?, &exponent.broadcast_as(&shape)?)
}
