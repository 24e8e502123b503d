//! RMS norm and layer norm, plain and of a sum, against f64 on the host.

mod common;

use candle_rocm::ops::norm::{
    add_layer_norm, add_rms_norm, add_rms_norm_quantize, layer_norm, rms_norm, rms_norm_quantize,
    Normed,
};
use candle_rocm::ops::quantized::QuantizedActivations;
use candle_rocm::{Buffer, DType, Device, Error, Result, View};
use common::*;
use half::{bf16, f16};

/// Row lengths around packs, a wave, what a wave keeps in registers (512 or 1024), what the largest block keeps (16384
/// of f32, 32768 of narrow types), and beyond.
const COLUMNS: [usize; 13] = [
    1, 2, 7, 33, 64, 257, 513, 1000, 1025, 4096, 16_384, 20_001, 33_008,
];
const EPS: f32 = 1e-5;

#[derive(Clone, Copy, Debug)]
enum Norm {
    Rms,
    Layer,
    LayerWithoutBias,
}

impl Norm {
    const ALL: [Norm; 3] = [Norm::Rms, Norm::Layer, Norm::LayerWithoutBias];

    fn run(self, device: &Device, x: &View, weight: &View, bias: &View) -> Result<Buffer> {
        match self {
            Norm::Rms => rms_norm(device, x, weight, EPS),
            Norm::Layer => layer_norm(device, x, weight, Some(bias), EPS),
            Norm::LayerWithoutBias => layer_norm(device, x, weight, None, EPS),
        }
    }

    fn run_on_sum(
        self,
        device: &Device,
        x: &View,
        residual: &View,
        weight: &View,
        bias: &View,
    ) -> Result<(Buffer, Buffer)> {
        match self {
            Norm::Rms => add_rms_norm(device, x, residual, weight, EPS),
            Norm::Layer => add_layer_norm(device, x, residual, weight, Some(bias), EPS),
            Norm::LayerWithoutBias => add_layer_norm(device, x, residual, weight, None, EPS),
        }
    }

    /// The exact results of rows in f64, rounded to the dtype.
    fn oracle<T: Element>(self, rows: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
        let columns = weight.len();
        let mean = |row: &[f64], f: &dyn Fn(f64) -> f64| {
            row.iter().map(|&v| f(v)).sum::<f64>() / columns as f64
        };
        let norm = |row: &[f64]| -> Vec<f64> {
            let center = match self {
                Norm::Rms => 0.0,
                _ => mean(row, &|v| v),
            };
            let variance = mean(row, &|v| (v - center) * (v - center));
            let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
            let shift = |i: usize| match self {
                Norm::Layer => bias[i],
                _ => 0.0,
            };
            (0..columns)
                .map(|i| {
                    T::from_f32(((row[i] - center) * scale * weight[i] + shift(i)) as f32).to_f64()
                })
                .collect()
        };
        rows.chunks(columns).flat_map(norm).collect()
    }
}

fn wide<T: Element>(tensor: &HostTensor<T>) -> Vec<f64> {
    tensor.values().iter().map(|v| v.to_f64()).collect()
}

fn vector<T: Element>(rng: &mut Rng, columns: usize) -> HostTensor<T> {
    HostTensor::with_layout(&[columns], Layout::Offset, |n| rng.vec(n, -2.0, 2.0))
}

