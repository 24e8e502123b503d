//! Matrix multiplication through rocBLAS.
//!
//! rocBLAS counts matrices column by column. A row-major matrix is a column-major one transposed, so the
//! product is computed as `C^T = B^T A^T`: operands swap, nothing is moved. An operand whose strides
//! rocBLAS cannot express is copied first.

use crate::gpu::Gpu;
use crate::ops::copy::copy_strided;
use crate::shared::Shared;
use crate::slots::Kept;
use crate::sync::lock;
use crate::sys::hip;
use crate::sys::rocblas::{self, RocBlas, RocBlasHandle, RocBlasStatus};
use crate::{Buffer, DType, Device, Error, Result, View};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

const OP: &str = "matmul";

/// Workspace that rocBLAS gets once, as its own default is: it must not allocate while a graph is captured.
const WORKSPACE_BYTES: usize = 32 << 20;
/// On small devices the workspace is at most this fraction of the memory.
const WORKSPACE_FRACTION: usize = 256;

/// A rocBLAS handle on a device's stream.
struct Blas {
    shared: &'static Shared,
    library: &'static RocBlas,
    handle: RocBlasHandle,
    workspace: *mut c_void,
}

// SAFETY: a handle may be used from any thread, one at a time; a mutex holds it.
unsafe impl Send for Blas {}

/// The handle of a device, made when the first product asks for it.
type Handle = Mutex<Option<Blas>>;

impl Kept for Handle {}

impl Blas {
    fn new(device: &Device) -> Result<Self> {
        let library = &RocBlas::get()?.functions;
        let shared = device.shared();
        let gpu = &shared.gpu;
        let mut handle = ptr::null_mut();
        let create = || {
            // SAFETY: the device is bound and `handle` receives the handle.
            unsafe { (library.rocblas_create_handle)(&mut handle) }
        };
        let status = shared.captures.exclude(create);
        check(gpu, "rocblas_create_handle", status, || {
            "check that this rocBLAS has kernels for the architecture".to_string()
        })?;
        let mut blas = Blas {
            shared,
            library,
            handle,
            workspace: ptr::null_mut(),
        };
        let bytes = WORKSPACE_BYTES.min(gpu.properties.total_memory / WORKSPACE_FRACTION);
        // SAFETY: `workspace` receives the address.
        let mut allocate = || unsafe { (gpu.hip.hipMalloc)(&mut blas.workspace, bytes) };
        let mut status = allocate();
        if status == hip::ERROR_OUT_OF_MEMORY {
            device.trim()?;
            status = allocate();
        }
        gpu.check("hipMalloc (rocBLAS workspace)", status)?;
        let none = String::new;
        // SAFETY: the handle is alive, and so is the workspace as long as it.
        unsafe {
            let status = (library.rocblas_set_stream)(handle, device.stream().as_raw());
            check(gpu, "rocblas_set_stream", status, none)?;
            let status = (library.rocblas_set_workspace)(handle, blas.workspace, bytes);
            check(gpu, "rocblas_set_workspace", status, none)?;
            let status = (library.rocblas_set_pointer_mode)(handle, rocblas::POINTER_MODE_HOST);
            check(gpu, "rocblas_set_pointer_mode", status, none)?;
            if let Some(set_atomics_mode) = library.rocblas_set_atomics_mode {
                let status = set_atomics_mode(handle, rocblas::ATOMICS_NOT_ALLOWED);
                check(gpu, "rocblas_set_atomics_mode", status, none)?;
            }
        }
        Ok(blas)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        let gpu = &self.shared.gpu;
        let freed = gpu.bind().and_then(|()| {
            // SAFETY: handle and workspace are ours; the device's stream is idle when it is dropped.
            let free = || unsafe {
                (
                    (self.library.rocblas_destroy_handle)(self.handle),
                    (gpu.hip.hipFree)(self.workspace),
                )
            };
            let (destroyed, freed) = self.shared.captures.exclude(free);
            check(gpu, "rocblas_destroy_handle", destroyed, String::new)?;
            gpu.check("hipFree (rocBLAS workspace)", freed)
        });
        gpu.defer(freed);
    }
}

fn check(
    gpu: &Gpu,
    call: &'static str,
    code: RocBlasStatus,
    context: impl FnOnce() -> String,
) -> Result<()> {
    if code == rocblas::SUCCESS {
        return Ok(());
    }
    Err(Error::Blas {
        call,
        arch: gpu.properties.full_arch.clone(),
        code,
        status: rocblas::status_name(code),
        context: context(),
    })
}

