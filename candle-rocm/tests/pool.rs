//! Pooling against plain loops on the host.

mod common;

use candle_rocm::ops::pool::{avg_pool2d, max_pool2d};
use candle_rocm::{Buffer, Device, Error, Result, View};
use common::*;

type Pair = (usize, usize);

/// The elements of each window, in row-major order of the outputs.
fn windows<T: Element>(tensor: &HostTensor<T>, window: Pair, step: Pair) -> Vec<Vec<T>> {
    let values = tensor.values();
    let [b, c, h, w] = tensor.dims[..] else {
        panic!("four dimensions");
    };
    let mut windows = Vec::new();
    for plane in 0..b * c {
        for y in (0..=h - window.0).step_by(step.0) {
            for x in (0..=w - window.1).step_by(step.1) {
                let at = |m: usize, n: usize| values[(plane * h + y + m) * w + x + n];
                windows.push(
                    (0..window.0 * window.1)
                        .map(|i| at(i / window.1, i % window.1))
                        .collect(),
                );
            }
        }
    }
    windows
}

/// The mean: rounded once for floats, cut off towards zero for integers.
fn mean<T: Element>(window: &[T]) -> f64 {
    let mean = window.iter().map(|v| v.to_f64()).sum::<f64>() / window.len() as f64;
    if T::DTYPE.is_float() {
        T::from_f64(mean).to_f64()
    } else {
        mean.trunc()
    }
}

fn largest<T: Element>(window: &[T]) -> T {
    window
        .iter()
        .fold(window[0], |best, &v| match best < v || is_nan(v) {
            true => v,
            false => best,
        })
}

fn check<T: Element>(
    device: &Device,
    tensor: &HostTensor<T>,
    window: Pair,
    step: Pair,
    what: &str,
) {
    let what = format!(
        "{} {:?} {what} {window:?} by {step:?}",
        T::DTYPE,
        tensor.dims
    );
    let buffer = tensor.upload(device);
    let run = |op: fn(&Device, &View, Pair, Pair) -> Result<Buffer>| -> Vec<T> {
        let got = op(device, &tensor.view(&buffer), window, step);
        download(device, &got.unwrap_or_else(|e| panic!("{what}: {e}")))
    };
    let windows = windows(tensor, window, step);
    let want: Vec<f64> = windows.iter().map(|w| mean(w)).collect();
    assert_close(
        &run(avg_pool2d),
        &want,
        NMSE_LIMIT,
        &format!("mean of {what}"),
    );
    let want: Vec<T> = windows.iter().map(|w| largest(w)).collect();
    assert_exact(&run(max_pool2d), &want, &format!("maximum of {what}"));
}

fn layouts<T: Element>(device: &Device) {
    let mut rng = Rng::new(1);
    for (dims, window, step) in [
        ([1, 1, 1, 1], (1, 1), (1, 1)),
        ([2, 3, 5, 7], (2, 2), (2, 2)),
        ([2, 3, 5, 7], (3, 2), (1, 3)),
        ([1, 2, 9, 4], (9, 4), (5, 1)),
        ([3, 1, 33, 17], (1, 5), (40, 2)),
    ] {
        for layout in Layout::ALL {
            let tensor = HostTensor::<T>::with_layout(&dims, layout, |n| {
                rng.vec(
                    n,
                    if T::from_f64(-1.0) < T::from_f64(0.0) {
                        -9.0
                    } else {
                        0.0
                    },
                    9.9,
                )
            });
            check(device, &tensor, window, step, &format!("{layout:?}"));
        }
    }
}

#[test]
fn every_dtype_layout_and_window() {
    let device = device();
    for_each_dtype!(layouts(&device));
}

#[test]
fn nan_is_the_maximum() {
    let device = device();
    let values = vec![f32::NAN, 1., 2., f32::NAN, 5., f32::NEG_INFINITY];
    let tensor = HostTensor::contiguous(values, &[1, 1, 1, 6]);
    let buffer = tensor.upload(&device);
    let got = max_pool2d(&device, &tensor.view(&buffer), (1, 2), (1, 2)).unwrap();
    assert_exact(
        &download(&device, &got),
        &[f32::NAN, f32::NAN, 5.],
        "maximum",
    );
    let got = avg_pool2d(&device, &tensor.view(&buffer), (1, 2), (1, 2)).unwrap();
    let want = [f32::NAN, f32::NAN, f32::NEG_INFINITY];
    assert_exact(&download(&device, &got), &want, "mean");
}

#[test]
fn sums_are_rounded_once() {
    let device = device();
    // 2048 + 1 is 2048 in f16: adding up in it would give a mean of 2.
    let mut values = vec![half::f16::ONE; 1024];
    values[0] = half::f16::from_f32(2048.0);
    let tensor = HostTensor::contiguous(values, &[1, 1, 32, 32]);
    let buffer = tensor.upload(&device);
    let got = avg_pool2d(&device, &tensor.view(&buffer), (32, 32), (1, 1)).unwrap();
    let want = half::f16::from_f64((2048.0 + 1023.0) / 1024.0);
    assert_exact(&download(&device, &got), &[want], "mean");
    // The same for integers: 200 of each in u8.
    let tensor = HostTensor::contiguous(vec![200u8; 64], &[1, 1, 8, 8]);
    let buffer = tensor.upload(&device);
    let got = avg_pool2d(&device, &tensor.view(&buffer), (8, 8), (1, 1)).unwrap();
    assert_exact(&download(&device, &got), &[200u8], "mean");
}

#[test]
fn no_images() {
    let device = device();
    let tensor = HostTensor::<f32>::contiguous(vec![], &[0, 3, 4, 4]);
    let buffer = tensor.upload(&device);
    let got = max_pool2d(&device, &tensor.view(&buffer), (2, 2), (2, 2)).unwrap();
    assert!(got.is_empty());
}

#[test]
fn what_cannot_be_pooled_is_named() {
    let device = device();
    let tensor = HostTensor::contiguous(vec![0f32; 12], &[1, 1, 3, 4]);
    let buffer = tensor.upload(&device);
    for (window, step, text) in [
        ((4, 1), (1, 1), "window of 4"),
        ((0, 1), (1, 1), "window of 0"),
        ((1, 1), (1, 0), "steps of 0"),
    ] {
        let error = avg_pool2d(&device, &tensor.view(&buffer), window, step).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let tensor = HostTensor::contiguous(vec![0f32; 12], &[3, 4]);
    let error = max_pool2d(&device, &tensor.view(&buffer), (1, 1), (1, 1)).unwrap_err();
    assert!(error.to_string().contains("[3, 4]"), "{error}");
}
