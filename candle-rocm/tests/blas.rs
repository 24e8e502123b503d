//! Matrix products against a product in f64, for every dtype, layout and batch that candle may pass.

mod common;

use candle_rocm::blas::matmul;
use candle_rocm::{DType, Device, Error};
use common::{assert_close, device, download, row_major, Element, HostTensor, Layout, Rng};
use float8::F8E4M3;
use half::{bf16, f16};

/// Largest tolerated normalised mean squared error of a product.
const LIMIT: f64 = 5e-4;

/// The product in f64 of the values as the dtype holds them.
fn product(lhs: &[f64], rhs: &[f64], (b, m, n, k): (usize, usize, usize, usize)) -> Vec<f64> {
    let mut out = Vec::with_capacity(b * m * n);
    for i in 0..b {
        for row in 0..m {
            for column in 0..n {
                let sum =
                    (0..k).map(|l| lhs[(i * m + row) * k + l] * rhs[(i * k + l) * n + column]);
                out.push(sum.sum());
            }
        }
    }
    out
}

fn check<T: Element>(device: &Device, lhs: &HostTensor<T>, rhs: &HostTensor<T>) {
    let [.., m, k] = lhs.dims[..] else { panic!() };
    let n = *rhs.dims.last().unwrap();
    let b = lhs.dims[..lhs.dims.len() - 2].iter().product();
    let (left, right) = (lhs.upload(device), rhs.upload(device));
    let got = matmul(
        device,
        T::DTYPE,
        (b, m, n, k),
        &lhs.view(&left),
        &rhs.view(&right),
    )
    .unwrap();
    let values = |tensor: &HostTensor<T>| {
        tensor
            .values()
            .iter()
            .map(|v| v.to_f64())
            .collect::<Vec<_>>()
    };
    let want = product(&values(lhs), &values(rhs), (b, m, n, k));
    let what = format!(
        "{} {:?}/{:?} x {:?}/{:?}",
        T::DTYPE,
        lhs.dims,
        lhs.strides,
        rhs.dims,
        rhs.strides
    );
    assert_close(&download::<T>(device, &got), &want, LIMIT, &what);
}

fn random<T: Element>(seed: u64, dims: &[usize], layout: Layout) -> HostTensor<T> {
    HostTensor::with_layout(dims, layout, |n| Rng::new(seed).vec(n, -1.0, 1.0))
}

fn all_layouts<T: Element>(device: &Device) {
    for (lhs, rhs) in [
        (vec![5, 7], vec![7, 3]),
        (vec![1, 33], vec![33, 17]),
        (vec![9, 1], vec![1, 4]),
        (vec![3, 4, 6], vec![3, 6, 5]),
        (vec![2, 3, 4, 6], vec![2, 3, 6, 1]),
        (vec![1, 2, 1, 8], vec![1, 2, 8, 8]),
    ] {
        for left in Layout::ALL {
            for right in Layout::ALL {
                check::<T>(device, &random(1, &lhs, left), &random(2, &rhs, right));
            }
        }
    }
}

/// What a slow emulator can multiply: each operand as it is, transposed, and as rows with gaps.
fn small<T: Element>(device: &Device) {
    let layouts = [Layout::Contiguous, Layout::Transposed, Layout::Narrowed];
    for (lhs, rhs) in [([5, 7], [7, 3]), ([18, 17], [17, 9])] {
        for left in layouts {
            for right in layouts {
                check::<T>(device, &random(1, &lhs, left), &random(2, &rhs, right));
            }
        }
    }
}

#[test]
fn small_products() {
    let device = device();
    small::<f64>(&device);
    small::<f16>(&device);
    small::<bf16>(&device);
    small::<f32>(&device);
}

#[test]
fn every_dtype_takes_every_layout() {
    let device = device();
    all_layouts::<f32>(&device);
    all_layouts::<f64>(&device);
    all_layouts::<f16>(&device);
    all_layouts::<bf16>(&device);
}

/// Sums of so few products are exact in f32, so that only the last rounding is left.
#[test]
fn products_of_f8e4m3_are_rounded_once() {
    let device = device();
    for (lhs, rhs) in [
        (vec![5, 7], vec![7, 3]),
        (vec![1, 33], vec![33, 17]),
        (vec![2, 3, 4, 6], vec![2, 3, 6, 1]),
    ] {
        for layouts in Layout::ALL.iter().zip(Layout::ALL.iter().rev()) {
            let lhs = HostTensor::<F8E4M3>::with_layout(&lhs, *layouts.0, |n| {
                Rng::new(1).vec(n, -1.0, 1.0)
            });
            let rhs = HostTensor::<F8E4M3>::with_layout(&rhs, *layouts.1, |n| {
                Rng::new(2).vec(n, -1.0, 1.0)
            });
            f8e4m3(&device, &lhs, &rhs);
        }
    }
    // One matrix for a batch, by a stride of 0; sums beyond the largest number, and NaN.
    let shared = HostTensor {
        dims: vec![3, 4, 2],
        strides: vec![0, 1, 4],
        offset: 1,
        storage: Rng::new(3).vec::<F8E4M3>(9, -400.0, 400.0),
    };
    let mut rows = HostTensor::<F8E4M3>::contiguous(Rng::new(4).vec(24, -4.0, 4.0), &[3, 2, 4]);
    rows.storage[5] = F8E4M3::NAN;
    f8e4m3(&device, &rows, &shared);
}

