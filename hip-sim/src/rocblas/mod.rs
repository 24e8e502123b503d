//! The C ABI of rocBLAS: handles and matrix products. Functions have the names and signatures of AMD's library.
#![allow(
    missing_docs,
    non_snake_case,
    non_camel_case_types,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

mod gemm;

use crate::cuda::on_cuda;
use crate::error::HipError;
use crate::hip::graph::NodeKind;
use crate::hip::stream::{hipStream_t, stream};
use crate::registry::Registry;
use crate::sim::{sim, Counters};
use gemm::{Gemm, Matrix, Scalar, Type};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::sync::{Arc, Mutex, OnceLock};

pub type rocblas_handle = *mut c_void;
pub type rocblas_status = c_int;
pub type rocblas_int = c_int;
pub type rocblas_stride = i64;

const SUCCESS: rocblas_status = 0;
const INVALID_HANDLE: rocblas_status = 1;
const NOT_IMPLEMENTED: rocblas_status = 2;
const INVALID_POINTER: rocblas_status = 3;
const INVALID_SIZE: rocblas_status = 4;
const INTERNAL_ERROR: rocblas_status = 6;
const INVALID_VALUE: rocblas_status = 11;

const NAMES: &[&CStr] = &[
    c"rocblas_status_success",
    c"rocblas_status_invalid_handle",
    c"rocblas_status_not_implemented",
    c"rocblas_status_invalid_pointer",
    c"rocblas_status_invalid_size",
    c"rocblas_status_memory_error",
    c"rocblas_status_internal_error",
    c"rocblas_status_perf_degraded",
    c"rocblas_status_size_query_mismatch",
    c"rocblas_status_size_increased",
    c"rocblas_status_size_unchanged",
    c"rocblas_status_invalid_value",
    c"rocblas_status_continue",
    c"rocblas_status_check_numerics_fail",
    c"rocblas_status_excluded_from_build",
    c"rocblas_status_arch_mismatch",
];
const VERSION: &CStr = c"5.2.0.hip-sim";
const POINTER_MODE_DEVICE: c_int = 1;

#[derive(Default)]
struct Settings {
    stream: usize,
    pointer_mode: c_int,
    atomics_mode: c_int,
}

type Handle = Mutex<Settings>;

fn handles() -> &'static Registry<Handle> {
    static HANDLES: OnceLock<Registry<Handle>> = OnceLock::new();
    HANDLES.get_or_init(Registry::default)
}

/// Runs `f` on the settings of a handle.
fn with(handle: rocblas_handle, f: impl FnOnce(&mut Settings) -> rocblas_status) -> rocblas_status {
    match handles().get(handle) {
        Some(settings) => f(&mut settings.lock().unwrap_or_else(|e| e.into_inner())),
        None => INVALID_HANDLE,
    }
}

