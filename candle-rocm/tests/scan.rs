//! Cumulative sums against plain loops on the host.

mod common;

use candle_rocm::ops::scan::cumsum;
use candle_rocm::{Device, Error};
use common::*;

/// The sums along `axis`: of integers as the dtype holds them, of floats in f64.
fn sums<T: Element>(values: &[T], dims: &[usize], axis: usize, reversed: bool) -> Vec<T> {
    let (steps, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let mut out = values.to_vec();
    for first in 0..values.len() / steps {
        let start = first / inner * steps * inner + first % inner;
        let (mut sum, mut bits) = (0.0, 0u64);
        for step in 0..steps {
            let step = if reversed { steps - 1 - step } else { step };
            let at = start + step * inner;
            sum += values[at].to_f64();
            bits = bits.wrapping_add(values[at].to_bits());
            out[at] = match T::DTYPE.is_float() {
                true => T::from_f64(sum),
                false => T::from_bits(bits),
            };
        }
    }
    out
}

fn check<T: Element>(device: &Device, tensor: &HostTensor<T>, axis: usize, what: &str) {
    let buffer = tensor.upload(device);
    for reversed in [false, true] {
        let what = format!(
            "{} {:?} axis {axis} reversed {reversed} {what}",
            T::DTYPE,
            tensor.dims
        );
        let got = cumsum(device, &tensor.view(&buffer), axis, reversed)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        let got: Vec<T> = download(device, &got);
        let want = sums(&tensor.values(), &tensor.dims, axis, reversed);
        if T::DTYPE.is_float() {
            let want: Vec<f64> = want.iter().map(|v| v.to_f64()).collect();
            assert_close(&got, &want, NMSE_LIMIT, &what);
        } else {
            assert_exact(&got, &want, &what);
        }
    }
}

/// Quarters, of which sums of small floats are exact for a while.
fn quarters<T: Element>(rng: &mut Rng, n: usize) -> Vec<T> {
    let most = if T::DTYPE.is_float() { 4 } else { 100 };
    let unit = if T::DTYPE.is_float() { 0.25 } else { 1.0 };
    (0..n)
        .map(|_| T::from_f64(rng.below(most) as f64 * unit))
        .collect()
}

fn layouts<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for dims in [
        &[1usize][..],
        &[7],
        &[300],
        &[33, 65],
        &[3, 5, 19],
        &[2, 40, 3, 4],
        &[9, 2, 300],
    ] {
        for layout in Layout::ALL {
            let tensor = HostTensor::<T>::with_layout(dims, layout, |n| quarters(&mut rng, n));
            for axis in 0..dims.len() {
                check(device, &tensor, axis, &format!("{layout:?}"));
            }
        }
    }
}

#[test]
fn every_dtype_layout_and_axis() {
    let device = device();
    for_each_dtype!(layouts(&device));
}

fn long_lines<T: Element>(device: &Device) {
    let mut rng = Rng::new(2);
    // Longer than a block's round, and cut into parts: rows, columns, and rows of which the last part is short.
    for (dims, axis) in [
        ([3, 5_000], 1),
        ([1, 40_003], 1),
        ([20_001, 3], 0),
        ([9_000, 40], 0),
    ] {
        let values = quarters(&mut rng, dims[0] * dims[1]);
        check(
            device,
            &HostTensor::<T>::contiguous(values, &dims),
            axis,
            "long",
        );
    }
}

#[test]
fn lines_cut_into_parts() {
    let device = device();
    for_each_dtype!(long_lines(&device));
}

/// What is not finite comes into nothing before it, wherever it lies in a part.
#[test]
fn infinities_and_nan_only_affect_what_follows() {
    let device = device();
    for n in [5usize, 3_000, 50_000] {
        for (at, what) in [(n / 2, f32::INFINITY), (n / 3, f32::NAN), (n - 1, f32::NAN)] {
            let mut values = vec![1f32; n];
            values[at] = what;
            let tensor = HostTensor::contiguous(values, &[n]);
            let buffer = tensor.upload(&device);
            let got: Vec<f32> = download(
                &device,
                &cumsum(&device, &tensor.view(&buffer), 0, false).unwrap(),
            );
            for (i, got) in got.into_iter().enumerate() {
                let right = match i < at {
                    true => got == (i + 1) as f32,
                    false => got == what || got.is_nan() && what.is_nan(),
                };
                assert!(right, "{n} elements, {what} at {at}: sum {i} is {got}");
            }
        }
    }
}

#[test]
fn nothing_and_no_axis() {
    let device = device();
    for dims in [[0, 3], [3, 0]] {
        let tensor = HostTensor::<f32>::contiguous(vec![], &dims);
        let buffer = tensor.upload(&device);
        let sums = cumsum(&device, &tensor.view(&buffer), 1, false).unwrap();
        assert_eq!(sums.len(), 0);
    }
    let tensor = HostTensor::contiguous(vec![1f32], &[1]);
    let buffer = tensor.upload(&device);
    let error = cumsum(&device, &tensor.view(&buffer), 1, false).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}
