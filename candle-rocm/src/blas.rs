//! Matrix multiplication through rocBLAS.

use crate::{Buffer, DType, Device, Result, View};

/// A rocBLAS handle on a device's stream.
pub(crate) struct Blas {}

/// Batched matrix product.
///
/// `(b, m, n, k)`: `b` products of an `m x k` by a `k x n` matrix. The last two dimensions of `lhs` and
/// `rhs` are the matrices, those before them the batch, with any strides, 0 (broadcast) included. The
/// result is contiguous. Sums are made in f32 (f64 for f64).
pub fn matmul(
    _device: &Device,
    _dtype: DType,
    _bmnk: (usize, usize, usize, usize),
    _lhs: &View,
    _rhs: &View,
) -> Result<Buffer> {
    unimplemented!()
}
