//! Reductions against plain loops on the host.

mod common;

use candle_rocm::ops::reduce::{mean, reduce, ReduceOp};
use candle_rocm::{Buffer, Device, Error};
use common::*;
use half::{bf16, f16};

/// Positions in row-major order of `dims`, grouped by output: the elements of each along `axes`, in order.
fn groups(dims: &[usize], axes: &[usize]) -> Vec<Vec<usize>> {
    let kept: Vec<usize> = (0..dims.len()).filter(|d| !axes.contains(d)).collect();
    let outputs: usize = kept.iter().map(|&d| dims[d]).product();
    let mut groups = vec![Vec::new(); outputs];
    let strides = row_major(dims);
    for at in 0..dims.iter().product() {
        let output = kept
            .iter()
            .fold(0, |out, &d| out * dims[d] + at / strides[d] % dims[d]);
        groups[output].push(at);
    }
    groups
}

/// The sum as the dtype holds it: wrapped for integers, the rounded f64 sum for floats.
fn sum<T: Element>(values: impl Iterator<Item = T>) -> T {
    if T::DTYPE.is_float() {
        T::from_f64(values.map(|v| v.to_f64()).sum())
    } else {
        T::from_bits(values.fold(0u64, |sum, v| sum.wrapping_add(v.to_bits())))
    }
}

/// Position of the extremum: the first NaN, else the first of the best.
fn extremum<T: Element>(op: ReduceOp, values: &[T]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        let better = match op {
            ReduceOp::Min | ReduceOp::ArgMin => *v < values[best],
            _ => *v > values[best],
        };
        if better && !is_nan(values[best]) || is_nan(*v) && !is_nan(values[best]) {
            best = i;
        }
    }
    best
}

fn assert_same<T: Element>(got: &[T], want: &[T], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: element count");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let both_nan = g.to_f64().is_nan() && w.to_f64().is_nan();
        assert!(
            both_nan || g == w,
            "{what}: element {i} is {g:?}, expected {w:?}"
        );
    }
}

fn check_op<T: Element>(
    device: &Device,
    op: ReduceOp,
    tensor: &HostTensor<T>,
    buffer: &Buffer,
    axes: &[usize],
    what: &str,
) {
    let what = format!("{} of {} {what} axes {axes:?}", op.as_str(), T::DTYPE);
    let got =
        reduce(device, op, &tensor.view(buffer), axes).unwrap_or_else(|e| panic!("{what}: {e}"));
    let values = tensor.values();
    let groups: Vec<Vec<T>> = groups(&tensor.dims, axes)
        .into_iter()
        .map(|group| group.into_iter().map(|at| values[at]).collect())
        .collect();
    match op {
        ReduceOp::Sum => {
            let want: Vec<T> = groups.iter().map(|g| sum(g.iter().copied())).collect();
            let got: Vec<T> = download(device, &got);
            if T::DTYPE.is_float() {
                let want: Vec<f64> = want.iter().map(|v| v.to_f64()).collect();
                assert_close(&got, &want, NMSE_LIMIT, &what);
            } else {
                assert_exact(&got, &want, &what);
            }
        }
        ReduceOp::Min | ReduceOp::Max => {
            let want: Vec<T> = groups.iter().map(|g| g[extremum(op, g)]).collect();
            assert_same(&download::<T>(device, &got), &want, &what);
        }
        ReduceOp::ArgMin | ReduceOp::ArgMax => {
            let want: Vec<u32> = groups.iter().map(|g| extremum(op, g) as u32).collect();
            assert_exact(&download::<u32>(device, &got), &want, &what);
        }
    }
}

/// Values with many ties; small enough for sums of the small floats to stay finite.
fn values<T: Element>(rng: &mut Rng, n: usize) -> Vec<T> {
    let (low, high) = if T::DTYPE.is_float() {
        (-3.0, 4.0)
    } else {
        (0.0, 100.0)
    };
    rng.vec(n, low, high)
}

fn layouts_and_axes<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for (dims, all_axes) in [
        (vec![], vec![vec![]]),
        (vec![1], vec![vec![], vec![0]]),
        (vec![7], vec![vec![0]]),
        (vec![33, 65], vec![vec![0], vec![1], vec![0, 1]]),
        (
            vec![3, 5, 19],
            vec![
                vec![0],
                vec![1],
                vec![2],
                vec![2, 0],
                vec![0, 1],
                vec![1, 2],
                vec![0, 1, 2],
            ],
        ),
        (vec![2, 3, 1, 4, 5], vec![vec![1, 3], vec![0, 4], vec![2]]),
        // Columns, and rows, that lie in packs in some layouts and not in others.
        (vec![37, 64], vec![vec![0], vec![1]]),
        (vec![3, 21, 48], vec![vec![1], vec![0, 2]]),
    ] {
        for layout in Layout::ALL {
            let tensor = HostTensor::<T>::with_layout(&dims, layout, |n| values(&mut rng, n));
            let buffer = tensor.upload(device);
            for axes in &all_axes {
                for op in ReduceOp::ALL {
                    check_op(
                        device,
                        op,
                        &tensor,
                        &buffer,
                        axes,
                        &format!("{dims:?} {layout:?}"),
                    );
                }
            }
        }
    }
}

