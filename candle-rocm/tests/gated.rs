//! Gated activations against f64 on the host.

mod common;

use candle_rocm::ops::gated::{gate_mul, Gate};
use candle_rocm::{Device, Error, View};
use common::*;
use half::{bf16, f16};

/// erf in f64 by its power series, and by its continued fraction far out.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        for n in 1..100 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..60).rev().fold(a, |f, n| a + f64::from(n) / 2.0 / f);
        1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

fn activate(act: Gate, x: f64) -> f64 {
    match act {
        Gate::Silu => x / (1.0 + (-x).exp()),
        Gate::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Gate::GeluErf => 0.5 * x * (1.0 + erf(x / 2f64.sqrt())),
        Gate::Relu => x.max(0.0),
    }
}

fn oracle<T: Element>(act: Gate, gates: &[T], ups: &[T]) -> Vec<f64> {
    let pairs = gates.iter().zip(ups);
    pairs
        .map(|(g, u)| T::from_f32((activate(act, g.to_f64()) * u.to_f64()) as f32).to_f64())
        .collect()
}

fn check<T: Element>(device: &Device) {
    let mut rng = Rng::new(4);
    for act in Gate::ALL {
        for dims in [&[1usize, 1][..], &[3, 7], &[2, 3, 64], &[5, 257], &[4097]] {
            for (gate_layout, up_layout) in [
                (Layout::Contiguous, Layout::Contiguous),
                (Layout::Offset, Layout::Narrowed),
                (Layout::Transposed, Layout::BroadcastFirst),
            ] {
                let gates =
                    HostTensor::<T>::with_layout(dims, gate_layout, |n| rng.vec(n, -3.0, 6.0));
                let ups = HostTensor::<T>::with_layout(dims, up_layout, |n| rng.vec(n, -2.0, 2.0));
                let (gb, ub) = (gates.upload(device), ups.upload(device));
                let got = gate_mul(device, act, &gates.view(&gb), &ups.view(&ub)).unwrap();
                assert_close(
                    &download::<T>(device, &got),
                    &oracle(act, &gates.values(), &ups.values()),
                    NMSE_LIMIT,
                    &format!(
                        "{act:?} {} {dims:?} {gate_layout:?} {up_layout:?}",
                        T::DTYPE
                    ),
                );
            }
        }
        // Halves of one tensor, as one product of both matrices gives them; odd sizes make odd addresses.
        for (rows, n) in [(3, 64), (4, 33), (1, 8)] {
            let packed: Vec<T> = rng.vec(rows * 2 * n, -3.0, 6.0);
            let buffer = upload(device, &packed);
            let (dims, strides) = ([rows, n], [2 * n, 1]);
            let half = |offset| View {
                buffer: &buffer,
                dtype: T::DTYPE,
                offset,
                dims: &dims,
                strides: &strides,
            };
            let take = |from: usize| -> Vec<T> {
                packed
                    .chunks(2 * n)
                    .flat_map(|row| row[from..from + n].to_vec())
                    .collect()
            };
            for (gate, up) in [(0, n), (n, 0)] {
                let got = gate_mul(device, act, &half(gate), &half(up)).unwrap();
                assert_close(
                    &download::<T>(device, &got),
                    &oracle(act, &take(gate), &take(up)),
                    NMSE_LIMIT,
                    &format!("{act:?} {} packed {rows}x{n} gate at {gate}", T::DTYPE),
                );
            }
        }
    }
}

#[test]
fn separate_and_packed() {
    let device = device();
    check::<f16>(&device);
    check::<bf16>(&device);
    check::<f32>(&device);
}

#[test]
fn extremes() {
    let device = device();
    let gates = HostTensor::contiguous(
        vec![f32::INFINITY, f32::NEG_INFINITY, -200.0, 200.0, 0.0],
        &[5],
    );
    let ups = HostTensor::contiguous(vec![2f32; 5], &[5]);
    let (gb, ub) = (gates.upload(&device), ups.upload(&device));
    for act in Gate::ALL {
        let got: Vec<f32> = download(
            &device,
            &gate_mul(&device, act, &gates.view(&gb), &ups.view(&ub)).unwrap(),
        );
        assert_eq!(got[0], f32::INFINITY, "{act:?}");
        assert_eq!(got[2..], [0.0, 400.0, 0.0], "{act:?}");
    }
}

#[test]
fn nothing_and_what_is_refused() {
    let device = device();
    let none = HostTensor::<f32>::contiguous(vec![], &[0, 4]);
    let x = HostTensor::contiguous(vec![1f32; 8], &[2, 4]);
    let turned = HostTensor::contiguous(vec![1f32; 8], &[4, 2]);
    let ints = HostTensor::contiguous(vec![1i32; 8], &[2, 4]);
    let (nb, xb, tb, ib) = (
        none.upload(&device),
        x.upload(&device),
        turned.upload(&device),
        ints.upload(&device),
    );
    let (none, x, turned, ints) = (
        none.view(&nb),
        x.view(&xb),
        turned.view(&tb),
        ints.view(&ib),
    );
    assert!(gate_mul(&device, Gate::Silu, &none, &none)
        .unwrap()
        .is_empty());
    assert!(matches!(
        gate_mul(&device, Gate::Silu, &ints, &ints),
        Err(Error::UnsupportedDType { .. })
    ));
    assert!(matches!(
        gate_mul(&device, Gate::Silu, &x, &ints),
        Err(Error::DTypeMismatch { .. })
    ));
    assert!(matches!(
        gate_mul(&device, Gate::Silu, &x, &turned),
        Err(Error::ShapeMismatch { .. })
    ));
}