/// Runs `f` on the settings of a handle and writes its answer.
///
/// # Safety
/// `out` is null or writable.
unsafe fn get<T>(
    handle: rocblas_handle,
    out: *mut T,
    f: impl FnOnce(&Settings) -> T,
) -> rocblas_status {
    with(handle, |settings| {
        if out.is_null() {
            return INVALID_POINTER;
        }
        // SAFETY: not null; the caller's promise.
        unsafe { out.write(f(settings)) };
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_create_handle(out: *mut rocblas_handle) -> rocblas_status {
    on_cuda!(rocblas_create_handle(out));
    if out.is_null() {
        return INVALID_HANDLE;
    }
    if sim().gate().is_err() {
        return INTERNAL_ERROR;
    }
    // SAFETY: not null; the caller's pointer.
    unsafe { *out = handles().insert(Arc::default()) };
    SUCCESS
}

#[no_mangle]
pub extern "C" fn rocblas_destroy_handle(handle: rocblas_handle) -> rocblas_status {
    on_cuda!(rocblas_destroy_handle(handle));
    handles().remove(handle).map_or(INVALID_HANDLE, |_| SUCCESS)
}

#[no_mangle]
pub extern "C" fn rocblas_initialize() {}

#[no_mangle]
pub extern "C" fn rocblas_set_stream(
    handle: rocblas_handle,
    stream: hipStream_t,
) -> rocblas_status {
    on_cuda!(rocblas_set_stream(handle, stream));
    with(handle, |settings| {
        settings.stream = stream as usize;
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_stream(
    handle: rocblas_handle,
    out: *mut hipStream_t,
) -> rocblas_status {
    // SAFETY: the caller's pointer.
    unsafe { get(handle, out, |s| s.stream as hipStream_t) }
}

#[no_mangle]
pub extern "C" fn rocblas_set_pointer_mode(handle: rocblas_handle, mode: c_int) -> rocblas_status {
    on_cuda!(rocblas_set_pointer_mode(handle, mode));
    with(handle, |settings| {
        settings.pointer_mode = mode;
        if matches!(mode, 0 | POINTER_MODE_DEVICE) {
            SUCCESS
        } else {
            INVALID_VALUE
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_pointer_mode(
    handle: rocblas_handle,
    out: *mut c_int,
) -> rocblas_status {
    // SAFETY: the caller's pointer.
    unsafe { get(handle, out, |s| s.pointer_mode) }
}

#[no_mangle]
pub extern "C" fn rocblas_set_atomics_mode(handle: rocblas_handle, mode: c_int) -> rocblas_status {
    on_cuda!(rocblas_set_atomics_mode(handle, mode));
    with(handle, |settings| {
        settings.atomics_mode = mode;
        SUCCESS
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_atomics_mode(
    handle: rocblas_handle,
    out: *mut c_int,
) -> rocblas_status {
    // SAFETY: the caller's pointer.
    unsafe { get(handle, out, |s| s.atomics_mode) }
}

/// Accepts a workspace, which the simulator does not need; it has to be device memory.
#[no_mangle]
pub extern "C" fn rocblas_set_workspace(
    handle: rocblas_handle,
    address: *mut c_void,
    bytes: usize,
) -> rocblas_status {
    on_cuda!(rocblas_set_workspace(handle, address, bytes));
    with(handle, |_| {
        match address.is_null() || sim().memory.holds(address as usize, bytes) {
            true => SUCCESS,
            false => INVALID_POINTER,
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_version_string_size(bytes: *mut usize) -> rocblas_status {
    if bytes.is_null() {
        return INVALID_POINTER;
    }
    // SAFETY: not null; the caller's pointer.
    unsafe { *bytes = VERSION.to_bytes_with_nul().len() };
    SUCCESS
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_get_version_string(
    buffer: *mut c_char,
    bytes: usize,
) -> rocblas_status {
    let text = VERSION.to_bytes_with_nul();
    if buffer.is_null() {
        return INVALID_POINTER;
    }
    if bytes < text.len() {
        return INVALID_SIZE;
    }
    // SAFETY: the caller's buffer has room.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len()) };
    SUCCESS
}

#[no_mangle]
pub extern "C" fn rocblas_status_to_string(status: rocblas_status) -> *const c_char {
    let name = usize::try_from(status)
        .ok()
        .and_then(|i| NAMES.get(i))
        .copied();
    name.unwrap_or(c"unknown rocblas_status").as_ptr()
}

/// One operand as the C interface passes it.
struct Operand {
    pointer: *const c_void,
    kind: c_int,
    ld: c_int,
    stride: i64,
}

/// The arguments of every gemm entry point.
struct Call {
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: Operand,
    b: Operand,
    beta: *const c_void,
    c: Operand,
    d: Operand,
    batch: c_int,
    compute: c_int,
}

/// Checks a call in rocBLAS's order and runs it in the handle's stream.
///
/// # Safety
/// `alpha` and `beta` are null or point to values of the compute type.
unsafe fn submit(handle: rocblas_handle, call: Call) -> rocblas_status {
    let Some(settings) = handles().get(handle) else {
        return INVALID_HANDLE;
    };
    let settings = settings.lock().unwrap_or_else(|e| e.into_inner());
    let transposed = |op| match op {
        111 => Some(false),
        112 | 113 => Some(true),
        _ => None,
    };
    let (Some(trans_a), Some(trans_b)) = (transposed(call.trans_a), transposed(call.trans_b))
    else {
        return INVALID_VALUE;
    };
    let Call { m, n, k, batch, .. } = call;
    let (rows_a, rows_b) = (if trans_a { k } else { m }, if trans_b { n } else { k });
    if m < 0
        || n < 0
        || k < 0
        || batch < 0
        || call.a.ld < rows_a
        || call.b.ld < rows_b
        || call.c.ld < m
        || call.d.ld < m
    {
        return INVALID_SIZE;
    }
    if m == 0 || n == 0 || batch == 0 {
        return SUCCESS;
    }
    let kinds = [
        call.a.kind,
        call.b.kind,
        call.c.kind,
        call.d.kind,
        call.compute,
    ]
    .map(Type::from_code);
    let [Some(a), Some(b), Some(c), Some(d), Some(compute)] = kinds else {
        return NOT_IMPLEMENTED;
    };
    if !gemm::supports(a, b, c, d, compute) {
        return NOT_IMPLEMENTED;
    }
    if call.alpha.is_null() || call.beta.is_null() || call.d.pointer.is_null() {
        return INVALID_POINTER;
    }
    let on_device = settings.pointer_mode == POINTER_MODE_DEVICE;
    // SAFETY: not null; the caller's promise.
    let (alpha, beta) = unsafe {
        (
            Scalar::new(call.alpha, compute, on_device),
            Scalar::new(call.beta, compute, on_device),
        )
    };
    let reads_product = k > 0 && !alpha.is_zero();
    if (reads_product && (call.a.pointer.is_null() || call.b.pointer.is_null()))
        || (call.c.pointer.is_null() && !beta.is_zero())
    {
        return INVALID_POINTER;
    }
    let matrix = |o: &Operand, kind, rows: c_int, cols: c_int| Matrix {
        address: o.pointer as usize,
        kind,
        rows: rows as usize,
        cols: cols as usize,
        ld: o.ld as usize,
        stride: o.stride as isize,
    };
    let gemm = Gemm {
        trans_a,
        trans_b,
        m: m as usize,
        n: n as usize,
        k: k as usize,
        alpha,
        beta,
        a: matrix(&call.a, a, rows_a, if trans_a { m } else { k }),
        b: matrix(&call.b, b, rows_b, if trans_b { k } else { n }),
        c: matrix(&call.c, c, m, n),
        d: matrix(&call.d, d, m, n),
        batch: batch as usize,
        double: compute == Type::F64,
    };
    let sim = sim();
    let result = sim
        .gate()
        .and_then(|()| stream(sim, settings.stream as hipStream_t))
        .and_then(|stream| {
            stream.submit(sim, NodeKind::Gemm, move |sim| {
                Counters::count(&sim.counters.gemms);
                gemm.run(sim)
            })
        });
    match result {
        Ok(()) => SUCCESS,
        Err(HipError::InvalidHandle) => INVALID_VALUE,
        Err(_) => INTERNAL_ERROR,
    }
}

/// Defines the typed entry points of one type: plain and strided-batched.
macro_rules! typed_gemm {
    ($plain:ident, $batched:ident, $scalar:ty, $code:literal) => {
        #[no_mangle]
        pub unsafe extern "C" fn $plain(
            handle: rocblas_handle,
            trans_a: c_int,
            trans_b: c_int,
            m: rocblas_int,
            n: rocblas_int,
            k: rocblas_int,
            alpha: *const $scalar,
            a: *const $scalar,
            lda: rocblas_int,
            b: *const $scalar,
            ldb: rocblas_int,
            beta: *const $scalar,
            c: *mut $scalar,
            ldc: rocblas_int,
        ) -> rocblas_status {
            // SAFETY: passed on to the caller.
            unsafe {
                $batched(
                    handle, trans_a, trans_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc,
                    0, 1,
                )
            }
        }

        #[no_mangle]
        pub unsafe extern "C" fn $batched(
            handle: rocblas_handle,
            trans_a: c_int,
            trans_b: c_int,
            m: rocblas_int,
            n: rocblas_int,
            k: rocblas_int,
            alpha: *const $scalar,
            a: *const $scalar,
            lda: rocblas_int,
            stride_a: rocblas_stride,
            b: *const $scalar,
            ldb: rocblas_int,
            stride_b: rocblas_stride,
            beta: *const $scalar,
            c: *mut $scalar,
            ldc: rocblas_int,
            stride_c: rocblas_stride,
            batch: rocblas_int,
        ) -> rocblas_status {
            let operand = |pointer: *const $scalar, ld, stride| Operand {
                pointer: pointer.cast(),
                kind: $code,
                ld,
                stride,
            };
            let call = Call {
                trans_a,
                trans_b,
                m,
                n,
                k,
                alpha: alpha.cast(),
                a: operand(a, lda, stride_a),
                b: operand(b, ldb, stride_b),
                beta: beta.cast(),
                c: operand(c, ldc, stride_c),
                d: operand(c, ldc, stride_c),
                batch,
                compute: $code,
            };
            // SAFETY: passed on to the caller.
            unsafe { submit(handle, call) }
        }
    };
}

typed_gemm!(rocblas_sgemm, rocblas_sgemm_strided_batched, f32, 151);
typed_gemm!(rocblas_dgemm, rocblas_dgemm_strided_batched, f64, 152);
typed_gemm!(rocblas_hgemm, rocblas_hgemm_strided_batched, u16, 150);

#[no_mangle]
pub unsafe extern "C" fn rocblas_gemm_ex(
    handle: rocblas_handle,
    trans_a: c_int,
    trans_b: c_int,
    m: rocblas_int,
    n: rocblas_int,
    k: rocblas_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    lda: rocblas_int,
    b: *const c_void,
    b_type: c_int,
    ldb: rocblas_int,
    beta: *const c_void,
    c: *const c_void,
    c_type: c_int,
    ldc: rocblas_int,
    d: *mut c_void,
    d_type: c_int,
    ldd: rocblas_int,
    compute_type: c_int,
    algo: c_int,
    solution: i32,
    flags: u32,
) -> rocblas_status {
    // SAFETY: passed on to the caller.
    unsafe {
        rocblas_gemm_strided_batched_ex(
            handle,
            trans_a,
            trans_b,
            m,
            n,
            k,
            alpha,
            a,
            a_type,
            lda,
            0,
            b,
            b_type,
            ldb,
            0,
            beta,
            c,
            c_type,
            ldc,
            0,
            d,
            d_type,
            ldd,
            0,
            1,
            compute_type,
            algo,
            solution,
            flags,
        )
    }
}

#[no_mangle]
pub unsafe extern "C" fn rocblas_gemm_strided_batched_ex(
    handle: rocblas_handle,
    trans_a: c_int,
    trans_b: c_int,
    m: rocblas_int,
    n: rocblas_int,
    k: rocblas_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    lda: rocblas_int,
    stride_a: rocblas_stride,
    b: *const c_void,
    b_type: c_int,
    ldb: rocblas_int,
    stride_b: rocblas_stride,
    beta: *const c_void,
    c: *const c_void,
    c_type: c_int,
    ldc: rocblas_int,
    stride_c: rocblas_stride,
    d: *mut c_void,
    d_type: c_int,
    ldd: rocblas_int,
    stride_d: rocblas_stride,
    batch: rocblas_int,
    compute: c_int,
    _algo: c_int,
    _solution: i32,
    _flags: u32,
) -> rocblas_status {
    on_cuda!(rocblas_gemm_strided_batched_ex(
        handle,
        trans_a,
        trans_b,
        m,
        n,
        k,
        alpha,
        (a, a_type, lda, stride_a),
        (b, b_type, ldb, stride_b),
        beta,
        c,
        (d, d_type, ldd, stride_d),
        batch,
        compute,
    ));
    let call = Call {
        trans_a,
        trans_b,
        m,
        n,
        k,
        alpha,
        a: Operand {
            pointer: a,
            kind: a_type,
            ld: lda,
            stride: stride_a,
        },
        b: Operand {
            pointer: b,
            kind: b_type,
            ld: ldb,
            stride: stride_b,
        },
        beta,
        c: Operand {
            pointer: c,
            kind: c_type,
            ld: ldc,
            stride: stride_c,
        },
        d: Operand {
            pointer: d,
            kind: d_type,
            ld: ldd,
            stride: stride_d,
        },
        batch,
        compute,
    };
    // SAFETY: passed on to the caller.
    unsafe { submit(handle, call) }
}
