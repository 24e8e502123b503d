//! Matrix multiplication: by rocBLAS, or by kernels of our own where it cannot work or [was found](tune) to be slower.
//!
//! An operand whose strides a multiplier cannot express is copied first: rocBLAS takes rows or columns that lie dense
//! and do not overlap, our own kernels also those that do.

mod backend;
mod float8;
mod handle;
mod library;
mod measured;
mod operand;
mod scaled;
mod tensile;
mod tune;

use crate::config::Multiplier;
use crate::kernels::Ptr;
use crate::ops::matmul::{multiply, Matrices, Product};
use crate::verify::{self, product_is_right};
use crate::{Buffer, DType, Device, Error, Result, View};
pub use backend::{multiplier, refusal};
pub use handle::prepare;
pub use measured::{Class, Size};
use operand::{Operand, Placed};
pub use scaled::{forget_scaled, scaled_matmul, tune_scaled, ScaledTiming};
use std::ffi::c_int;
pub use tune::{forget, tune, Timing};

const OP: &str = "matmul";
const DTYPES: [DType; 5] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];

/// Batched matrix product.
///
/// `(b, m, n, k)`: `b` products of an `m x k` by a `k x n` matrix. The last two dimensions of `lhs` and
/// `rhs` are the matrices, those before them the batch, of any rank and with any strides, 0 (broadcast)
/// included. The result is contiguous, `b * m * n` elements. Sums are made in f32, for f64 in f64, and rounded once;
/// those of f8e4m3 saturate at ±448.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers; [`Error::DTypeMismatch`],
/// [`Error::ShapeMismatch`], [`Error::TooLarge`] beyond 2^31-1 rows, columns or matrices; [`Error::Blas`] with rocBLAS's
/// status; [`Error::Load`] without it where it is [forced](Multiplier::Rocblas).
pub fn matmul(
    device: &Device,
    dtype: DType,
    (b, m, n, k): (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
) -> Result<Buffer> {
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
    if dtype == DType::F8E4M3 {
        return float8::matmul(device, (b, m, n, k), lhs, rhs);
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
/// Those of [`matmul`], and [`Error::UnsupportedDType`] for f8e4m3; [`Error::InvalidView`] if the output leaves its buffer.
pub(crate) fn matmul_into(
    device: &Device,
    bmnk: (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
    output: &Output,
) -> Result<()> {
    multiply_by(device, None, bmnk, lhs, rhs, output)
}

/// [`matmul_into`] by rocBLAS, whatever is known of it.
///
/// # Errors
/// Those of [`matmul_into`].
pub(crate) fn matmul_by_rocblas(
    device: &Device,
    bmnk: (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
    output: &Output,
) -> Result<()> {
    multiply_by(device, Some(Multiplier::Rocblas), bmnk, lhs, rhs, output)
}

/// [`matmul_into`] by a multiplier of the caller's choice, or by the one that suits.
fn multiply_by(
    device: &Device,
    forced: Option<Multiplier>,
    (b, m, n, k): (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
    output: &Output,
) -> Result<()> {
    let dtype = lhs.dtype;
    check_operands(dtype, (b, m, n, k), lhs, rhs)?;
    output.check((b, m, n))?;
    let widens = output.dtype == DType::F32 && dtype.size_in_bytes() == 2;
    if dtype == DType::F8E4M3 || output.dtype != dtype && !widens {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: output.dtype,
        });
    }
    for buffer in [lhs.buffer, rhs.buffer, output.buffer] {
        if !buffer.device().same_device(device) {
            return Err(Error::DeviceMismatch { op: OP });
        }
    }
    for (what, value) in [
        ("number of matrices", b),
        ("number of rows", m),
        ("number of columns", n),
        ("inner dimension", k),
    ] {
        int(what, value)?;
    }
    // What rocBLAS needs a copy of, it takes row by row.
    let transposed =
        [lhs, rhs].map(|view| Operand::of(view).is_some_and(|operand| operand.transposed));
    let class = Class::of(dtype, transposed, m.min(n));
    let mut who = forced.unwrap_or_else(|| multiplier(device, class));
    if forced.is_none() && who == Multiplier::Rocblas {
        // As rocBLAS is called, whose first operand is the right one.
        let product = verify::Product {
            dtype,
            output: output.dtype,
            transposed: [transposed[1], transposed[0]],
        };
        if !product_is_right(device, &product)? {
            if device.config().matmul.is_some() {
                return Err(verify::refused_product(device, &product));
            }
            who = Multiplier::Own;
        }
    }
    let any_stride = who == Multiplier::Own;
    let left = Placed::new(device, lhs, any_stride)?;
    let right = Placed::new(device, rhs, any_stride)?;
    let (a, w) = (left.operand, right.operand);
    // One matrix for the whole batch: the left matrices, if they lie behind each other, are one tall one.
    let tall = w.batch_stride == 0
        && !a.transposed
        && a.ld.checked_mul(m) == Some(a.batch_stride)
        && output.row_stride.checked_mul(m) == Some(output.batch_stride)
        && c_int::try_from(b.saturating_mul(m)).is_ok();
    let (batches, m) = if tall { (1, b * m) } else { (b, m) };
    match who {
        Multiplier::Rocblas => library::multiply(device, (batches, m, n, k), &left, &right, output),
        Multiplier::Own => {
            let product = Product {
                dtype,
                batches,
                m,
                n,
                k,
                left: left.matrices(),
                right: Matrices {
                    along_k: w.transposed,
                    ..right.matrices()
                },
                out: Ptr::at(output.buffer, output.offset * output.dtype.size_in_bytes()),
                wide: widens,
                out_stride: output.row_stride,
                out_batch: output.batch_stride,
            };
            // SAFETY: views and output were checked to lie in their buffers; that they do not overlap is the caller's
            // promise.
            unsafe { multiply(device, &product) }
        }
    }
}

/// A size as rocBLAS counts it, and our kernels do.
fn int(what: &'static str, value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| Error::TooLarge {
        op: OP,
        what,
        value,
        limit: c_int::MAX as usize,
    })
}

fn check_operands(
    dtype: DType,
    (b, m, n, k): (usize, usize, usize, usize),
    lhs: &View,
    rhs: &View,
) -> Result<()> {
    if !DTYPES.contains(&dtype) {
        return Err(Error::UnsupportedDType { op: OP, dtype });
    }
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
