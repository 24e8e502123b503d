//! argsort on AMD GPUs.

use super::ArgSort;
use crate::rocm_backend::RocmError;
use crate::{Layout, Result, RocmStorage, Shape};

pub(super) fn arg_sort(_: &ArgSort, _: &RocmStorage, _: &Layout) -> Result<(RocmStorage, Shape)> {
    Err(RocmError::NotImplemented { op: "argsort" }.into())
}