fn norms<T: Element>(device: &Device) {
    let mut rng = Rng::new(2);
    for columns in COLUMNS {
        // A mean far from zero, for the variance.
        for (layout, rows) in [
            (Layout::Contiguous, 3),
            (Layout::Narrowed, 5),
            (Layout::Transposed, 2),
        ] {
            let dims = [rows, columns];
            let x = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, 2.0, 4.0));
            let residual =
                HostTensor::<T>::with_layout(&dims, Layout::Narrowed, |n| rng.vec(n, -1.0, 1.0));
            let (weight, bias) = (
                vector::<T>(&mut rng, columns),
                vector::<T>(&mut rng, columns),
            );
            let (xb, rb) = (x.upload(device), residual.upload(device));
            let (wb, bb) = (weight.upload(device), bias.upload(device));
            let (xv, rv, wv, bv) = (
                x.view(&xb),
                residual.view(&rb),
                weight.view(&wb),
                bias.view(&bb),
            );
            let sums: Vec<T> = wide(&x)
                .iter()
                .zip(wide(&residual))
                .map(|(a, b)| T::from_f32(*a as f32 + b as f32))
                .collect();
            for norm in Norm::ALL {
                let what = format!("{norm:?} {} {dims:?} {layout:?}", T::DTYPE);
                let oracle = |rows: &[f64]| norm.oracle::<T>(rows, &wide(&weight), &wide(&bias));
                let got = norm.run(device, &xv, &wv, &bv).unwrap();
                assert_close(
                    &download::<T>(device, &got),
                    &oracle(&wide(&x)),
                    NMSE_LIMIT,
                    &what,
                );

                let (sum, got) = norm.run_on_sum(device, &xv, &rv, &wv, &bv).unwrap();
                assert_exact(
                    &download::<T>(device, &sum),
                    &sums,
                    &format!("sum of {what}"),
                );
                let rows: Vec<f64> = sums.iter().map(|v| v.to_f64()).collect();
                let what = format!("sum and {what}");
                assert_close(
                    &download::<T>(device, &got),
                    &oracle(&rows),
                    NMSE_LIMIT,
                    &what,
                );
            }
        }
    }
}

#[test]
fn of_any_width() {
    let device = device();
    norms::<f16>(&device);
    norms::<bf16>(&device);
    norms::<f32>(&device);
}

#[test]
fn layer_norm_far_from_zero_keeps_its_variance() {
    let device = device();
    // Taking the mean square minus the squared mean would lose all digits here.
    let columns = 1000;
    let x = HostTensor::contiguous(
        (0..columns)
            .map(|i| 10_000.0 + (i % 2) as f32)
            .collect::<Vec<_>>(),
        &[1, columns],
    );
    let weight = HostTensor::contiguous(vec![1f32; columns], &[columns]);
    let (xb, wb) = (x.upload(&device), weight.upload(&device));
    let got: Vec<f32> = download(
        &device,
        &layer_norm(&device, &x.view(&xb), &weight.view(&wb), None, 0.0).unwrap(),
    );
    let want: Vec<f64> = (0..columns)
        .map(|i| if i % 2 == 0 { -1.0 } else { 1.0 })
        .collect();
    assert_close(&got, &want, NMSE_LIMIT, "alternating");
}

#[test]
fn weights_may_be_strided() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f32; 8], &[2, 4]);
    let weight = HostTensor {
        storage: vec![0f32, 9.0, 1.0, 9.0, 2.0, 9.0, 3.0],
        offset: 0,
        dims: vec![4],
        strides: vec![2],
    };
    let (xb, wb) = (x.upload(&device), weight.upload(&device));
    let got: Vec<f32> = download(
        &device,
        &rms_norm(&device, &x.view(&xb), &weight.view(&wb), 0.0).unwrap(),
    );
    assert_eq!(got, [0.0, 1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0]);
}

#[test]
fn zero_sizes() {
    let device = device();
    for dims in [[0, 5], [5, 0]] {
        let x = HostTensor::<f32>::contiguous(vec![], &dims);
        let weight = HostTensor::contiguous(vec![1f32; dims[1]], &dims[1..]);
        let (xb, wb) = (x.upload(&device), weight.upload(&device));
        let (x, weight) = (x.view(&xb), weight.view(&wb));
        for norm in Norm::ALL {
            assert!(norm.run(&device, &x, &weight, &weight).unwrap().is_empty());
            let (sum, normed) = norm.run_on_sum(&device, &x, &x, &weight, &weight).unwrap();
            assert!(sum.is_empty() && normed.is_empty());
        }
    }
}

