//! The index that names nothing.

use crate::{DType, IntDType, Result, Tensor};

/// Whether `id` stands for no place: index_select and gather give zeros for it, scatter and index_add leave it out.
/// That is the greatest number of u32 and of i64, which no dimension is long enough for. The greatest numbers of the
/// smaller types are indices as any other.
pub(crate) fn names_nothing<I: IntDType>(id: I) -> bool {
    matches!(I::DTYPE, DType::U32 | DType::I64) && id == I::max_value()
}

/// Ids as u32. What is no index of that dtype becomes one that no tensor is long enough for, so that it is an error.
pub(crate) fn as_u32(ids: &Tensor) -> Result<Tensor> {
    const BEYOND: i64 = u32::MAX as i64 - 1;
    if matches!(ids.dtype(), DType::U8 | DType::U32) {
        return ids.to_dtype(DType::U32);
    }
    let ids = ids.to_dtype(DType::I64)?;
    let beyond = Tensor::full(BEYOND, ids.shape(), ids.device())?;
    let ids = ids
        .eq(i64::MAX)?
        .where_cond(&Tensor::full(BEYOND + 1, ids.shape(), ids.device())?, &ids)?;
    let are_ids = (ids.ge(0i64)? * ids.le(BEYOND + 1)?)?;
    are_ids.where_cond(&ids, &beyond)?.to_dtype(DType::U32)
}
