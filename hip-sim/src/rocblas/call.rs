//! The arguments of a gemm entry point, checked, become a product in the handle's stream.

use super::gemm::{self, Gemm, Matrix, Scalar, Type};
use super::handle::{handles, POINTER_MODE_DEVICE};
use crate::error::HipError;
use crate::hip::graph::NodeKind;
use crate::hip::stream::{hipStream_t, stream};
use crate::sim::{sim, Counters};
use hip_abi::rocblas::{
    rocblas_handle, rocblas_status, Call, Operand, INTERNAL_ERROR, INVALID_HANDLE, INVALID_POINTER,
    INVALID_SIZE, INVALID_VALUE, NOT_IMPLEMENTED, SUCCESS,
};
use std::ffi::c_int;

/// Checks a call in rocBLAS's order and runs it in the handle's stream.
///
/// # Safety
/// `alpha` and `beta` are null or point to values of the compute type.
pub(crate) unsafe fn submit(handle: rocblas_handle, call: Call) -> rocblas_status {
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
            sim.config
                .wrong
                .product(sim.devices[stream.device].arch.name());
            let device = stream.device;
            stream.submit(sim, NodeKind::Gemm, move |sim| {
                Counters::count(&sim.counters.gemms);
                gemm.run(sim, device)
            })
        });
    match result {
        Ok(()) => SUCCESS,
        Err(HipError::InvalidHandle) => INVALID_VALUE,
        Err(_) => INTERNAL_ERROR,
    }
}
