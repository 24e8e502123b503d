//! rocBLAS products against sums in f64.

mod common;

use common::*;
use half::{bf16, f16};
use hip_sim::hip::*;
use hip_sim::rocblas::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const NONE: i32 = 111;
const TRANSPOSE: i32 = 112;
const F16: i32 = 150;
const F32: i32 = 151;
const F64: i32 = 152;
const BF16: i32 = 168;
const INVALID_POINTER: i32 = 3;
const INVALID_SIZE: i32 = 4;

struct Handle(rocblas_handle);

impl Handle {
    fn new() -> Handle {
        let mut handle = null_mut();
        assert_eq!(unsafe { rocblas_create_handle(&mut handle) }, 0);
        Handle(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        rocblas_destroy_handle(self.0);
    }
}

fn encode(values: &[f64], kind: i32) -> Vec<u8> {
    let one = |v: &f64| match kind {
        F16 => f16::from_f64(*v).to_ne_bytes().to_vec(),
        BF16 => bf16::from_f64(*v).to_ne_bytes().to_vec(),
        F32 => (*v as f32).to_ne_bytes().to_vec(),
        _ => v.to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

fn decode(bytes: &[u8], kind: i32) -> Vec<f64> {
    match kind {
        F16 => bytes
            .chunks(2)
            .map(|b| f16::from_ne_bytes([b[0], b[1]]).to_f64())
            .collect(),
        BF16 => bytes
            .chunks(2)
            .map(|b| bf16::from_ne_bytes([b[0], b[1]]).to_f64())
            .collect(),
        F32 => bytes
            .chunks(4)
            .map(|b| f32::from_ne_bytes(b.try_into().unwrap()) as f64)
            .collect(),
        _ => bytes
            .chunks(8)
            .map(|b| f64::from_ne_bytes(b.try_into().unwrap()))
            .collect(),
    }
}

/// Numbers in -1..1 that every format holds exactly.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 57) as f64 / 64.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// One shape of a batched product with gaps between columns and matrices.
#[derive(Clone, Copy, Debug)]
struct Case {
    trans: (i32, i32),
    m: i32,
    n: i32,
    k: i32,
    batch: i32,
    kind: i32,
    output: i32,
    alpha: f64,
    beta: f64,
}

fn run(case: Case) {
    let Case {
        trans,
        m,
        n,
        k,
        batch,
        kind,
        output,
        alpha,
        beta,
    } = case;
    let gap = 3;
    let (rows_a, cols_a) = if trans.0 == NONE { (m, k) } else { (k, m) };
    let (rows_b, cols_b) = if trans.1 == NONE { (k, n) } else { (n, k) };
    let (lda, ldb, ldc) = (rows_a + gap, rows_b + gap, m + gap);
    let stride = |ld: i32, cols: i32| (ld * cols + 5) as usize;
    let (sa, sb, sc) = (stride(lda, cols_a), stride(ldb, cols_b), stride(ldc, n));
    let a = numbers(sa * batch as usize, 1);
    let b = numbers(sb * batch as usize, 2);
    let c = numbers(sc * batch as usize, 3);
    let (da, db, dc) = (
        Buffer::from_slice(&encode(&a, kind)),
        Buffer::from_slice(&encode(&b, kind)),
        Buffer::from_slice(&encode(&c, output)),
    );
    let compute = if kind == F64 { F64 } else { F32 };
    let (alpha_bytes, beta_bytes) = (encode(&[alpha], compute), encode(&[beta], compute));
    let handle = Handle::new();
    let status = unsafe {
        rocblas_gemm_strided_batched_ex(
            handle.0,
            trans.0,
            trans.1,
            m,
            n,
            k,
            alpha_bytes.as_ptr().cast(),
            da.ptr,
            kind,
            lda,
            sa as i64,
            db.ptr,
            kind,
            ldb,
            sb as i64,
            beta_bytes.as_ptr().cast(),
            dc.ptr,
            output,
            ldc,
            sc as i64,
            dc.ptr,
            output,
            ldc,
            sc as i64,
            batch,
            compute,
            0,
            0,
            0,
        )
    };
    assert_eq!(status, 0, "{case:?}");
    let result = decode(&dc.to_vec::<u8>(), output);
    // A rounding of the output, and a few of the sum.
    let unit = match output {
        F16 => 2f64.powi(-11),
        BF16 => 2f64.powi(-8),
        F32 => 2f64.powi(-22),
        _ => 2f64.powi(-50),
    };
    let mut expected = c.clone();
    for i in 0..batch as usize {
        for col in 0..n as usize {
            for row in 0..m as usize {
                let sum: f64 = (0..k as usize)
                    .map(|l| {
                        let x = if trans.0 == NONE {
                            a[i * sa + l * lda as usize + row]
                        } else {
                            a[i * sa + row * lda as usize + l]
                        };
                        let y = if trans.1 == NONE {
                            b[i * sb + col * ldb as usize + l]
                        } else {
                            b[i * sb + l * ldb as usize + col]
                        };
                        x * y
                    })
                    .sum();
                let at = i * sc + col * ldc as usize + row;
                expected[at] = alpha * sum + beta * c[at];
            }
        }
    }
    for (at, (got, want)) in result.iter().zip(&expected).enumerate() {
        assert!(
            (got - want).abs() <= unit * (want.abs() + 1.0),
            "{case:?}: element {at} is {got}, not {want}"
        );
    }
    guards_intact();
}

#[test]
fn every_type_and_transposition() {
    let _turn = common::turn();
    for (kind, output) in [
        (F32, F32),
        (F64, F64),
        (F16, F16),
        (BF16, BF16),
        (F16, F32),
        (BF16, F32),
    ] {
        for trans in [
            (NONE, NONE),
            (NONE, TRANSPOSE),
            (TRANSPOSE, NONE),
            (TRANSPOSE, TRANSPOSE),
        ] {
            for (alpha, beta) in [(1.0, 0.0), (0.5, 2.0)] {
                run(Case {
                    trans,
                    m: 17,
                    n: 9,
                    k: 33,
                    batch: 3,
                    kind,
                    output,
                    alpha,
                    beta,
                });
            }
        }
    }
}

#[test]
fn vectors_and_sizes_that_use_all_cores() {
    let _turn = common::turn();
    for kind in [F32, F16] {
        for (m, n, k) in [
            (1, 1, 1),
            (1, 40, 70),
            (300, 1, 70),
            (130, 120, 110),
            (5, 5, 0),
        ] {
            for trans in [(NONE, NONE), (TRANSPOSE, NONE)] {
                run(Case {
                    trans,
                    m,
                    n,
                    k,
                    batch: 1,
                    kind,
                    output: kind,
                    alpha: 2.0,
                    beta: 1.0,
                });
            }
        }
    }
}

#[test]
fn what_beta_zero_overwrites_is_not_read() {
    let _turn = common::turn();
    let one = [1f32];
    let zero = [0f32];
    let (a, b, c) = (
        Buffer::from_slice(&[2f32]),
        Buffer::from_slice(&[3f32]),
        Buffer::from_slice(&[f32::NAN]),
    );
    let handle = Handle::new();
    let status = unsafe {
        rocblas_sgemm(
            handle.0,
            NONE,
            NONE,
            1,
            1,
            1,
            one.as_ptr(),
            a.ptr.cast(),
            1,
            b.ptr.cast(),
            1,
            zero.as_ptr(),
            c.ptr.cast(),
            1,
        )
    };
    assert_eq!((status, c.to_vec::<f32>()[0]), (0, 6.0));
}

#[test]
fn typed_entry_points_and_device_scalars() {
    let _turn = common::turn();
    let handle = Handle::new();
    let (a, b, c) = (
        Buffer::from_slice(&[2f64]),
        Buffer::from_slice(&[3f64]),
        Buffer::from_slice(&[1f64]),
    );
    let (alpha, beta) = (Buffer::from_slice(&[10f64]), Buffer::from_slice(&[1f64]));
    assert_eq!(rocblas_set_pointer_mode(handle.0, 1), 0);
    let (pa, pb, pc): (*const f64, *const f64, *mut f64) =
        (a.ptr.cast(), b.ptr.cast(), c.ptr.cast());
    let status = unsafe {
        rocblas_dgemm(
            handle.0,
            NONE,
            NONE,
            1,
            1,
            1,
            alpha.ptr.cast(),
            pa,
            1,
            pb,
            1,
            beta.ptr.cast(),
            pc,
            1,
        )
    };
    assert_eq!((status, c.to_vec::<f64>()[0]), (0, 61.0));
    assert_eq!(rocblas_set_pointer_mode(handle.0, 0), 0);
    let half = |v: f32| f16::from_f32(v).to_bits();
    let (a, b, c) = (
        Buffer::from_slice(&[half(2.0)]),
        Buffer::from_slice(&[half(0.25)]),
        Buffer::from_slice(&[half(0.0)]),
    );
    let (alpha, beta) = ([half(1.0)], [half(0.0)]);
    let (pa, pb, pc): (*const u16, *const u16, *mut u16) =
        (a.ptr.cast(), b.ptr.cast(), c.ptr.cast());
    let status = unsafe {
        rocblas_hgemm(
            handle.0,
            NONE,
            NONE,
            1,
            1,
            1,
            alpha.as_ptr(),
            pa,
            1,
            pb,
            1,
            beta.as_ptr(),
            pc,
            1,
        )
    };
    assert_eq!((status, c.to_vec::<u16>()[0]), (0, half(0.5)));
}

#[test]
fn products_are_captured_into_graphs() {
    let _turn = common::turn();
    let handle = Handle::new();
    let (a, c) = (Buffer::from_slice(&[2f32]), Buffer::from_slice(&[1f32]));
    let (mut stream, mut graph, mut exec) = (null_mut(), null_mut(), null_mut());
    ok(unsafe { hipStreamCreateWithFlags(&mut stream, 1) });
    assert_eq!(rocblas_set_stream(handle.0, stream), 0);
    ok(hipStreamBeginCapture(stream, 1));
    let one = 1f32;
    let status = unsafe {
        let (pa, pc) = (a.ptr.cast(), c.ptr.cast());
        rocblas_sgemm(
            handle.0, NONE, NONE, 1, 1, 1, &one, pa, 1, pa, 1, &one, pc, 1,
        )
    };
    assert_eq!(status, 0);
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    assert_eq!(c.to_vec::<f32>(), [1.0]);
    ok(unsafe { hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0) });
    ok(hipGraphLaunch(exec, stream));
    ok(hipGraphLaunch(exec, stream));
    assert_eq!(c.to_vec::<f32>(), [9.0]);
    ok(hipGraphExecDestroy(exec));
    ok(hipGraphDestroy(graph));
    ok(hipStreamDestroy(stream));
}

#[test]
fn wrong_arguments_are_refused_as_rocblas_does() {
    let _turn = common::turn();
    let handle = Handle::new();
    let x = Buffer::from_slice(&[1f32; 64]);
    let one = 1f32;
    let call = |handle, m: i32, lda: i32, ldc: i32, a: *mut c_void, alpha: *const f32| unsafe {
        rocblas_sgemm(
            handle,
            NONE,
            NONE,
            m,
            2,
            4,
            alpha,
            a.cast(),
            lda,
            x.ptr.cast(),
            4,
            &one,
            x.ptr.cast(),
            ldc,
        )
    };
    assert_eq!(call(handle.0, 4, 4, 4, x.ptr, &one), 0);
    assert_eq!(call(null_mut(), 4, 4, 4, x.ptr, &one), 1);
    assert_eq!(call(handle.0, 4, 3, 4, x.ptr, &one), INVALID_SIZE);
    assert_eq!(call(handle.0, 4, 4, 3, x.ptr, &one), INVALID_SIZE);
    assert_eq!(call(handle.0, -1, 4, 4, x.ptr, &one), INVALID_SIZE);
    assert_eq!(call(handle.0, 4, 4, 4, null_mut(), &one), INVALID_POINTER);
    assert_eq!(
        call(handle.0, 4, 4, 4, x.ptr, std::ptr::null()),
        INVALID_POINTER
    );
    assert_eq!(call(handle.0, 0, 4, 4, null_mut(), std::ptr::null()), 0);
}

#[test]
fn a_matrix_that_leaves_its_allocation_is_found() {
    let _turn = common::turn();
    let handle = Handle::new();
    let (x, one) = (Buffer::from_slice(&[1f32; 15]), 1f32);
    let y = Buffer::from_slice(&[1f32; 16]);
    let status = unsafe {
        rocblas_sgemm(
            handle.0,
            NONE,
            NONE,
            4,
            4,
            4,
            &one,
            x.ptr.cast(),
            4,
            y.ptr.cast(),
            4,
            &one,
            y.ptr.cast(),
            4,
        )
    };
    assert_eq!(status, 6);
    assert!(take_reports()
        .iter()
        .any(|r| r.contains("matrix A (4x4, leading dimension 4")));
    let _ = hipDeviceSynchronize();
}
