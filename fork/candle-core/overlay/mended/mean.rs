//! Means, and what consists of them, rounded once: a sum that is rounded or overflows before it is divided spoils them.

use super::accumulate::{self, wide};
use crate::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};

/// The mean along axes, which the outcome keeps with a size of 1.
struct Mean {
    axes: Vec<usize>,
}

impl Mean {
    fn shape(&self, layout: &Layout) -> Shape {
        let mut dims = layout.dims().to_vec();
        self.axes.iter().for_each(|&axis| dims[axis] = 1);
        Shape::from(dims)
    }

    fn count(&self, dims: &[usize]) -> usize {
        self.axes.iter().map(|&axis| dims[axis]).product()
    }
}

impl CustomOp1 for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn cpu_fwd(&self, src: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let means = accumulate::mean(src, layout, &self.axes)?;
        Ok((means, self.shape(layout)))
    }

    #[cfg(feature = "rocm")]
    fn rocm_fwd(
        &self,
        src: &crate::RocmStorage,
        layout: &Layout,
    ) -> Result<(crate::RocmStorage, Shape)> {
        use candle_rocm::ops::reduce;
        let shape = self.shape(layout);
        let view = src.view(layout, "mean")?;
        let buffer = reduce::mean(src.buffer().device(), &view, &self.axes)?;
        let dtype = crate::backend::BackendStorage::dtype(src);
        Ok((src.with_buffer(buffer, dtype, shape.elem_count()), shape))
    }

    fn bwd(&self, arg: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let share = (grad / self.count(arg.dims()) as f64)?;
        Ok(Some(share.broadcast_as(arg.shape())?))
    }
}

/// The mean of `x` along `axes`, which stay with a size of 1. Integers are cut off towards zero.
pub(crate) fn keepdim(x: &Tensor, axes: Vec<usize>) -> Result<Tensor> {
    let op = Mean { axes };
    let count = op.count(x.dims());
    let (dtype, device) = (x.dtype(), x.device());
    if device.is_cpu() || device.is_rocm() && dtype.is_float() && count > 0 {
        return x.apply_op1(op);
    }
    if dtype.is_int() {
        let sum = x.to_dtype(DType::I64)?.sum_keepdim(op.axes)?;
        let count = Tensor::full(count as i64, sum.shape(), device)?;
        return (sum / count)?.to_dtype(dtype);
    }
    let sum = x.to_dtype(wide(dtype))?.sum_keepdim(op.axes)?;
    (sum / count as f64)?.to_dtype(dtype)
}

/// The unbiased variance along an axis, which stays with a size of 1.
pub(crate) fn variance_keepdim(x: &Tensor, axis: usize) -> Result<Tensor> {
    let dtype = x.dtype();
    let x = x.to_dtype(wide(dtype))?;
    let squares = x.broadcast_sub(&x.mean_keepdim(axis)?)?.sqr()?;
    (squares.sum_keepdim(axis)? / (x.dim(axis)? as f64 - 1.))?.to_dtype(dtype)
}

/// The root of the sum of the squares of all elements.
pub(crate) fn norm(x: &Tensor) -> Result<Tensor> {
    let squares = x.to_dtype(wide(x.dtype()))?.sqr()?;
    squares.sum_all()?.sqrt()?.to_dtype(x.dtype())
}

/// The sum of the products of two vectors' elements.
pub(crate) fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a_wide, b_wide) = (a.to_dtype(wide(a.dtype()))?, b.to_dtype(wide(b.dtype()))?);
    (a_wide * b_wide)?.sum_all()?.to_dtype(a.dtype())
}

/// log(sum(exp(x))) along `axes`, which the outcome does not have. Rows of -inf give -inf, those with inf give inf.
pub(crate) fn log_sum_exp(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let dtype = x.dtype();
    let x = x.to_dtype(wide(dtype))?;
    // A constant that cancels out, and no gradient goes through it.
    let mut base = x.detach();
    for &axis in axes {
        base = base.max_keepdim(axis)?;
    }
    let is_infinite = base.abs()?.eq(f64::INFINITY)?;
    let base = is_infinite.where_cond(&base.zeros_like()?, &base)?;
    let sum = x.broadcast_sub(&base)?.exp()?.sum_keepdim(axes)?;
    let mut sum = (sum.log()? + base)?;
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    for axis in axes.into_iter().rev() {
        sum = sum.squeeze(axis)?;
    }
    sum.to_dtype(dtype)
}
