//! Products by rocBLAS.
//!
//! rocBLAS counts matrices column by column. A row-major matrix is a column-major one transposed, so the
//! product is computed as `C^T = B^T A^T`: operands swap, nothing is moved.

use super::handle::{check, make, Handle};
use super::operand::Placed;
use super::{int, Output, OP};
use crate::sync::lock;
use crate::sys::rocblas;
use crate::{DType, Device, Error, Result};
use std::ffi::{c_int, c_void};
use std::ptr;

/// `(b, m, n, k)`: `b` products of an `m x k` by a `k x n` matrix. Operands and output are checked to lie in their
/// buffers, which are the device's.
pub(super) fn multiply(
    device: &Device,
    (b, m, n, k): (usize, usize, usize, usize),
    left: &Placed,
    right: &Placed,
    output: &Output,
) -> Result<()> {
    let dtype = left.dtype();
    let (a, w) = (left.operand, right.operand);
    let (input_type, output_type) = (datatype(dtype)?, datatype(output.dtype)?);
    let row_stride = int("row stride of the result", output.row_stride)?;
    let address =
        (output.buffer.as_ptr()).wrapping_byte_add(output.offset * output.dtype.size_in_bytes());
    make(device)?;
    let (one, zero) = (Coefficient::new(dtype, 1.0), Coefficient::new(dtype, 0.0));
    device.count_launch();
    let guard = lock(device.slot::<Handle>());
    let blas = guard.as_ref().expect("made above, never removed");
    // SAFETY: views and output were checked to lie in their buffers, and
    // all belong to this device, which is bound; the coefficients are of the compute type.
    let status = unsafe {
        (blas.library.rocblas_gemm_strided_batched_ex)(
            blas.handle,
            w.operation(),
            a.operation(),
            int("number of columns", n)?,
            int("number of rows", m)?,
            int("inner dimension", k)?,
            one.as_ptr(),
            right.ptr(),
            input_type,
            int("row stride of the right operand", w.ld)?,
            w.batch_stride as i64,
            left.ptr(),
            input_type,
            int("row stride of the left operand", a.ld)?,
            a.batch_stride as i64,
            zero.as_ptr(),
            address,
            output_type,
            row_stride,
            output.batch_stride as i64,
            address,
            output_type,
            row_stride,
            output.batch_stride as i64,
            int("number of matrices", b)?,
            if dtype == DType::F64 {
                rocblas::DATATYPE_F64
            } else {
                rocblas::DATATYPE_F32
            },
            rocblas::GEMM_ALGO_STANDARD,
            0,
            rocblas::GEMM_FLAGS_NONE,
        )
    };
    check(
        device.gpu(),
        "rocblas_gemm_strided_batched_ex",
        status,
        || {
            format!(
                "{dtype} to {}, (b, m, n, k) = {:?}, left {a:?}, right {w:?}",
                output.dtype,
                (b, m, n, k)
            )
        },
    )
}

/// rocBLAS's number for a dtype.
fn datatype(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::F16 => rocblas::DATATYPE_F16,
        DType::BF16 => rocblas::DATATYPE_BF16,
        DType::F32 => rocblas::DATATYPE_F32,
        DType::F64 => rocblas::DATATYPE_F64,
        _ => return Err(Error::UnsupportedDType { op: OP, dtype }),
    })
}

/// A factor in the type that sums are made in.
enum Coefficient {
    F32(f32),
    F64(f64),
}

impl Coefficient {
    fn new(dtype: DType, value: f64) -> Self {
        match dtype {
            DType::F64 => Coefficient::F64(value),
            _ => Coefficient::F32(value as f32),
        }
    }

    fn as_ptr(&self) -> *const c_void {
        match self {
            Coefficient::F32(value) => ptr::from_ref(value).cast(),
            Coefficient::F64(value) => ptr::from_ref(value).cast(),
        }
    }
}