/// Creates the device's rocBLAS handle and workspace now instead of at the first product, as is needed
/// before a graph is captured.
///
/// # Errors
/// [`Error::Load`] without rocBLAS, [`Error::Blas`].
pub fn prepare(device: &Device) -> Result<()> {
    device.enter()?;
    let mut blas = lock(device.slot::<Handle>());
    if blas.is_none() {
        *blas = Some(Blas::new(device)?);
    }
    Ok(())
}

/// A matrix operand as rocBLAS takes it: row-major rows of `ld` elements, or the transpose of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operand {
    transposed: bool,
    /// Elements between rows as stored.
    ld: usize,
    /// Elements between the matrices of a batch.
    batch_stride: usize,
}

impl Operand {
    /// The matrices of a view, if rocBLAS can take its strides.
    fn of(view: &View) -> Option<Self> {
        let (batch, [rows, columns]) = view.dims.split_last_chunk::<2>()?;
        let (batch_strides, [row_stride, column_stride]) = view.strides.split_last_chunk::<2>()?;
        let batch_stride = uniform_stride(batch, batch_strides)?;
        // Along a dimension of one element any stride will do.
        let along_row = *columns == 1 || *column_stride == 1;
        let along_column = *rows == 1 || *row_stride == 1;
        let (transposed, ld) = if along_row && (*rows == 1 || row_stride >= columns) {
            let ld = if *rows == 1 { *columns } else { *row_stride };
            (false, ld)
        } else if along_column && (*columns == 1 || column_stride >= rows) {
            let ld = if *columns == 1 { *rows } else { *column_stride };
            (true, ld)
        } else {
            return None;
        };
        Some(Operand {
            transposed,
            ld,
            batch_stride,
        })
    }

    fn operation(self) -> c_int {
        if self.transposed {
            rocblas::OPERATION_TRANSPOSE
        } else {
            rocblas::OPERATION_NONE
        }
    }
}

/// The one stride that walks all dimensions in row-major order, if there is one.
fn uniform_stride(dims: &[usize], strides: &[usize]) -> Option<usize> {
    let mut walk: Option<(usize, usize)> = None;
    for (&dim, &stride) in dims.iter().zip(strides).rev().filter(|(&dim, _)| dim != 1) {
        walk = Some(match walk {
            None => (stride, stride.checked_mul(dim)?),
            Some((first, next)) if stride == next => (first, stride.checked_mul(dim)?),
            Some(_) => return None,
        });
    }
    Some(walk.map_or(0, |(first, _)| first))
}

/// Device memory of an operand, copied if need be.
struct Placed<'a> {
    operand: Operand,
    owned: Option<Buffer>,
    view: &'a View<'a>,
}

impl<'a> Placed<'a> {
    fn new(device: &Device, view: &'a View<'a>) -> Result<Self> {
        if let Some(operand) = Operand::of(view) {
            return Ok(Placed {
                operand,
                owned: None,
                view,
            });
        }
        let copy = device.alloc(view.elem_count() * view.dtype.size_in_bytes())?;
        copy_strided(device, view, &copy, 0)?;
        let [rows, columns] = *view.dims.last_chunk::<2>().expect("checked to be matrices");
        Ok(Placed {
            operand: Operand {
                transposed: false,
                ld: columns,
                batch_stride: rows * columns,
            },
            owned: Some(copy),
            view,
        })
    }

    fn ptr(&self) -> *const c_void {
        match &self.owned {
            Some(copy) => copy.as_ptr(),
            None => {
                let offset = self.view.offset * self.view.dtype.size_in_bytes();
                self.view.buffer.as_ptr().wrapping_byte_add(offset)
            }
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::uniform_stride;

    #[test]
    fn batch_strides_merge_only_if_one_step_walks_them() {
        assert_eq!(uniform_stride(&[], &[]), Some(0));
        assert_eq!(uniform_stride(&[2, 3], &[36, 12]), Some(12));
        assert_eq!(uniform_stride(&[2, 1, 3], &[36, 999, 12]), Some(12));
        assert_eq!(uniform_stride(&[2, 3], &[0, 0]), Some(0));
        assert_eq!(uniform_stride(&[2, 3], &[12, 0]), None);
        assert_eq!(uniform_stride(&[2, 3], &[0, 12]), None);
        assert_eq!(uniform_stride(&[1, 1], &[7, 9]), Some(0));
    }
}
