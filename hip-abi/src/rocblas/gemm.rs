//! The gemm entry points. One macro defines those of a type, one those that name their types; either without strides,
//! for one product, or with strides, for a batch.

use super::{rocblas_handle, rocblas_int, rocblas_status, rocblas_stride};
use crate::library::library;
use std::ffi::{c_int, c_void};

/// One operand as the C interface passes it.
pub struct Operand {
    pub pointer: *const c_void,
    pub kind: c_int,
    pub ld: c_int,
    pub stride: i64,
}

/// The arguments of every gemm entry point.
pub struct Call {
    pub trans_a: c_int,
    pub trans_b: c_int,
    pub m: c_int,
    pub n: c_int,
    pub k: c_int,
    pub alpha: *const c_void,
    pub a: Operand,
    pub b: Operand,
    pub beta: *const c_void,
    pub c: Operand,
    pub d: Operand,
    pub batch: c_int,
    pub compute: c_int,
}

/// An argument that an entry point may lack, or else its default.
macro_rules! or_default {
    ($default:literal) => {
        $default
    };
    ($default:literal, $argument:ident) => {
        $argument
    };
}

/// Defines an entry point of one type, which has the code in `rocblas_datatype`.
macro_rules! typed_gemm {
    ($name:ident, $scalar:ty, $code:literal $(, strides $sa:ident $sb:ident $sc:ident, $batch:ident)?) => {
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            handle: rocblas_handle,
            trans_a: c_int,
            trans_b: c_int,
            m: rocblas_int,
            n: rocblas_int,
            k: rocblas_int,
            alpha: *const $scalar,
            a: *const $scalar,
            lda: rocblas_int,
            $($sa: rocblas_stride,)?
            b: *const $scalar,
            ldb: rocblas_int,
            $($sb: rocblas_stride,)?
            beta: *const $scalar,
            c: *mut $scalar,
            ldc: rocblas_int,
            $($sc: rocblas_stride, $batch: rocblas_int,)?
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
                a: operand(a, lda, or_default!(0 $(, $sa)?)),
                b: operand(b, ldb, or_default!(0 $(, $sb)?)),
                beta: beta.cast(),
                c: operand(c, ldc, or_default!(0 $(, $sc)?)),
                d: operand(c, ldc, or_default!(0 $(, $sc)?)),
                batch: or_default!(1 $(, $batch)?),
                compute: $code,
            };
            // SAFETY: passed on to the caller.
            unsafe { library().gemm(handle, call) }
        }
    };
}

/// Defines an entry point whose arguments name their types, and whose result is a matrix of its own.
macro_rules! mixed_gemm {
    ($name:ident $(, strides $sa:ident $sb:ident $sc:ident $sd:ident, $batch:ident)?) => {
        #[no_mangle]
        pub unsafe extern "C" fn $name(
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
            $($sa: rocblas_stride,)?
            b: *const c_void,
            b_type: c_int,
            ldb: rocblas_int,
            $($sb: rocblas_stride,)?
            beta: *const c_void,
            c: *const c_void,
            c_type: c_int,
            ldc: rocblas_int,
            $($sc: rocblas_stride,)?
            d: *mut c_void,
            d_type: c_int,
            ldd: rocblas_int,
            $($sd: rocblas_stride, $batch: rocblas_int,)?
            compute: c_int,
            _algo: c_int,
            _solution: i32,
            _flags: u32,
        ) -> rocblas_status {
            let operand = |pointer, kind, ld, stride| Operand {
                pointer,
                kind,
                ld,
                stride,
            };
            let call = Call {
                trans_a,
                trans_b,
                m,
                n,
                k,
                alpha,
                a: operand(a, a_type, lda, or_default!(0 $(, $sa)?)),
                b: operand(b, b_type, ldb, or_default!(0 $(, $sb)?)),
                beta,
                c: operand(c, c_type, ldc, or_default!(0 $(, $sc)?)),
                d: operand(d.cast_const(), d_type, ldd, or_default!(0 $(, $sd)?)),
                batch: or_default!(1 $(, $batch)?),
                compute,
            };
            // SAFETY: passed on to the caller.
            unsafe { library().gemm(handle, call) }
        }
    };
}

typed_gemm!(rocblas_sgemm, f32, 151);
typed_gemm!(rocblas_dgemm, f64, 152);
typed_gemm!(rocblas_hgemm, u16, 150);
typed_gemm!(rocblas_sgemm_strided_batched, f32, 151, strides stride_a stride_b stride_c, batch);
typed_gemm!(rocblas_dgemm_strided_batched, f64, 152, strides stride_a stride_b stride_c, batch);
typed_gemm!(rocblas_hgemm_strided_batched, u16, 150, strides stride_a stride_b stride_c, batch);
mixed_gemm!(rocblas_gemm_ex);
mixed_gemm!(rocblas_gemm_strided_batched_ex, strides stride_a stride_b stride_c stride_d, batch);