fn f8e4m3(device: &Device, lhs: &HostTensor<F8E4M3>, rhs: &HostTensor<F8E4M3>) {
    let (left, right) = (lhs.upload(device), rhs.upload(device));
    let [batch @ .., m, k] = &lhs.dims[..] else {
        panic!()
    };
    let bmnk = (batch.iter().product(), *m, *rhs.dims.last().unwrap(), *k);
    let (x, y) = (lhs.view(&left), rhs.view(&right));
    let got = matmul(device, DType::F8E4M3, bmnk, &x, &y).unwrap();
    let values = |t: &HostTensor<F8E4M3>| t.values().iter().map(|v| v.to_f64()).collect::<Vec<_>>();
    let want: Vec<u64> = product(&values(lhs), &values(rhs), bmnk)
        .iter()
        .map(|&sum| Element::to_bits(F8E4M3::from_f64(sum)))
        .collect();
    let got: Vec<u64> = (download::<F8E4M3>(device, &got).iter())
        .map(|&v| Element::to_bits(v))
        .collect();
    // The sign of NaN is nobody's.
    let plain = |bits: &u64| if bits & 0x7f == 0x7f { 0x7f } else { *bits };
    assert!(
        got.iter().map(plain).eq(want.iter().map(plain)),
        "{got:x?} {want:x?}"
    );
}

/// A tensor of the given geometry over random storage.
fn strided(seed: u64, offset: usize, dims: &[usize], strides: &[usize]) -> HostTensor<f32> {
    let span: usize = dims.iter().zip(strides).map(|(d, s)| (d - 1) * s).sum();
    HostTensor {
        storage: Rng::new(seed).vec(offset + span + 1, -1.0, 1.0),
        offset,
        dims: dims.to_vec(),
        strides: strides.to_vec(),
    }
}

#[test]
fn transposed_matrices_within_a_batch_are_taken_as_they_are() {
    let device = device();
    let rhs = strided(1, 0, &[3, 6, 5], &[30, 1, 6]);
    let lhs = strided(2, 0, &[3, 4, 6], &[24, 1, 4]);
    check(&device, &random(3, &[3, 4, 6], Layout::Contiguous), &rhs);
    check(&device, &lhs, &rhs);
    // Only the operands and the result exist: nothing was copied.
    let (left, right) = (lhs.upload(&device), rhs.upload(&device));
    let before = device.memory_stats();
    let got = matmul(
        &device,
        DType::F32,
        (3, 4, 5, 6),
        &lhs.view(&left),
        &rhs.view(&right),
    )
    .unwrap();
    let after = device.memory_stats();
    let allocations = |s: &candle_rocm::MemoryStats| s.device_allocations + s.cache_hits;
    assert_eq!(allocations(&after) - allocations(&before), 1);
    drop(got);
}

#[test]
fn heads_between_rows_and_columns_are_taken_as_they_are_or_copied() {
    let device = device();
    // Attention: (batch, sequence, heads, width) seen as (batch, heads, sequence, width).
    let query = strided(1, 0, &[2, 4, 5, 8], &[160, 8, 32, 1]);
    let key = strided(2, 3, &[2, 4, 8, 5], &[160, 8, 1, 32]);
    check(&device, &query, &key);
    // Grouped queries: every head of keys serves two heads of queries, and is repeated by stride 0.
    let shared = strided(3, 0, &[2, 2, 8, 5], &[80, 0, 1, 8]);
    let grouped = strided(4, 0, &[2, 2, 5, 8], &[80, 40, 8, 1]);
    check(&device, &grouped, &shared);
}

#[test]
fn one_matrix_for_the_whole_batch_is_not_repeated_in_memory() {
    let device = device();
    let weight = strided(1, 2, &[3, 6, 5], &[0, 5, 1]);
    check(&device, &random(2, &[3, 4, 6], Layout::Contiguous), &weight);
    check(&device, &random(2, &[3, 4, 6], Layout::Narrowed), &weight);
    check(&device, &strided(2, 0, &[3, 4, 6], &[24, 1, 4]), &weight);
    check(&device, &strided(3, 0, &[3, 4, 6], &[0, 6, 1]), &weight);
}

