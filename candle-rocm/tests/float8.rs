//! Matrices in blocks of floats times 8-bit floats against f64, where the arch has instructions for them.

mod common;
mod float8_oracle;

use candle_rocm::config::{Config, Path};
use candle_rocm::ops::norm::{
    add_rms_norm, add_rms_norm_quantize, rms_norm, rms_norm_quantize, Normed,
};
use candle_rocm::ops::quantized::{
    float8, forget, gated, linear, linear_float8, multiplies_float8, takes_float8, tune_float8,
    Activation, Epilogue, FloatActivations, Format, QuantizedMatrix, Scaling, MATVEC_MAX_COLUMNS,
};
use candle_rocm::{Buffer, DType, Device, View};
use common::{assert_close, device, download, nmse, row_major, upload, Element, Rng};
use float8::F8E4M3;
use float8_oracle::{finite, product, ROUNDED, SUMMED};
use half::{bf16, f16};

/// The same with activations of 8-bit floats against exact ones.
const QUANTIZED: f64 = 2e-3;

/// The formats that are multiplied with 8-bit floats, and how these are scaled.
const FORMATS: [(Format, Scaling); 2] = [
    (Format::F8E4M3, Scaling::Steps),
    (Format::MXFP4, Scaling::Mx),
];

fn has(device: &Device, scaling: Scaling) -> bool {
    let arch = &device.properties().arch;
    match scaling {
        Scaling::Steps => arch.has_float8(),
        Scaling::Mx => arch.has_mx(),
    }
}

/// A matrix in blocks, and its elements.
struct Weights {
    format: Format,
    rows: usize,
    cols: usize,
    values: Vec<f64>,
    buffer: Buffer,
    offset: usize,
}

impl Weights {
    fn new(device: &Device, format: Format, (rows, cols): (usize, usize), rng: &mut Rng) -> Self {
        let (mut bytes, mut values) = (vec![0xffu8; 2 * rng.below(5)], Vec::new());
        let offset = bytes.len();
        for _ in 0..rows * cols / format.block_size() {
            match format {
                Format::F8E4M3 => float_block(rng, &mut bytes, &mut values),
                _ => mx_block(rng, &mut bytes, &mut values),
            }
        }
        Weights {
            format,
            rows,
            cols,
            values,
            buffer: device.upload(&bytes).unwrap(),
            offset,
        }
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        QuantizedMatrix {
            offset: self.offset,
            ..QuantizedMatrix::new(self.format, &self.buffer, self.rows, self.cols)
        }
    }
}

/// A scale and 64 floats.
fn float_block(rng: &mut Rng, bytes: &mut Vec<u8>, values: &mut Vec<f64>) {
    let scale = rng.uniform(0.001, 0.1) as f32;
    bytes.extend(scale.to_le_bytes());
    for float in finite(rng, 64) {
        bytes.push(match float.to_bits() {
            0x80 => 0,
            bits => bits as u8,
        });
        values.push(float.to_f64() * f64::from(scale));
    }
}

/// An exponent and 32 floats of 4 bits, those 16 apart in a byte.
fn mx_block(rng: &mut Rng, bytes: &mut Vec<u8>, values: &mut Vec<f64>) {
    const MAGNITUDES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let exponent = 118 + rng.below(12) as u8;
    let nibbles: Vec<u8> = (0..32).map(|_| rng.below(16) as u8).collect();
    bytes.push(exponent);
    bytes.extend((0..16).map(|i| nibbles[i] | nibbles[i + 16] << 4));
    values.extend(nibbles.iter().map(|nibble| {
        let sign = if nibble & 8 == 0 { 1.0 } else { -1.0 };
        sign * MAGNITUDES[usize::from(nibble & 7)] * 2f64.powi(i32::from(exponent) - 127)
    }));
}

/// Activations as numbers.
fn numbers(device: &Device, x: &FloatActivations) -> Vec<f64> {
    let values = x.values(&download::<u8>(device, x.buffer()));
    values.into_iter().map(f64::from).collect()
}

fn quantized<T: Element>(
    device: &Device,
    x: &[T],
    dims: &[usize],
    scaling: Scaling,
) -> FloatActivations {
    let buffer = upload(device, x);
    let strides = row_major(dims);
    let view = View::contiguous(&buffer, T::DTYPE, dims, &strides);
    FloatActivations::quantize(device, &view, scaling).unwrap()
}

