//! Gradients of softmax, norms and gated activations, of rows of any width and layout, against f64 on the host. Those of
//! attention are tested as users call them, in tests/differential.

mod common;

use candle_rocm::ops::gated::Gate;
use candle_rocm::ops::gated_backward::gate_mul_backward;
use candle_rocm::ops::group_norm::GroupNorm;
use candle_rocm::ops::group_norm_backward::group_norm_backward;
use candle_rocm::ops::norm_backward::{layer_norm_backward, rms_norm_backward, Wanted};
use candle_rocm::ops::softmax_backward::softmax_last_dim_backward;
use candle_rocm::{Device, Error};
use common::*;
use half::{bf16, f16};

/// Row lengths around a wave, what a wave has, and the threads of the largest block.
const COLUMNS: [usize; 6] = [1, 33, 257, 1000, 1025, 3001];
const LAYOUTS: [(Layout, Layout); 4] = [
    (Layout::Contiguous, Layout::Contiguous),
    (Layout::Narrowed, Layout::Offset),
    (Layout::Transposed, Layout::Narrowed),
    (Layout::Offset, Layout::BroadcastFirst),
];
const EPS: f32 = 1e-5;

/// Sums of many small floats are rounded once.
fn limit<T: Element>() -> f64 {
    match T::from_f32(1.001).to_f64() {
        1.0 => 1e-4,
        x if (x - 1.001).abs() > 1e-6 => 1e-6,
        _ => 1e-10,
    }
}

fn wide<T: Element>(tensor: &HostTensor<T>) -> Vec<f64> {
    tensor.values().iter().map(|v| v.to_f64()).collect()
}

fn softmax<T: Element>(device: &Device) {
    let mut rng = Rng::new(3);
    for columns in COLUMNS {
        for (of_y, of_grad) in LAYOUTS {
            let dims = [4, columns];
            let y = HostTensor::<T>::with_layout(&dims, of_y, |n| rng.vec(n, 0.0, 1.0));
            let grad = HostTensor::<T>::with_layout(&dims, of_grad, |n| rng.vec(n, -1.0, 1.0));
            let (yb, gb) = (y.upload(device), grad.upload(device));
            let got = softmax_last_dim_backward(device, &y.view(&yb), &grad.view(&gb)).unwrap();
            let mut want = Vec::new();
            for (y, g) in wide(&y).chunks(columns).zip(wide(&grad).chunks(columns)) {
                let sum: f64 = y.iter().zip(g).map(|(y, g)| y * g).sum();
                want.extend(y.iter().zip(g).map(|(y, g)| y * (g - sum)));
            }
            let what = format!("softmax {} {dims:?} {of_y:?} {of_grad:?}", T::DTYPE);
            assert_close(&download::<T>(device, &got), &want, limit::<T>(), &what);
        }
    }
}

#[test]
fn of_softmax() {
    let device = device();
    softmax::<f16>(&device);
    softmax::<bf16>(&device);
    softmax::<f32>(&device);
    softmax::<f64>(&device);
}

fn norms<T: Element>(device: &Device) {
    let mut rng = Rng::new(4);
    for columns in COLUMNS {
        for (of_x, of_grad) in LAYOUTS {
            // Several parts of rows.
            let dims = [if columns < 100 { 70 } else { 5 }, columns];
            let x = HostTensor::<T>::with_layout(&dims, of_x, |n| rng.vec(n, -1.0, 3.0));
            let grad = HostTensor::<T>::with_layout(&dims, of_grad, |n| rng.vec(n, -1.0, 1.5));
            let weight =
                HostTensor::<T>::with_layout(&[columns], Layout::Offset, |n| rng.vec(n, 0.5, 2.0));
            let (xb, gb, wb) = (x.upload(device), grad.upload(device), weight.upload(device));
            let (xv, gv, wv) = (x.view(&xb), grad.view(&gb), weight.view(&wb));
            for centered in [false, true] {
                let backward = if centered {
                    layer_norm_backward
                } else {
                    rms_norm_backward
                };
                let wanted = Wanted {
                    weight: true,
                    bias: centered,
                };
                let got = backward(device, &xv, &wv, &gv, EPS, wanted).unwrap();
                let (mut want, mut weights) = (Vec::new(), vec![0.0; columns]);
                let mut biases = vec![0.0; columns];
                let w = wide(&weight);
                for (x, g) in wide(&x).chunks(columns).zip(wide(&grad).chunks(columns)) {
                    let mean = |f: &dyn Fn(usize) -> f64| {
                        (0..columns).map(f).sum::<f64>() / columns as f64
                    };
                    let centre = if centered { mean(&|i| x[i]) } else { 0.0 };
                    let square = mean(&|i| (x[i] - centre) * (x[i] - centre));
                    let scale = 1.0 / (square + f64::from(EPS)).sqrt();
                    let normed = |i: usize| (x[i] - centre) * scale;
                    let along = if centered {
                        mean(&|i| g[i] * w[i])
                    } else {
                        0.0
                    };
                    let across = mean(&|i| g[i] * w[i] * normed(i));
                    for i in 0..columns {
                        want.push(scale * (g[i] * w[i] - along - normed(i) * across));
                        weights[i] += g[i] * normed(i);
                        biases[i] += g[i];
                    }
                }
                let what = format!("{centered} {} {dims:?} {of_x:?} {of_grad:?}", T::DTYPE);
                let limit = limit::<T>();
                // A single element is its own mean: its gradient is nothing but rounding.
                if columns > 1 {
                    assert_close(&download::<T>(device, &got.x), &want, limit, &what);
                    let weight = got.weight.expect("it was asked for");
                    assert_close(&download::<T>(device, &weight), &weights, limit, &what);
                }
                assert_eq!(got.bias.is_some(), centered);
                if let Some(bias) = &got.bias {
                    assert_close(&download::<T>(device, bias), &biases, limit, &what);
                }
            }
        }
    }
}

