//! Products of matrices of floats by kernels of our own: of any layout, in tiles or, with a few vectors, row by row.
//!
//! [`blas`](crate::blas) checks products and decides which of them come here.

mod gemm;
mod gemv;

use crate::kernels::Ptr;
use crate::{DType, DeclaredKernel, Device, Result};

const OP: &str = "matmul";

/// Every kernel that is declared here.
pub(super) fn declared() -> Vec<DeclaredKernel> {
    [gemm::declared(), gemv::declared()].concat()
}

/// The matrices of an operand. Distances are in elements, and may be anything, 0 included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrices<'a> {
    /// The first element of the first one.
    pub at: Ptr<'a>,
    /// Whether the elements of a row are neighbours along the dimension that is summed over; else those across it are.
    pub along_k: bool,
    /// Between what are not neighbours.
    pub stride: usize,
    /// Between matrices.
    pub batch_stride: usize,
}

/// `batches` products of an `m x k` by a `k x n` matrix, all of them positive and below 2^31.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product<'a> {
    /// Of the operands: f16, bf16, f32 or f64.
    pub dtype: DType,
    pub batches: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub left: Matrices<'a>,
    pub right: Matrices<'a>,
    /// The first element of the result.
    pub out: Ptr<'a>,
    /// Whether the result is f32 while the operands have 16 bits.
    pub wide: bool,
    /// Between the rows of the result, whose elements are neighbours.
    pub out_stride: usize,
    /// Between matrices of the result.
    pub out_batch: usize,
}

/// Enqueues a product.
///
/// # Safety
/// All matrices lie in their buffers, and the result overlaps none of the operands.
///
/// # Errors
/// [`Error::TooLarge`](crate::Error::TooLarge) for more tiles than a kernel counts, and the device's.
pub(crate) unsafe fn multiply(device: &Device, product: &Product) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        match gemv::Plan::of(device.properties(), product) {
            Some(plan) => plan.launch(device, product),
            None => gemm::Plan::of(device.properties(), product)?.launch(device, product),
        }
    }
}

/// [`multiply`] in tiles of `edge` rows and columns, with K in so many parts.
///
/// # Safety
/// That of [`multiply`].
///
/// # Errors
/// The device's.
pub(crate) unsafe fn multiply_in_tiles(
    device: &Device,
    product: &Product,
    edge: u32,
    parts: usize,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { gemm::Plan::forced(product, edge, parts).launch(device, product) }
}