#[test]
fn every_dtype_layout_and_axis() {
    let device = device();
    for_each_dtype!(layouts_and_axes(&device));
}

fn long_rows<T: Element>(device: &Device) {
    let mut rng = Rng::new(2);
    // Cut into parts along rows, and along columns; the second tensor's parts end inside of a row.
    for dims in [[3, 20_001], [1, 50_000], [20_001, 3], [3_001, 16]] {
        let tensor = HostTensor::<T>::contiguous(values(&mut rng, dims[0] * dims[1]), &dims);
        let buffer = tensor.upload(device);
        for axis in [0, 1] {
            for op in ReduceOp::ALL {
                check_op(device, op, &tensor, &buffer, &[axis], &format!("{dims:?}"));
            }
        }
    }
}

#[test]
fn reductions_cut_into_parts() {
    let device = device();
    for_each_dtype!(long_rows(&device));
}

#[test]
fn many_rows_have_few_threads_each() {
    let device = device();
    let (rows, columns) = (33_000, 300);
    let values: Vec<f32> = (0..rows * columns)
        .map(|i| (i as u32).wrapping_mul(2_654_435_761).rotate_left(9) as u8 as f32)
        .collect();
    let rows_of = || values.chunks(columns);
    let sums: Vec<f32> = rows_of().map(|row| row.iter().sum()).collect();
    let largest: Vec<u32> = rows_of()
        .map(|row| extremum(ReduceOp::ArgMax, row) as u32)
        .collect();
    let tensor = HostTensor::contiguous(values.clone(), &[rows, columns]);
    let buffer = tensor.upload(&device);
    let got = reduce(&device, ReduceOp::Sum, &tensor.view(&buffer), &[1]).unwrap();
    assert_exact(&download::<f32>(&device, &got), &sums, "sums");
    let got = reduce(&device, ReduceOp::ArgMax, &tensor.view(&buffer), &[1]).unwrap();
    assert_exact(&download::<u32>(&device, &got), &largest, "largest");
}

fn any_bits<T: Element>(device: &Device) {
    let mut rng = Rng::new(3);
    let tensor = HostTensor::<T>::contiguous(rng.any(64 * 304), &[64, 304]);
    let buffer = tensor.upload(device);
    for op in [
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::ArgMin,
        ReduceOp::ArgMax,
    ] {
        for axes in [&[0][..], &[1]] {
            check_op(device, op, &tensor, &buffer, axes, "random bits");
        }
    }
}

#[test]
fn extrema_of_random_bits_agree_on_nan_and_infinities() {
    let device = device();
    for_each_dtype!(any_bits(&device));
}

#[test]
fn nan_is_the_extremum_wherever_it_is() {
    let device = device();
    for n in [3, 40_000] {
        for nan_at in [[0, 0], [1, 1], [n - 1, n - 1], [n / 2, n - 1]] {
            let mut values: Vec<f32> = (0..n).map(|i| (i % 1000) as f32).collect();
            nan_at.iter().for_each(|&at| values[at] = f32::NAN);
            let tensor = HostTensor::contiguous(values, &[n]);
            let buffer = tensor.upload(&device);
            for op in ReduceOp::ALL {
                check_op(
                    &device,
                    op,
                    &tensor,
                    &buffer,
                    &[0],
                    &format!("{n} elements, NaN at {nan_at:?}"),
                );
            }
        }
        let tensor = HostTensor::contiguous(vec![f32::INFINITY; n], &[n]);
        let buffer = tensor.upload(&device);
        for op in ReduceOp::ALL {
            check_op(
                &device,
                op,
                &tensor,
                &buffer,
                &[0],
                &format!("{n} infinities"),
            );
        }
    }
}

#[test]
fn long_sums_stay_accurate() {
    let device = device();
    let n = 10_000_000;
    // All of one sign and size: the worst case for adding up in order, where f32 stops growing at 2^24.
    let tensor = HostTensor::contiguous(vec![0.1f32; n], &[n]);
    let buffer = tensor.upload(&device);
    let got: Vec<f32> = download(
        &device,
        &reduce(&device, ReduceOp::Sum, &tensor.view(&buffer), &[0]).unwrap(),
    );
    let want = f64::from(0.1f32) * n as f64;
    assert!(
        (f64::from(got[0]) - want).abs() / want < 1e-6,
        "{} instead of {want}",
        got[0]
    );

    let n = 1 << 20;
    let ones = HostTensor::contiguous(vec![f16::from_f32(0.03125); n], &[n]);
    let buffer = ones.upload(&device);
    let got: Vec<f16> = download(
        &device,
        &reduce(&device, ReduceOp::Sum, &ones.view(&buffer), &[0]).unwrap(),
    );
    assert_eq!(got, [f16::from_f32(32768.0)]);
    let ones = HostTensor::contiguous(vec![bf16::ONE; n], &[1, n]);
    let buffer = ones.upload(&device);
    let got: Vec<bf16> = download(
        &device,
        &reduce(&device, ReduceOp::Sum, &ones.view(&buffer), &[1]).unwrap(),
    );
    assert_eq!(got, [bf16::from_f32(n as f32)]);
}

