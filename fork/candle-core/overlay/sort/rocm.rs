//! argsort on AMD GPUs.

use super::ArgSort;
use crate::backend::BackendStorage;
use crate::{DType, Layout, Result, RocmStorage, Shape};

pub(super) fn arg_sort(op: &ArgSort, x: &RocmStorage, l: &Layout) -> Result<(RocmStorage, Shape)> {
    let device = x.device().device();
    let buffer = candle_rocm::ops::sort::argsort(device, &x.view(l, "argsort")?, op.asc)?;
    let shape = l.shape().clone();
    let indices = x.with_buffer(buffer, DType::U32, shape.elem_count());
    Ok((indices, shape))
}
