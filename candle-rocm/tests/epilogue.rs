//! What follows products, and norms that conditions scale and shift, against f64 on the host.

mod common;

use candle_rocm::ops::epilogue::{epilogue, Epilogue};
use candle_rocm::ops::gated::Gate;
use candle_rocm::ops::modulated_norm::modulated_norm;
use candle_rocm::{Buffer, Device, Error, View};
use common::*;
use half::{bf16, f16};

/// Batch, tokens and channels: around packs, a wave, and what a wave keeps of a row.
const SHAPES: [[usize; 3]; 6] = [
    [1, 1, 1],
    [2, 3, 7],
    [3, 2, 64],
    [2, 5, 257],
    [1, 4, 1000],
    [2, 2, 2051],
];

/// How vectors beside rows of `[batch, tokens, channels]` are shared: their shape, and strides as if they had all rows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shared {
    ByAll,
    ByTokens,
    ByBatches,
    /// Every second part of a longer vector for each batch, as one layer gives several.
    PartByTokens,
    ByNone,
}

const SHARED: [Shared; 5] = [
    Shared::ByAll,
    Shared::ByTokens,
    Shared::ByBatches,
    Shared::PartByTokens,
    Shared::ByNone,
];

/// Vectors on the device, and as each element of the rows meets them.
struct Vectors<T> {
    buffer: Buffer,
    dims: [usize; 3],
    strides: [usize; 3],
    offset: usize,
    each: Vec<f64>,
    dtype: std::marker::PhantomData<T>,
}

impl<T: Element> Vectors<T> {
    fn new(device: &Device, rng: &mut Rng, dims: [usize; 3], shared: Shared) -> Self {
        let [batch, tokens, channels] = dims;
        let (offset, strides, count) = match shared {
            Shared::ByAll => (0, [0, 0, 1], channels),
            Shared::ByTokens => (0, [channels, 0, 1], batch * channels),
            Shared::ByBatches => (0, [0, channels, 1], tokens * channels),
            Shared::PartByTokens => (channels, [2 * channels, 0, 1], 2 * batch * channels),
            Shared::ByNone => (
                0,
                [tokens * channels, channels, 1],
                batch * tokens * channels,
            ),
        };
        Self::lying(device, rng, dims, offset, strides, count)
    }

    /// A number for each of the middle dimension, as the bias of a convolution.
    fn by_row(device: &Device, rng: &mut Rng, dims: [usize; 3], of_batch: bool) -> Self {
        let outer = if of_batch { dims[1] } else { 0 };
        let strides = [outer, 1, 0];
        Self::lying(device, rng, dims, 0, strides, dims[0] * dims[1])
    }

    fn lying(
        device: &Device,
        rng: &mut Rng,
        dims: [usize; 3],
        offset: usize,
        strides: [usize; 3],
        count: usize,
    ) -> Self {
        let values: Vec<T> = rng.vec(count, -2.0, 2.0);
        let mut each = Vec::new();
        for b in 0..dims[0] {
            for t in 0..dims[1] {
                for c in 0..dims[2] {
                    let at = offset + b * strides[0] + t * strides[1] + c * strides[2];
                    each.push(values[at].to_f64());
                }
            }
        }
        Self {
            buffer: upload(device, &values),
            dims,
            strides,
            offset,
            each,
            dtype: std::marker::PhantomData,
        }
    }

    fn view(&self) -> View<'_> {
        View {
            buffer: &self.buffer,
            dtype: T::DTYPE,
            offset: self.offset,
            dims: &self.dims,
            strides: &self.strides,
        }
    }
}

fn activate(act: Option<Gate>, x: f64) -> f64 {
    match act {
        None => x,
        Some(Gate::Silu) => x / (1.0 + (-x).exp()),
        Some(Gate::Gelu) => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Some(Gate::Relu) => x.max(0.0),
        // By Simpson's rule.
        Some(Gate::GeluErf) => {
            let (steps, limit) = (400, x / 2f64.sqrt());
            let width = limit / f64::from(steps);
            let sum: f64 = (0..=steps)
                .map(|i| {
                    let factor = match i {
                        _ if i == 0 || i == steps => 1.0,
                        _ if i % 2 == 1 => 4.0,
                        _ => 2.0,
                    };
                    factor * (-(f64::from(i) * width).powi(2)).exp()
                })
                .sum();
            let erf = 2.0 / std::f64::consts::PI.sqrt() * sum * width / 3.0;
            0.5 * x * (1.0 + erf)
        }
    }
}

fn close<T: Element>(device: &Device, got: &Buffer, want: &[f64], what: &str) {
    let got = download::<T>(device, got);
    let want: Vec<f64> = want
        .iter()
        .map(|v| T::from_f32(*v as f32).to_f64())
        .collect();
    // A sum near zero of numbers that are not has their rounding.
    assert_close(&got, &want, 1e-6, &format!("{} {what}", T::DTYPE));
}

