//! Matrix multiplication through rocBLAS.
//!
//! rocBLAS counts matrices column by column. A row-major matrix is a column-major one transposed, so the
//! product is computed as `C^T = B^T A^T`: operands swap, nothing is moved. An operand whose strides
//! rocBLAS cannot express is copied first.

mod handle;
mod operand;

use crate::sync::lock;
use crate::sys::rocblas;
use crate::{Buffer, DType, Device, Error, Result, View};
pub use handle::prepare;
use handle::{check, Handle};
use operand::Placed;
use std::ffi::{c_int, c_void};
use std::ptr;

const OP: &str = "matmul";

/// Batched matrix product.
///
/// `(b, m, n, k)`: `b` products of an `m x k` by a `k x n` matrix. The last two dimensions of `lhs` and
/// `rhs` are the matrices, those before them the batch, of any rank and with any strides, 0 (broadcast)
/// included. The result is contiguous, `b * m * n` elements. Sums are made in f32, for f64 in f64.
///
/// # Errors
/// [`Error::UnsupportedDType`] for anything but f16, bf16, f32 and f64; [`Error::DTypeMismatch`],
/// [`Error::ShapeMismatch`], [`Error::TooLarge`] beyond 2^31-1 rows, columns or matrices; [`Error::Load`]
/// without rocBLAS; [`Error::Blas`] with its status.
pub fn matmul(
    device: &Device,
    dtype: DType,
    (b, m, n, k): (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
) -> Result<Buffer> {
    datatype(dtype)?;
    check_operands(dtype, (b, m, n, k), lhs, rhs)?;
    let bytes = [b, m, n, dtype.size_in_bytes()]
        .into_iter()
        .try_fold(1usize, usize::checked_mul)
        .ok_or(Error::TooLarge {
            op: OP,
            what: "size of the result",
            value: usize::MAX,
            limit: isize::MAX as usize,
        })?;
    if bytes == 0 || k == 0 {
        return device.alloc_zeroed(bytes);
    }
    let result = device.alloc(bytes)?;
    let output = Output {
        buffer: &result,
        dtype,
        offset: 0,
        row_stride: n,
        batch_stride: m * n,
    };
    matmul_into(device, (b, m, n, k), lhs, rhs, &output)?;
    Ok(result)
}

/// Row-major matrices that a product is written to; distances in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output<'a> {
    pub buffer: &'a Buffer,
    /// The operands' dtype, or f32 for f16 and bf16 operands.
    pub dtype: DType,
    pub offset: usize,
    pub row_stride: usize,
    pub batch_stride: usize,
}

impl Output<'_> {
    /// Verifies that `b` matrices of `m x n` lie in the buffer.
    fn check(&self, (b, m, n): (usize, usize, usize)) -> Result<()> {
        let dims = [b, m, n];
        let strides = [self.batch_stride, self.row_stride, 1];
        View {
            buffer: self.buffer,
            dtype: self.dtype,
            offset: self.offset,
            dims: &dims,
            strides: &strides,
        }
        .check(OP)
    }
}

/// [`matmul`] into existing memory, which must not overlap the operands. All of `b`, `m`, `n` and `k` are positive.
///
/// # Errors
/// Those of [`matmul`]; [`Error::InvalidView`] if the output leaves its buffer.
pub(crate) fn matmul_into(
    device: &Device,
    (b, m, n, k): (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
    output: &Output,
) -> Result<()> {
    let dtype = lhs.dtype;
    check_operands(dtype, (b, m, n, k), lhs, rhs)?;
    output.check((b, m, n))?;
    for buffer in [lhs.buffer, rhs.buffer, output.buffer] {
        if !buffer.device().same_device(device) {
            return Err(Error::DeviceMismatch { op: OP });
        }
    }
    let int = |what, value| {
        c_int::try_from(value).map_err(|_| Error::TooLarge {
            op: OP,
            what,
            value,
            limit: c_int::MAX as usize,
        })
    };
    for (what, value) in [("number of matrices", b), ("number of rows", m)] {
        int(what, value)?;
    }
    let (columns, inner) = (int("number of columns", n)?, int("inner dimension", k)?);
    let left = Placed::new(device, lhs)?;
    let right = Placed::new(device, rhs)?;
    let (a, w) = (left.operand, right.operand);
    // One matrix for the whole batch: the left matrices, if they lie behind each other, are one tall one.
    let tall = w.batch_stride == 0
        && !a.transposed
        && a.ld.checked_mul(m) == Some(a.batch_stride)
        && output.row_stride.checked_mul(m) == Some(output.batch_stride)
        && c_int::try_from(b.saturating_mul(m)).is_ok();
    let (batch, rows) = if tall { (1, b * m) } else { (b, m) };
    let (input_type, output_type) = (datatype(dtype)?, datatype(output.dtype)?);
    let row_stride = int("row stride of the result", output.row_stride)?;
    let address =
        (output.buffer.as_ptr()).wrapping_byte_add(output.offset * output.dtype.size_in_bytes());
    prepare(device)?;
    let (one, zero) = (Coefficient::new(dtype, 1.0), Coefficient::new(dtype, 0.0));
    device.count_launch();
    let guard = lock(device.slot::<Handle>());
    let blas = guard.as_ref().expect("made by prepare, never removed");
    // SAFETY: views and output were checked to lie in their buffers, and
    // all belong to this device, which is bound; the coefficients are of the compute type.
    let status = unsafe {
        (blas.library.rocblas_gemm_strided_batched_ex)(
            blas.handle,
            w.operation(),
            a.operation(),
            columns,
            int("number of rows", rows)?,
            inner,
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
            int("number of matrices", batch)?,
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

fn check_operands(
    dtype: DType,
    (b, m, n, k): (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
) -> Result<()> {
    for view in [lhs, rhs] {
        if view.dtype != dtype {
            return Err(Error::DTypeMismatch {
                op: OP,
                lhs: lhs.dtype,
                rhs: rhs.dtype,
            });
        }
        view.check(OP)?;
    }
    let is = |view: &View, matrix: [usize; 2]| {
        view.dims
            .split_last_chunk::<2>()
            .is_some_and(|(batch, last)| *last == matrix && batch.iter().product::<usize>() == b)
    };
    if is(lhs, [m, k]) && is(rhs, [k, n]) {
        return Ok(());
    }
    Err(Error::ShapeMismatch {
        op: OP,
        lhs: lhs.dims.to_vec(),
        rhs: rhs.dims.to_vec(),
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