#[test]
fn of_norms() {
    let device = device();
    norms::<f16>(&device);
    norms::<bf16>(&device);
    norms::<f32>(&device);
}

/// Gates and what they multiply as halves of one tensor: the kernel reads them in place.
#[test]
fn of_gates_that_are_views() {
    let device = device();
    let mut rng = Rng::new(5);
    for columns in [1, 5, 8, 67] {
        let dims = [3, columns];
        for layout in [Layout::Contiguous, Layout::Narrowed, Layout::Transposed] {
            let x = HostTensor::<f32>::with_layout(&dims, layout, |n| rng.vec(n, -3.0, 3.0));
            let y =
                HostTensor::<f32>::with_layout(&dims, Layout::Narrowed, |n| rng.vec(n, -2.0, 2.0));
            let grad = HostTensor::<f32>::with_layout(&dims, layout, |n| rng.vec(n, -1.0, 1.0));
            let (xb, yb, gb) = (x.upload(&device), y.upload(&device), grad.upload(&device));
            let (xv, yv, gv) = (x.view(&xb), y.view(&yb), grad.view(&gb));
            let (gates, ups) = gate_mul_backward(&device, Gate::Silu, &xv, &yv, &gv).unwrap();
            let (mut want_gates, mut want_ups) = (Vec::new(), Vec::new());
            for ((x, y), g) in wide(&x).iter().zip(wide(&y)).zip(wide(&grad)) {
                let s = 1.0 / (1.0 + (-x).exp());
                want_gates.push(g * y * s * (1.0 + x * (1.0 - s)));
                want_ups.push(g * x * s);
            }
            let what = format!("{dims:?} {layout:?}");
            assert_close(&download::<f32>(&device, &gates), &want_gates, 1e-12, &what);
            assert_close(&download::<f32>(&device, &ups), &want_ups, 1e-12, &what);
        }
    }
}

/// Nothing, and what does not fit together.
#[test]
fn of_nothing_and_errors() {
    let device = device();
    let tensor =
        |dims: &[usize]| HostTensor::<f32>::contiguous(vec![1.0; dims.iter().product()], dims);
    for dims in [[0, 4], [3, 0]] {
        let (x, weight) = (tensor(&dims), tensor(&dims[1..]));
        let (xb, wb) = (x.upload(&device), weight.upload(&device));
        let (xv, wv) = (x.view(&xb), weight.view(&wb));
        assert!(softmax_last_dim_backward(&device, &xv, &xv)
            .unwrap()
            .is_empty());
        let wanted = Wanted {
            weight: true,
            bias: true,
        };
        let got = layer_norm_backward(&device, &xv, &wv, &xv, EPS, wanted).unwrap();
        assert!(got.x.is_empty());
        let zeros = vec![0.0; dims[1]];
        assert_eq!(download::<f32>(&device, &got.weight.unwrap()), zeros);
        assert_eq!(download::<f32>(&device, &got.bias.unwrap()), zeros);
        let (gates, _) = gate_mul_backward(&device, Gate::Relu, &xv, &xv, &xv).unwrap();
        assert!(gates.is_empty());
    }
    let (images, weight, one) = (tensor(&[2, 4, 0]), tensor(&[4]), tensor(&[3]));
    let (xb, wb, ob) = (
        images.upload(&device),
        weight.upload(&device),
        one.upload(&device),
    );
    let (xv, wv, ov) = (images.view(&xb), weight.view(&wb), one.view(&ob));
    let norm = GroupNorm {
        groups: 2,
        eps: EPS,
        silu: false,
    };
    let got = group_norm_backward(&device, &xv, &wv, &wv, &xv, norm).unwrap();
    assert_eq!(download::<f32>(&device, &got.weight), [0.0; 4]);
    assert_eq!(download::<f32>(&device, &got.bias), [0.0; 4]);
    let error = group_norm_backward(&device, &xv, &ov, &wv, &xv, norm);
    assert!(matches!(error, Err(Error::ShapeMismatch { .. })));
    let error = softmax_last_dim_backward(&device, &wv, &ov);
    assert!(matches!(error, Err(Error::ShapeMismatch { .. })));
    let integers = HostTensor::<u32>::contiguous(vec![1; 4], &[4]);
    let ib = integers.upload(&device);
    let error = softmax_last_dim_backward(&device, &integers.view(&ib), &wv);
    assert!(matches!(error, Err(Error::UnsupportedDType { .. })));
}