fn epilogues<T: Element>(device: &Device) {
    let mut rng = Rng::new(8);
    let activations = [None].into_iter().chain(Gate::ALL.map(Some));
    for (act, dims) in activations.flat_map(|act| SHAPES.map(|dims| (act, dims))) {
        let layout = if dims[1] > 2 {
            Layout::Narrowed
        } else {
            Layout::Contiguous
        };
        let product = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, -3.0, 3.0));
        let residual =
            HostTensor::<T>::with_layout(&dims, Layout::Offset, |n| rng.vec(n, -2.0, 2.0));
        let (pb, rb) = (product.upload(device), residual.upload(device));
        let (x, r) = (product.values(), residual.values());
        for (i, shared) in SHARED.into_iter().enumerate() {
            let bias = match i {
                0 | 1 => Vectors::<T>::by_row(device, &mut rng, dims, i == 1),
                _ => Vectors::new(device, &mut rng, dims, SHARED[(i + 2) % 5]),
            };
            let gate = Vectors::<T>::new(device, &mut rng, dims, shared);
            let (b, g, residual) = (bias.view(), gate.view(), residual.view(&rb));
            for parts in 0..8 {
                let [has_bias, has_gate, adds] = [1, 2, 4].map(|part| parts & part != 0);
                let after = Epilogue {
                    bias: has_bias.then_some(&b),
                    activation: act,
                    gate: has_gate.then_some(&g),
                    residual: adds.then_some(&residual),
                };
                let got = epilogue(device, &product.view(&pb), &after).unwrap();
                let want: Vec<f64> = (0..x.len())
                    .map(|i| {
                        let sum = x[i].to_f64() + if has_bias { bias.each[i] } else { 0.0 };
                        let gated = activate(act, sum) * if has_gate { gate.each[i] } else { 1.0 };
                        gated + if adds { r[i].to_f64() } else { 0.0 }
                    })
                    .collect();
                let what = format!("{act:?} {dims:?} {layout:?} gate {shared:?} parts {parts}");
                close::<T>(device, &got, &want, &what);
            }
        }
    }
}

#[test]
fn epilogues_of_every_dtype() {
    let device = device();
    epilogues::<f16>(&device);
    epilogues::<bf16>(&device);
    epilogues::<f32>(&device);
}

fn modulated<T: Element>(device: &Device) {
    const EPS: f32 = 1e-6;
    let mut rng = Rng::new(9);
    for dims in SHAPES {
        let channels = dims[2];
        for (i, shared) in SHARED.into_iter().enumerate() {
            let layout = [Layout::Contiguous, Layout::Offset, Layout::Narrowed][i % 3];
            let x = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, 1.0, 4.0));
            let scale = Vectors::<T>::new(device, &mut rng, dims, shared);
            let shift = Vectors::<T>::new(device, &mut rng, dims, SHARED[(i + 1) % 5]);
            let xb = x.upload(device);
            let mut normed = Vec::new();
            for row in x.values().chunks(channels) {
                let row: Vec<f64> = row.iter().map(|v| v.to_f64()).collect();
                let mean = row.iter().sum::<f64>() / channels as f64;
                let squares = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
                let deviation = (squares / channels as f64 + f64::from(EPS)).sqrt();
                normed.extend(row.iter().map(|v| (v - mean) / deviation));
            }
            for shifts in [false, true] {
                let view = shift.view();
                let given = shifts.then_some(&view);
                let got = modulated_norm(device, &x.view(&xb), &scale.view(), given, EPS).unwrap();
                let want: Vec<f64> = (0..normed.len())
                    .map(|i| {
                        normed[i] * (1.0 + scale.each[i]) + if shifts { shift.each[i] } else { 0.0 }
                    })
                    .collect();
                let what = format!("{dims:?} {layout:?} {shared:?} shift {shifts}");
                close::<T>(device, &got, &want, &what);
            }
        }
    }
}

#[test]
fn modulated_norms_of_every_dtype() {
    let device = device();
    modulated::<f16>(&device);
    modulated::<bf16>(&device);
    modulated::<f32>(&device);
}

#[test]
fn nothing_and_what_is_refused() {
    let device = device();
    let none = HostTensor::<f32>::contiguous(vec![], &[0, 4]);
    let x = HostTensor::contiguous(vec![1f32; 8], &[2, 4]);
    let turned = HostTensor::contiguous(vec![1f32; 8], &[4, 2]);
    let ints = HostTensor::contiguous(vec![1i32; 8], &[2, 4]);
    let [nb, xb, tb] = [&none, &x, &turned].map(|t| t.upload(&device));
    let ib = ints.upload(&device);
    let (none, x, turned, ints) = (
        none.view(&nb),
        x.view(&xb),
        turned.view(&tb),
        ints.view(&ib),
    );
    let plain = Epilogue::default();
    assert!(epilogue(&device, &none, &plain).unwrap().is_empty());
    assert!(modulated_norm(&device, &none, &none, None, 1e-6)
        .unwrap()
        .is_empty());
    assert!(matches!(
        epilogue(&device, &ints, &plain),
        Err(Error::UnsupportedDType { .. })
    ));
    for wrong in [&turned, &ints] {
        for after in [
            Epilogue {
                bias: Some(wrong),
                ..plain
            },
            Epilogue {
                gate: Some(wrong),
                ..plain
            },
            Epilogue {
                residual: Some(wrong),
                ..plain
            },
        ] {
            assert!(matches!(
                epilogue(&device, &x, &after),
                Err(Error::ShapeMismatch { .. } | Error::DTypeMismatch { .. })
            ));
        }
        assert!(matches!(
            modulated_norm(&device, &x, wrong, None, 1e-6),
            Err(Error::ShapeMismatch { .. } | Error::DTypeMismatch { .. })
        ));
        assert!(modulated_norm(&device, &x, &x, Some(wrong), 1e-6).is_err());
    }
}