fn means<T: Element>(device: &Device) {
    // The sums overflow the dtype. Rows and columns in packs, any layout, and in parts.
    let top = if T::DTYPE.size_in_bytes() == 1 {
        448.0
    } else {
        60_000.0
    };
    let mut rng = Rng::new(5);
    for dims in [[3, 64], [5, 33], [2, 20_001], [20_001, 2]] {
        for layout in [Layout::Contiguous, Layout::Transposed] {
            let tensor =
                HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, top * 0.9, top));
            let buffer = tensor.upload(device);
            let values = tensor.values();
            for axes in [&[0][..], &[1], &[0, 1]] {
                let got = mean(device, &tensor.view(&buffer), axes).unwrap();
                let want: Vec<f64> = groups(&dims, axes)
                    .iter()
                    .map(|group| {
                        let sum: f64 = group.iter().map(|&at| values[at].to_f64()).sum();
                        T::from_f64(sum / group.len() as f64).to_f64()
                    })
                    .collect();
                let what = format!("mean of {} {dims:?} {layout:?} {axes:?}", T::DTYPE);
                assert_close(&download::<T>(device, &got), &want, NMSE_LIMIT, &what);
            }
        }
    }
}

#[test]
fn means_do_not_overflow() {
    let device = device();
    for_each_float!(means(&device));
    let none = HostTensor::<f32>::contiguous(vec![], &[0, 3]);
    let buffer = none.upload(&device);
    let error = mean(&device, &none.view(&buffer), &[0]).unwrap_err();
    assert!(error.to_string().contains("no elements"), "{error}");
    let bytes = HostTensor::contiguous(vec![1u8], &[1]);
    let buffer = bytes.upload(&device);
    let error = mean(&device, &bytes.view(&buffer), &[0]).unwrap_err();
    assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
}

#[test]
fn integer_sums_wrap() {
    let device = device();
    let tensor = HostTensor::contiguous(vec![200u8; 1000], &[1000]);
    let buffer = tensor.upload(&device);
    check_op(&device, ReduceOp::Sum, &tensor, &buffer, &[0], "wrapping");
    let tensor = HostTensor::contiguous(vec![i64::MAX; 5], &[5]);
    let buffer = tensor.upload(&device);
    check_op(&device, ReduceOp::Sum, &tensor, &buffer, &[0], "wrapping");
    let tensor = HostTensor::contiguous(vec![i32::MIN; 70_001], &[70_001]);
    let buffer = tensor.upload(&device);
    check_op(&device, ReduceOp::Sum, &tensor, &buffer, &[0], "wrapping");
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    let dims = [256 * 65_600, 2];
    let values: Vec<u8> = (0..dims[0] * 2).map(|i| (i / 3) as u8).collect();
    let want: Vec<u8> = values.chunks(2).map(|v| v[0].max(v[1])).collect();
    let tensor = HostTensor::contiguous(values, &dims);
    let buffer = tensor.upload(&device);
    let got = reduce(&device, ReduceOp::Max, &tensor.view(&buffer), &[1]).unwrap();
    assert_exact(&download::<u8>(&device, &got), &want, "many rows");
}

#[test]
fn reduce_over_empty() {
    let device = device();
    for (dims, axis, outputs) in [([0, 3], 0, 3), ([3, 0], 0, 0), ([0, 3], 1, 0)] {
        let tensor = HostTensor::<f32>::contiguous(vec![], &dims);
        let buffer = tensor.upload(&device);
        let sum = reduce(&device, ReduceOp::Sum, &tensor.view(&buffer), &[axis]).unwrap();
        assert_eq!(download::<f32>(&device, &sum), vec![0.0; outputs]);
        for op in [
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::ArgMin,
            ReduceOp::ArgMax,
        ] {
            let error = reduce(&device, op, &tensor.view(&buffer), &[axis]).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("no elements"), "{error}");
        }
    }
}

#[test]
fn a_missing_axis_is_named() {
    let device = device();
    let tensor = HostTensor::contiguous(vec![1f32, 2.0], &[2]);
    let buffer = tensor.upload(&device);
    let error = reduce(&device, ReduceOp::Sum, &tensor.view(&buffer), &[1]).unwrap_err();
    assert!(error.to_string().contains("axis 1"), "{error}");
}