#[test]
fn what_is_refused() {
    let device = device();
    let x = HostTensor::contiguous(vec![1f32; 16], &[4, 4]);
    let turned = HostTensor::contiguous(vec![1f32; 16], &[2, 8]);
    let doubles = HostTensor::contiguous(vec![1f64; 4], &[1, 4]);
    let three = HostTensor::contiguous(vec![1f32; 3], &[3]);
    let four = HostTensor::contiguous(vec![1f32; 4], &[4]);
    let halves = HostTensor::contiguous(vec![f16::ONE; 4], &[4]);
    let (xb, ub, db) = (
        x.upload(&device),
        turned.upload(&device),
        doubles.upload(&device),
    );
    let (tb, fb, hb) = (
        three.upload(&device),
        four.upload(&device),
        halves.upload(&device),
    );
    let (x, turned, doubles) = (x.view(&xb), turned.view(&ub), doubles.view(&db));
    let (three, four, halves) = (three.view(&tb), four.view(&fb), halves.view(&hb));
    for norm in Norm::ALL {
        assert!(matches!(
            norm.run(&device, &doubles, &doubles, &doubles),
            Err(Error::UnsupportedDType { .. })
        ));
        assert!(matches!(
            norm.run(&device, &x, &three, &three),
            Err(Error::ShapeMismatch { .. })
        ));
        assert!(matches!(
            norm.run(&device, &x, &halves, &halves),
            Err(Error::DTypeMismatch { .. })
        ));
        assert!(matches!(
            norm.run_on_sum(&device, &x, &turned, &four, &four),
            Err(Error::ShapeMismatch { .. })
        ));
        assert!(matches!(
            norm.run_on_sum(&device, &x, &halves, &four, &four),
            Err(Error::DTypeMismatch { .. })
        ));
    }
}

/// Floats as the norm gives them, and the same 8 bits as quantizing these.
#[test]
fn norm_and_8_bits_at_once() {
    let device = device();
    let mut rng = Rng::new(5);
    // Around packs and the padding of 8-bit rows, and beyond what the largest block keeps.
    for columns in [32, 96, 576, 4096, 20_000] {
        for layout in [Layout::Contiguous, Layout::Narrowed] {
            let dims = [3, columns];
            let mut host = |low, high| {
                HostTensor::<f32>::with_layout(&dims, layout, |n| rng.vec(n, low, high))
            };
            let (x, residual) = (host(-2.0, 4.0), host(-1.0, 1.0));
            let weight = vector::<f32>(&mut rng, columns);
            let buffers = [&x, &residual, &weight].map(|t| t.upload(&device));
            let xv = x.view(&buffers[0]);
            let rv = residual.view(&buffers[1]);
            let wv = weight.view(&buffers[2]);
            let check = |normed: Normed, rows: &[f64], what: &str| {
                let what = format!("{what} {dims:?} {layout:?}");
                let got = download::<f32>(&device, &normed.floats);
                let want = Norm::Rms.oracle::<f32>(rows, &wide(&weight), &[]);
                assert_close(&got, &want, NMSE_LIMIT, &what);
                let strides = row_major(&dims);
                let floats = View::contiguous(&normed.floats, DType::F32, &dims, &strides);
                let want = QuantizedActivations::quantize(&device, &floats).unwrap();
                assert_eq!(
                    (normed.quantized.columns(), normed.quantized.vector_len()),
                    (3, columns)
                );
                let bytes = |q: &QuantizedActivations| download::<u8>(&device, q.buffer());
                assert!(bytes(&normed.quantized) == bytes(&want), "8 bits of {what}");
            };
            let normed = rms_norm_quantize(&device, &xv, &wv, EPS).unwrap();
            check(normed, &wide(&x), "norm");
            let (sum, normed) = add_rms_norm_quantize(&device, &xv, &rv, &wv, EPS).unwrap();
            let sums: Vec<f32> = x
                .values()
                .iter()
                .zip(residual.values())
                .map(|(a, b)| a + b)
                .collect();
            assert_exact(&download::<f32>(&device, &sum), &sums, "sum");
            let sums: Vec<f64> = sums.into_iter().map(f64::from).collect();
            check(normed, &sums, "norm of a sum");
        }
    }
    let x = HostTensor::<f32>::contiguous(vec![1.0; 48], &[1, 48]);
    let (buffer, weight) = (x.upload(&device), upload(&device, &[1f32; 48]));
    let weight = View::contiguous(&weight, DType::F32, &[48], &[1]);
    let error = rms_norm_quantize::<QuantizedActivations>(&device, &x.view(&buffer), &weight, EPS)
        .err()
        .unwrap();
    assert!(error.to_string().contains("multiples of 32"), "{error}");
}
