//! The index that names nothing.

use crate::{DType, IntDType};

/// Whether `id` stands for no place: index_select and gather give zeros for it, scatter and index_add leave it out.
/// That is the greatest number of u32 and of i64, which no dimension is long enough for. The greatest numbers of the
/// smaller types are indices as any other.
pub(crate) fn names_nothing<I: IntDType>(id: I) -> bool {
    matches!(I::DTYPE, DType::U32 | DType::I64) && id == I::max_value()
}
