//! Operations that add up many products or elements, of floats of less than 32 bits: in f32, and rounded once.

use half::slice::HalfFloatSliceExt;
use half::{f16, vec::HalfFloatVecExt};
use rayon::prelude::*;

use super::accumulate::wide;
use crate::backend::BackendStorage;
use crate::cpu_backend::{Map2, MatMul};
use crate::{CpuStorage, CpuStorageRef, Layout, Result, WithDType};

/// Up to so many products, which are one block of the product's, nothing is rounded between.
pub(crate) const FEW_PRODUCTS: usize = 64;

/// Elements that a thread converts at a time.
const PIECE: usize = 1 << 14;

/// A product of f16 matrices in f32.
pub(crate) fn matmul<T: WithDType>(
    op: &MatMul,
    lhs: &[T],
    lhs_l: &Layout,
    rhs: &[T],
    rhs_l: &Layout,
) -> Result<Vec<T>> {
    let (lhs, lhs_l) = in_f32(lhs, lhs_l)?;
    let (rhs, rhs_l) = in_f32(rhs, rhs_l)?;
    let product = Map2::f(op, &lhs, &lhs_l, &rhs, &rhs_l)?;
    T::cpu_storage_data(CpuStorage::F16(Vec::<f16>::from_f32_slice(&product)))
}

/// The part of an f16 tensor's memory that its elements lie in, and the layout in that part.
fn in_f32<T: WithDType>(data: &[T], layout: &Layout) -> Result<(Vec<f32>, Layout)> {
    let CpuStorageRef::F16(data) = T::cpu_storage_ref(data) else {
        crate::bail!(
            "internal error: a product of f16 was asked of {:?}",
            T::DTYPE
        )
    };
    let last = |(&size, &stride): (&usize, &usize)| (size.max(1) - 1) * stride;
    let extent: usize = layout.dims().iter().zip(layout.stride()).map(last).sum();
    let start = layout.start_offset();
    let end = data.len().min(start + extent + 1);
    let data = &data[start.min(end)..end];
    let mut floats = vec![0f32; data.len()];
    data.par_chunks(PIECE)
        .zip(floats.par_chunks_mut(PIECE))
        .for_each(|(halves, floats)| halves.convert_to_f32_slice(floats));
    let layout = Layout::new(layout.shape().clone(), layout.stride().to_vec(), 0);
    Ok((floats, layout))
}

/// What `op` makes of two tensors in f32, rounded; none for dtypes that need not be widened.
pub(crate) fn widened(
    (x, x_l): (&CpuStorage, &Layout),
    (y, y_l): (&CpuStorage, &Layout),
    op: impl FnOnce(&CpuStorage, &Layout, &CpuStorage, &Layout) -> Result<CpuStorage>,
) -> Result<Option<CpuStorage>> {
    let dtype = x.dtype();
    if wide(dtype) == dtype || y.dtype() != dtype {
        return Ok(None);
    }
    let (x, y) = (x.to_dtype(x_l, wide(dtype))?, y.to_dtype(y_l, wide(dtype))?);
    let contiguous = |layout: &Layout| Layout::contiguous(layout.shape());
    let out = op(&x, &contiguous(x_l), &y, &contiguous(y_l))?;
    let count = out.as_slice::<f32>()?.len();
    out.to_dtype(&Layout::contiguous(count), dtype).map(Some)
}