#[test]
fn overlapping_rows_are_copied() {
    let device = device();
    // Windows of a signal: each row begins one element after the previous one.
    let windows = strided(1, 0, &[6, 4], &[1, 1]);
    check(&device, &windows, &random(2, &[4, 3], Layout::Contiguous));
    check(&device, &random(3, &[2, 6], Layout::Contiguous), &windows);
}

#[test]
fn empty_products_are_zeros_or_nothing() {
    let device = device();
    for (b, m, n, k) in [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)] {
        let lhs = HostTensor::<f32>::contiguous(vec![1.0; b * m * k], &[b, m, k]);
        let rhs = HostTensor::<f32>::contiguous(vec![1.0; b * k * n], &[b, k, n]);
        let (left, right) = (lhs.upload(&device), rhs.upload(&device));
        let got = matmul(
            &device,
            DType::F32,
            (b, m, n, k),
            &lhs.view(&left),
            &rhs.view(&right),
        )
        .unwrap();
        assert_eq!(download::<f32>(&device, &got), vec![0.0; b * m * n]);
    }
}

#[test]
fn large_sums_do_not_overflow_f16() {
    let device = device();
    // 4096 products of 4 x 4 are 65536, beyond f16; halved by a -1 in every other place they are 0.
    let k = 4096;
    let signs: Vec<f16> = (0..k)
        .map(|i| f16::from_f32(if i < k / 2 { 4.0 } else { -4.0 }))
        .collect();
    let lhs = HostTensor::contiguous(signs, &[1, k]);
    let rhs = HostTensor::contiguous(vec![f16::from_f32(4.0); k], &[k, 1]);
    let (left, right) = (lhs.upload(&device), rhs.upload(&device));
    let got = matmul(
        &device,
        DType::F16,
        (1, 1, 1, k),
        &lhs.view(&left),
        &rhs.view(&right),
    )
    .unwrap();
    assert_eq!(download::<f16>(&device, &got), [f16::ZERO]);
}

#[test]
fn what_cannot_be_multiplied_is_a_typed_error() {
    let device = device();
    let lhs = HostTensor::<i64>::contiguous(vec![1; 4], &[2, 2]);
    let buffer = lhs.upload(&device);
    let view = lhs.view(&buffer);
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        let error = matmul(&device, dtype, (1, 2, 2, 2), &view, &view).unwrap_err();
        assert!(matches!(error, Error::UnsupportedDType { op: "matmul", dtype: d } if d == dtype));
    }
    let error = matmul(&device, DType::F32, (1, 2, 2, 2), &view, &view).unwrap_err();
    assert!(matches!(error, Error::DTypeMismatch { .. }), "{error:?}");

    let square = HostTensor::<f32>::contiguous(vec![1.0; 4], &[2, 2]);
    let buffer = square.upload(&device);
    let view = square.view(&buffer);
    for bmnk in [(1, 2, 2, 3), (2, 2, 2, 2), (1, 2, 3, 2)] {
        let error = matmul(&device, DType::F32, bmnk, &view, &view).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error:?}");
    }
    let mut outside = view;
    outside.offset = 1;
    let error = matmul(&device, DType::F32, (1, 2, 2, 2), &outside, &view).unwrap_err();
    assert!(
        matches!(error, Error::InvalidView { op: "matmul", .. }),
        "{error:?}"
    );
}

#[test]
fn more_rows_than_the_library_counts_are_a_typed_error() {
    let device = device();
    let rows = 1usize << 31;
    let buffer = device.alloc_zeroed(4).unwrap();
    let (dims, strides) = ([rows, 1], [0, 0]);
    let lhs = candle_rocm::View {
        buffer: &buffer,
        dtype: DType::F32,
        offset: 0,
        dims: &dims,
        strides: &strides,
    };
    let dims = [1, 0];
    let strides = row_major(&dims);
    let rhs = candle_rocm::View {
        buffer: &buffer,
        dtype: DType::F32,
        offset: 0,
        dims: &dims,
        strides: &strides,
    };
    // No columns, so that no result of that size is needed.
    assert!(matmul(&device, DType::F32, (1, rows, 0, 1), &lhs, &rhs)
        .unwrap()
        .is_empty());
    let dims = [1, 1];
    let rhs = candle_rocm::View { dims: &dims, ..rhs };
    let error = matmul(&device, DType::F32, (1, rows, 1, 1), &lhs, &rhs).unwrap_err();
    assert!(
        matches!(error, Error::TooLarge { op: "matmul", .. }),
        "{error:?}"
    );
}