#[test]
fn activations_are_the_nearest_floats_of_their_scale() {
    fn of<T: Element>(device: &Device, scaling: Scaling) {
        // The second is padded with scales of a power of two.
        let x: Vec<T> = Rng::new(8).vec(5 * 192, -3.0, 2.0);
        let got = numbers(device, &quantized(device, &x, &[5, 192], scaling));
        let size = scaling.block();
        for (got, x) in got.chunks(size).zip(x.chunks(size)) {
            let most = x
                .iter()
                .fold(0f32, |most, v| most.max(v.to_f64().abs() as f32));
            let d = match scaling {
                Scaling::Steps => most * (1.0 / 448.0),
                Scaling::Mx => 2f32.powf((most / 448.0).log2().ceil()),
            };
            for (got, x) in got.iter().zip(x) {
                let nearest = F8E4M3::from_f32(x.to_f64() as f32 * (1.0 / d));
                assert_eq!(*got, f64::from(nearest.to_f32() * d));
            }
        }
    }
    let device = device();
    for scaling in [Scaling::Steps, Scaling::Mx] {
        of::<f32>(&device, scaling);
        of::<f16>(&device, scaling);
        of::<bf16>(&device, scaling);
    }
}

#[test]
fn activations_have_no_bits_that_hardware_reads_differently() {
    let device = device();
    let mut x = vec![0f32; 4 * 64];
    (x[0], x[1]) = (-0.0, -1e-30);
    (x[64], x[65], x[66]) = (3e38, -3e38, -1e30);
    (x[128], x[129]) = (f32::NAN, 1.0);
    (x[192], x[193]) = (-2.0, f32::NEG_INFINITY);
    for scaling in [Scaling::Steps, Scaling::Mx] {
        let floats = quantized(&device, &x, &[2, 128], scaling);
        let bytes = download::<u8>(&device, floats.buffer());
        let is_other = |bits: &u8| matches!(bits, 0x7f | 0x80 | 0xff);
        assert!(!bytes[..256].iter().any(is_other));
        let got = numbers(&device, &floats);
        assert!(got[..128].iter().all(|v| v.is_finite()), "{scaling:?}");
        let size = scaling.block();
        for first in [128, 192] {
            assert!(
                got[first..first + size].iter().all(|v| v.is_nan()),
                "{scaling:?}"
            );
        }
        assert!((got[64] / 3e38 - 1.0).abs() < 0.07 && got[65] == -got[64]);
    }
    let of = [
        (Scaling::Steps, vec![8, 32], "for each 64"),
        (Scaling::Mx, vec![16, 16], "for each 32"),
        (Scaling::Steps, vec![], "without dimensions"),
    ];
    for (scaling, dims, text) in of {
        let strides = row_major(&dims);
        let buffer = upload(&device, &x);
        let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
        let error = FloatActivations::quantize(&device, &view, scaling);
        let error = error.err().unwrap().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn norms_give_what_quantizing_behind_them_gives() {
    let device = device();
    for (rows, width) in [(3, 64), (2, 1088), (1, 9216)] {
        let mut rng = Rng::new(width as u64);
        let [x, residual] =
            [(); 2].map(|()| upload(&device, &rng.vec::<f32>(rows * width, -2.0, 2.0)));
        let weight = upload(&device, &rng.vec::<f32>(width, 0.5, 1.5));
        let (dims, strides) = ([rows, width], [width, 1]);
        let [x, residual] =
            [&x, &residual].map(|b| View::contiguous(b, DType::F32, &dims, &strides));
        let dims_of_weight = [width];
        let weight = View::contiguous(&weight, DType::F32, &dims_of_weight, &[1]);
        let same = |normed: &Normed<FloatActivations>, want: &Buffer| {
            let got = download::<f32>(&device, &normed.floats);
            let want_values: Vec<f64> = download::<f32>(&device, want)
                .iter()
                .map(|v| f64::from(*v))
                .collect();
            assert_close(&got, &want_values, 1e-12, "norm");
            let view = View::contiguous(&normed.floats, DType::F32, &dims, &strides);
            let want = FloatActivations::quantize(&device, &view, Scaling::Steps).unwrap();
            let bytes = |x: &FloatActivations| download::<u8>(&device, x.buffer());
            assert!(bytes(&normed.quantized) == bytes(&want), "{rows} x {width}");
        };
        let normed = rms_norm_quantize(&device, &x, &weight, 1e-5).unwrap();
        same(&normed, &rms_norm(&device, &x, &weight, 1e-5).unwrap());
        let (sum, normed) = add_rms_norm_quantize(&device, &x, &residual, &weight, 1e-5).unwrap();
        let (want_sum, want) = add_rms_norm(&device, &x, &residual, &weight, 1e-5).unwrap();
        assert_eq!(
            download::<f32>(&device, &sum),
            download::<f32>(&device, &want_sum)
        );
        same(&normed, &want);
    }
}

#[test]
fn blocks_times_vectors_are_right_where_there_are_instructions() {
    let device = device();
    let mut rng = Rng::new(9);
    assert!(!multiplies_float8(&device, Format::Q8_0).unwrap());
    let units = device.properties().compute_units as usize;
    let large = 129 + 128 * units.min(16);
    for (format, scaling) in FORMATS {
        let has = has(&device, scaling);
        assert_eq!(multiplies_float8(&device, format).unwrap(), has);
        for (columns, rows, cols) in [(1, 1, 64), (9, 70, 192), (100, 67, 320), (130, large, 128)] {
            let weights = Weights::new(&device, format, (rows, cols), &mut rng);
            let x: Vec<f32> = rng.vec(columns * cols, -1.0, 1.5);
            let floats = quantized(&device, &x, &[columns, cols], scaling);
            let (matrix, epilogue) = (weights.matrix(), Epilogue::default());
            let y = float8(&device, &matrix, &floats, &epilogue, DType::F32);
            if !has {
                let error = y.err().unwrap().to_string();
                assert!(
                    error.contains("no matrix instructions on 8-bit floats"),
                    "{error}"
                );
                continue;
            }
            let got = download::<f32>(&device, &y.unwrap());
            let what = format!("{columns} times {rows} x {cols} of {format}");
            let shape = [1, columns, rows, cols];
            let want = product(&numbers(&device, &floats), &weights.values, shape);
            assert_close(&got, &want, SUMMED, &what);
            if rows == 1 {
                // One sum may cancel.
                continue;
            }
            let exact: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            let want = product(&exact, &weights.values, shape);
            assert_close(&got, &want, QUANTIZED, &what);
        }
    }
}

#[test]
fn operands_of_different_kinds_are_refused() {
    let device = device();
    let mut rng = Rng::new(12);
    let weights = Weights::new(&device, Format::F8E4M3, (3, 128), &mut rng);
    let floats = quantized(&device, &[1f32; 128], &[1, 128], Scaling::Mx);
    let (matrix, epilogue) = (weights.matrix(), Epilogue::default());
    let error = float8(&device, &matrix, &floats, &epilogue, DType::F32);
    let error = error.err().unwrap().to_string();
    assert!(error.contains("vectors in Steps, not in Mx"), "{error}");
    // As other floats instead.
    let y = linear_float8(&device, &matrix, &floats, &epilogue, DType::F32).unwrap();
    let want = product(&[1.0; 128], &weights.values, [1, 1, 3, 128]);
    assert_close(&download::<f32>(&device, &y), &want, SUMMED, "of ones");
    let other = QuantizedMatrix {
        format: Format::Q8_0,
        ..matrix
    };
    let error = float8(&device, &other, &floats, &epilogue, DType::F32);
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains("is not multiplied as 8-bit floats"),
        "{error}"
    );
}

#[test]
fn the_epilogue_follows_and_nan_stays_in_its_vector() {
    let device = device();
    for (format, scaling) in FORMATS {
        if has(&device, scaling) {
            check_epilogue(&device, format, scaling);
        }
    }
}

fn check_epilogue(device: &Device, format: Format, scaling: Scaling) {
    let mut rng = Rng::new(10);
    let (columns, rows, cols) = (20, 35, 128);
    let weights = Weights::new(device, format, (rows, cols), &mut rng);
    let mut x: Vec<f32> = rng.vec(columns * cols, -1.0, 1.5);
    x[3 * cols + 70] = f32::INFINITY;
    let floats = quantized(device, &x, &[columns, cols], scaling);
    let bias: Vec<bf16> = rng.vec(rows, -2.0, 2.0);
    let residual: Vec<bf16> = rng.vec(columns * rows, -2.0, 2.0);
    let (bias_buffer, residual_buffer) = (upload(device, &bias), upload(device, &residual));
    let (dims, strides) = ([columns, rows], [rows, 1]);
    let epilogue = Epilogue {
        bias: Some(View::contiguous(&bias_buffer, DType::BF16, &[35], &[1])),
        activation: Some(Activation::Silu),
        residual: Some(View::contiguous(
            &residual_buffer,
            DType::BF16,
            &dims,
            &strides,
        )),
    };
    let y = float8(device, &weights.matrix(), &floats, &epilogue, DType::BF16).unwrap();
    let got = download::<bf16>(device, &y);
    let shape = [1, columns, rows, cols];
    let want: Vec<f64> = product(&numbers(device, &floats), &weights.values, shape)
        .iter()
        .enumerate()
        .map(|(i, sum)| {
            let sum = sum + bias[i % rows].to_f64();
            sum / (1.0 + (-sum).exp()) + residual[i].to_f64()
        })
        .collect();
    let is_there = |i: usize| i / rows != 3;
    let some = |values: &[f64]| -> Vec<f64> {
        let values = values.iter().enumerate();
        values
            .filter(|(i, _)| is_there(*i))
            .map(|(_, v)| *v)
            .collect()
    };
    let got: Vec<f64> = got.iter().map(|v| v.to_f64()).collect();
    assert!((0..got.len()).all(|i| got[i].is_nan() != is_there(i)));
    assert!(nmse(&some(&got), &some(&want)) < ROUNDED);
}

#[test]
fn they_are_chosen_when_forced_or_measured() {
    let config = Config {
        quantized: Some(Path::Float8),
        ..Config::from_env().unwrap()
    };
    let (plain, forced) = (device(), Device::with_config(0, config).unwrap());
    for (format, scaling) in FORMATS {
        check_choice(&plain, &forced, format, scaling);
    }
    assert_eq!(tune_float8(&plain, Format::Q4K, (64, 256)).unwrap(), None);
}

fn check_choice(plain: &Device, forced: &Device, format: Format, scaling: Scaling) {
    let has = has(plain, scaling);
    let mut rng = Rng::new(11);
    let (rows, cols) = (40, 128);
    for columns in [MATVEC_MAX_COLUMNS, 30] {
        let x: Vec<f32> = rng.vec(columns * cols, -1.0, 1.0);
        for (device, is_forced) in [(plain, false), (forced, true)] {
            let weights = Weights::new(device, format, (rows, cols), &mut rng);
            let matrix = weights.matrix();
            let takes = takes_float8(device, &matrix, columns).unwrap();
            assert_eq!(takes, has && is_forced && columns > MATVEC_MAX_COLUMNS);
            let buffer = upload(device, &x);
            let (dims, strides) = ([columns, cols], [cols, 1]);
            let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
            let exact: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
            let want = product(&exact, &weights.values, [1, columns, rows, cols]);
            let epilogue = Epilogue::default();
            let y = linear(device, &matrix, &view, &epilogue).unwrap();
            assert_close(&download::<f32>(device, &y), &want, QUANTIZED, "linear");
            let floats = FloatActivations::quantize(device, &view, scaling).unwrap();
            let y = linear_float8(device, &matrix, &floats, &epilogue, DType::F32).unwrap();
            assert_close(
                &download::<f32>(device, &y),
                &want,
                QUANTIZED,
                "linear_float8",
            );
            let y = gated(device, &matrix, &matrix, &view, Activation::Silu).unwrap();
            let want: Vec<f64> = want.iter().map(|x| x / (1.0 + (-x).exp()) * x).collect();
            assert_close(
                &download::<f32>(device, &y),
                &want,
                2.0 * QUANTIZED,
                "gated",
            );
        }
    }
    let Some(found) = tune_float8(plain, format, (64, 128)).unwrap() else {
        return assert!(!has);
    };
    assert!(has && found.format == format && found.timings.len() > 3);
    let weights = Weights::new(plain, format, (rows, cols), &mut rng);
    let takes = |columns| takes_float8(plain, &weights.matrix(), columns).unwrap();
    assert_eq!(takes(1 << 20), found.from.is_some());
    forget(plain).unwrap();
    assert!(!takes(1 << 20));
}
