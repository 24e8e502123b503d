//! Cumulative sums: each element of the outcome is the sum of what came before it in the input and of itself.

use super::accumulate::{by_dtype, Accumulate};
use crate::cpu_backend::unary_map;
use crate::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// The cumulative sum along an axis, from its end if `reversed`.
struct CumSum {
    axis: usize,
    reversed: bool,
}

impl CustomOp1 for CumSum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn cpu_fwd(&self, src: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let sums = by_dtype!(src, "cumsum", v => self.sums(v, layout));
        Ok((sums, layout.shape().clone()))
    }

    #[cfg(feature = "rocm")]
    fn rocm_fwd(
        &self,
        src: &crate::RocmStorage,
        layout: &Layout,
    ) -> Result<(crate::RocmStorage, Shape)> {
        use candle_rocm::ops::scan;
        let shape = layout.shape().clone();
        let view = src.view(layout, "cumsum")?;
        let buffer = scan::cumsum(src.buffer().device(), &view, self.axis, self.reversed)?;
        let dtype = crate::backend::BackendStorage::dtype(src);
        Ok((src.with_buffer(buffer, dtype, shape.elem_count()), shape))
    }

    /// An element is part of every sum from its own place on.
    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let back = CumSum {
            axis: self.axis,
            reversed: !self.reversed,
        };
        grad.apply_op1(back).map(Some)
    }
}

impl CumSum {
    fn sums<T: Accumulate>(&self, src: &[T], layout: &Layout) -> Vec<T> {
        let copy;
        let src = match layout.contiguous_offsets() {
            Some((begin, end)) => &src[begin..end],
            None => {
                copy = unary_map(src, layout, |v| v);
                &copy[..]
            }
        };
        let dims = layout.dims();
        let steps = dims[self.axis];
        let inner: usize = dims[self.axis + 1..].iter().product();
        let mut out = vec![T::zero(); src.len()];
        if out.is_empty() {
            return out;
        }
        let mut sums = vec![T::Sum::default(); inner];
        for (src, out) in src.chunks(steps * inner).zip(out.chunks_mut(steps * inner)) {
            sums.fill(T::Sum::default());
            for step in 0..steps {
                let step = if self.reversed {
                    steps - 1 - step
                } else {
                    step
                };
                let line = step * inner..(step + 1) * inner;
                let elements = src[line.clone()].iter().zip(&mut out[line]);
                for (sum, (&element, out)) in sums.iter_mut().zip(elements) {
                    *sum = T::added(*sum, element);
                    *out = T::of(*sum);
                }
            }
        }
        out
    }
}

/// The cumulative sum along an axis of `x`; none on devices that have no scan.
pub(crate) fn cumsum(x: &Tensor, axis: usize) -> Result<Option<Tensor>> {
    if !x.device().is_cpu() && !x.device().is_rocm() {
        return Ok(None);
    }
    let op = CumSum {
        axis,
        reversed: false,
    };
    x.apply_op1(op).map(Some)
}
