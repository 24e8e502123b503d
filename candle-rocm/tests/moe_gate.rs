//! Gates of experts with biases, and sums over the experts of tokens, against f64 on the host.

mod common;

use candle_rocm::ops::moe::{gate_experts, sum_experts, ClampedGate};
use candle_rocm::{Device, Error};
use common::*;
use half::{bf16, f16};

const EXPERTS: usize = 5;
const LIMIT: f64 = 5e-4;
const GATE: ClampedGate = ClampedGate {
    alpha: 1.702,
    limit: 0.75,
};

/// Experts of slots; the last slot has none.
fn route(slots: usize) -> Vec<u32> {
    let mut rng = Rng::new(slots as u64);
    let mut ids: Vec<u32> = (0..slots).map(|_| rng.below(EXPERTS) as u32).collect();
    ids[slots - 1] = u32::MAX;
    ids
}

fn check<T: Element>(device: &Device, tokens: usize, used: usize, columns: usize, layout: Layout) {
    let what = format!("{} {tokens} {used} {columns} {layout:?}", T::DTYPE);
    let mut rng = Rng::new(3);
    let slots = tokens * used;
    let mut random = |dims: &[usize], layout| {
        HostTensor::<T>::with_layout(dims, layout, |n| rng.vec(n, -1.5, 1.5))
    };
    let of_slots = [(); 2].map(|()| random(&[tokens, used, columns], layout));
    let biases = [(); 2].map(|()| random(&[EXPERTS, columns], Layout::Offset));
    let chosen = route(slots);
    let ids = HostTensor::contiguous(chosen.clone(), &[tokens, used]);
    let weights = HostTensor::<f32>::with_layout(&[tokens, used], layout, |n| rng.vec(n, 0.0, 1.0));
    let [x, y] = &of_slots;
    let [a, b] = &biases;
    let (xb, yb) = (x.upload(device), y.upload(device));
    let (ab, bb) = (a.upload(device), b.upload(device));
    let (ib, wb) = (ids.upload(device), weights.upload(device));
    let wide = |t: &HostTensor<T>| -> Vec<f64> { t.values().iter().map(|v| v.to_f64()).collect() };
    let (xs, ys, x_bias, y_bias) = (wide(x), wide(y), wide(a), wide(b));
    let bias = |of: &[f64], slot: usize, c: usize| of[chosen[slot] as usize * columns + c];

    let got = gate_experts(
        device,
        [&x.view(&xb), &y.view(&yb)],
        [&a.view(&ab), &b.view(&bb)],
        &ids.view(&ib),
        GATE,
    );
    let limit = f64::from(GATE.limit);
    let gated = |i: usize| {
        let (slot, c) = (i / columns, i % columns);
        if chosen[slot] == u32::MAX {
            return 0.0;
        }
        let g = (xs[i] + bias(&x_bias, slot, c)).min(limit);
        let u = (ys[i] + bias(&y_bias, slot, c)).clamp(-limit, limit);
        (u + 1.0) * g / (1.0 + (-f64::from(GATE.alpha) * g).exp())
    };
    let want: Vec<f64> = (0..slots * columns).map(gated).collect();
    assert_close(&download::<T>(device, &got.unwrap()), &want, LIMIT, &what);

    let factors = weights.values();
    for biased in [false, true] {
        let biases = a.view(&ab);
        let got = sum_experts(
            device,
            &x.view(&xb),
            biased.then_some(&biases),
            (&ids.view(&ib), EXPERTS),
            &weights.view(&wb),
        );
        let sum = |i: usize| -> f64 {
            let (token, c) = (i / columns, i % columns);
            let slots = (token * used..(token + 1) * used).filter(|s| chosen[*s] != u32::MAX);
            let of = |slot: usize| {
                let bias = if biased { bias(&x_bias, slot, c) } else { 0.0 };
                f64::from(factors[slot]) * (xs[slot * columns + c] + bias)
            };
            slots.map(of).sum()
        };
        let want: Vec<f64> = (0..tokens * columns).map(sum).collect();
        assert_close(&download::<T>(device, &got.unwrap()), &want, LIMIT, &what);
    }
}

#[test]
fn every_dtype_and_layout() {
    let device = device();
    for (tokens, used, columns) in [(1, 1, 8), (3, 4, 77), (70, 2, 40)] {
        for layout in [Layout::Contiguous, Layout::Offset, Layout::Narrowed] {
            check::<f32>(&device, tokens, used, columns, layout);
            check::<f16>(&device, tokens, used, columns, layout);
            check::<bf16>(&device, tokens, used, columns, layout);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = device();
    let x = HostTensor::contiguous(vec![0f32; 12], &[2, 2, 3]);
    let bias = HostTensor::contiguous(vec![0f32; 12], &[4, 3]);
    let narrow = HostTensor::contiguous(vec![0f32; 8], &[4, 2]);
    let ids = HostTensor::contiguous(vec![0u32; 4], &[2, 2]);
    let few = HostTensor::contiguous(vec![0u32; 2], &[2, 1]);
    let (xb, bb, nb, ib, fb) = (
        x.upload(&device),
        bias.upload(&device),
        narrow.upload(&device),
        ids.upload(&device),
        few.upload(&device),
    );
    let x = x.view(&xb);
    let (bias, narrow) = (bias.view(&bb), narrow.view(&nb));
    let (ids, few) = (ids.view(&ib), few.view(&fb));
    let gate = |biases, ids| gate_experts(&device, [&x, &x], biases, ids, GATE);
    assert!(gate([&bias, &bias], &ids).is_ok());
    for wrong in [
        gate([&bias, &narrow], &ids),
        gate([&narrow, &narrow], &ids),
        gate([&bias, &bias], &few),
    ] {
        assert!(matches!(wrong, Err(Error::ShapeMismatch { .. })));
    }
    let wrong = gate([&bias, &bias], &bias);
    assert!(matches!(wrong, Err(Error::DTypeMismatch { .. })));
    let wrong = sum_experts(&device, &x, Some(&bias), (&ids, 5), &bias);
    assert!(matches!(wrong, Err(Error::ShapeMismatch { .. })));
}
