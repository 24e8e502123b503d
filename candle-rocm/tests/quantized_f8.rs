//! Products with matrices of 8-bit floats, whose vectors stay floats, on every path, against f64.

mod common;
mod isolated;

use candle_rocm::ops::moe::indexed_moe;
use candle_rocm::ops::quantized::{
    few_floats, gated, gated_matvec_floats, linear, linear_quantized, matmul_floats, matvec_floats,
    multiplies_floats, Activation, Epilogue, Format, Path, QuantizedActivations, QuantizedMatrix,
    FEW_MAX_COLUMNS, MATVEC_MAX_COLUMNS,
};
use candle_rocm::{Buffer, DType, Device, Error, Result, View};
use common::{assert_close, device, download, Element, HostTensor, Layout, Rng};
use half::{bf16, f16};

const FORMAT: Format = Format::F8E4M3;
const BLOCK: usize = 64;

/// Normalised mean squared error that rounding a result to its dtype and summing in f32 are allowed.
fn rounded<T: Element>() -> f64 {
    match T::DTYPE {
        DType::F32 => 1e-11,
        DType::F16 => 1e-6,
        _ => 1e-4,
    }
}

/// The same where vectors of f32 are multiplied as two numbers of bf16 each.
fn split<T: Element>() -> f64 {
    rounded::<T>().max(1e-9)
}

/// A float of 8 bits, by its definition: sign, four bits of exponent with a bias of 7, three bits of fraction.
fn decode(bits: u8) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
    assert!(bits & 0x7f != 0x7f && bits != 0x80, "no NaN, no -0");
    let magnitude = match exponent {
        0 => fraction / 8.0 * 2f64.powi(-6),
        _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
    };
    if bits < 0x80 {
        magnitude
    } else {
        -magnitude
    }
}

/// A matrix on the host and on the device, where it lies between other bytes.
struct Weights {
    rows: usize,
    cols: usize,
    values: Vec<f64>,
    buffer: Buffer,
    offset: usize,
}

impl Weights {
    /// Numbers of any bits with scales that `scale` gives; every third block has numbers below the normal ones only.
    fn new(
        device: &Device,
        (rows, cols): (usize, usize),
        rng: &mut Rng,
        mut scale: impl FnMut(&mut Rng) -> f32,
    ) -> Self {
        let offset = 4 * rng.below(9);
        let (mut bytes, mut values) = (vec![0xff; offset], Vec::new());
        for block in 0..rows * cols / BLOCK {
            let small = block % 3 == 1;
            let d = scale(rng) * if small { 16384.0 } else { 1.0 };
            bytes.extend(d.to_le_bytes());
            for _ in 0..BLOCK {
                let bits = rng.bits() as u8 & if small { 0x87 } else { 0xff };
                let bits = match bits {
                    0x7f | 0x80 | 0xff => 0,
                    bits => bits,
                };
                bytes.push(bits);
                values.push(f64::from(d) * decode(bits));
            }
        }
        bytes.extend([0xff; 3]);
        Weights {
            rows,
            cols,
            values,
            buffer: device.upload(&bytes).unwrap(),
            offset,
        }
    }

    fn moderate(device: &Device, shape: (usize, usize), rng: &mut Rng) -> Self {
        Self::new(device, shape, rng, |rng| rng.uniform(-0.02, 0.02) as f32)
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        QuantizedMatrix {
            format: FORMAT,
            buffer: &self.buffer,
            offset: self.offset,
            rows: self.rows,
            cols: self.cols,
        }
    }

    /// `[columns, rows]`
    fn product<T: Element>(&self, x: &[T]) -> Vec<f64> {
        let dot = |w: &[f64], x: &[T]| w.iter().zip(x).map(|(w, x)| w * x.to_f64()).sum();
        let rows = || self.values.chunks_exact(self.cols);
        x.chunks_exact(self.cols)
            .flat_map(|x| rows().map(move |w| dot(w, x)))
            .collect()
    }
}

fn has_matrix(device: &Device) -> bool {
    device.properties().arch.generation().matrix().is_some()
}

/// The operations that take so many columns, and what they may be off by.
type Run = fn(&Device, &QuantizedMatrix, &View, &Epilogue) -> Result<Buffer>;
fn paths<T: Element>(device: &Device, columns: usize) -> Vec<(&'static str, Run, f64)> {
    let (exact, split) = (rounded::<T>(), split::<T>());
    let all: [(&str, bool, Run, f64); 4] = [
        (
            "matvec",
            columns <= MATVEC_MAX_COLUMNS,
            matvec_floats,
            exact,
        ),
        (
            "few",
            columns <= FEW_MAX_COLUMNS && has_matrix(device),
            few_floats,
            split,
        ),
        ("matmul", true, matmul_floats, split),
        ("linear", true, linear, split),
    ];
    let taken = all.into_iter().filter(|(_, takes, ..)| *takes);
    taken
        .map(|(name, _, run, limit)| (name, run, limit))
        .collect()
}

fn check_shape<T: Element>(device: &Device, weights: &Weights, columns: usize, rng: &mut Rng) {
    let dims = [columns, weights.cols];
    let x = HostTensor::contiguous(rng.vec::<T>(columns * weights.cols, -1.0, 1.0), &dims);
    let buffer = x.upload(device);
    let want = weights.product(&x.storage);
    for (name, run, limit) in paths::<T>(device, columns) {
        let y = run(
            device,
            &weights.matrix(),
            &x.view(&buffer),
            &Epilogue::default(),
        );
        let what = format!("{name} of {}, {}x{columns}", T::DTYPE, weights.rows);
        // The error of a few results that happen to be small says little.
        let limit = if want.len() > 30 { limit } else { 100. * limit };
        assert_close::<T>(&download(device, &y.unwrap()), &want, limit, &what);
    }
}

/// Columns at which kernels and tiles change.
const COLUMNS: [usize; 14] = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 100];

fn check_dtype<T: Element>() {
    let device = device();
    let mut rng = Rng::new(1);
    for shape in [(1, 64), (3, 192), (131, 320)] {
        let weights = Weights::moderate(&device, shape, &mut rng);
        for columns in COLUMNS {
            check_shape::<T>(&device, &weights, columns, &mut rng);
        }
    }
    // More units than lanes, more blocks than waves.
    for (rows, cols) in [(2, 4096 + 64), (259, 1024)] {
        let weights = Weights::moderate(&device, (rows, cols), &mut rng);
        for columns in [1, 2, 7, 31] {
            check_shape::<T>(&device, &weights, columns, &mut rng);
        }
    }
}

#[test]
fn every_shape_of_f32() {
    check_dtype::<f32>();
}

#[test]
fn every_shape_of_f16() {
    check_dtype::<f16>();
}

#[test]
fn every_shape_of_bf16() {
    check_dtype::<bf16>();
}

/// One of each kernel, with little enough work for an emulator of the hardware.
#[test]
fn tiny() {
    let device = device();
    let mut rng = Rng::new(2);
    let weights = Weights::moderate(&device, (5, 128), &mut rng);
    for columns in [1, 3, 9, 33] {
        check_shape::<f32>(&device, &weights, columns, &mut rng);
        check_shape::<bf16>(&device, &weights, columns, &mut rng);
    }
}

/// Rows at odd places, apart from each other, repeated.
#[test]
fn every_layout() {
    let device = device();
    let mut rng = Rng::new(3);
    let weights = Weights::moderate(&device, (7, 128), &mut rng);
    for layout in Layout::ALL {
        for columns in [2, 9] {
            let x = HostTensor::<f16>::with_layout(&[columns, 128], layout, |count| {
                rng.vec(count, -1.0, 1.0)
            });
            let buffer = x.upload(&device);
            let want = weights.product(&x.values());
            for (name, run, limit) in paths::<f16>(&device, columns) {
                let y = run(
                    &device,
                    &weights.matrix(),
                    &x.view(&buffer),
                    &Epilogue::default(),
                );
                let what = format!("{name}, {layout:?}");
                assert_close::<f16>(&download(&device, &y.unwrap()), &want, 10. * limit, &what);
            }
        }
    }
}

/// Scales from the smallest normal to nearly the largest f32, vectors that make up for them.
fn check_extremes<T: Element>(scales: (f32, f32), vectors: f32) {
    let device = device();
    let mut rng = Rng::new(4);
    let (low, high) = scales;
    let weights = Weights::new(&device, (67, 256), &mut rng, |rng| {
        let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
        (rng.uniform(f64::from(low.log2()), f64::from(high.log2()))
            .exp2()
            * sign) as f32
    });
    for columns in [1, 4, 9, 17, 40] {
        let values = rng.vec::<f32>(columns * 256, -1.0, 1.0);
        let values: Vec<T> = values
            .into_iter()
            .map(|v| T::from_f32(v * vectors))
            .collect();
        let x = HostTensor::contiguous(values, &[columns, 256]);
        let buffer = x.upload(&device);
        let want = weights.product(&x.storage);
        for (name, run, limit) in paths::<T>(&device, columns) {
            let y = run(
                &device,
                &weights.matrix(),
                &x.view(&buffer),
                &Epilogue::default(),
            );
            let what = format!("{name} of {}, {scales:?}, {columns}", T::DTYPE);
            assert_close::<T>(&download(&device, &y.unwrap()), &want, limit, &what);
        }
    }
}

#[test]
fn scales_and_vectors_of_every_magnitude() {
    check_extremes::<f32>((1e-30, 1e-26), 1e28);
    check_extremes::<f32>((1e26, 1e28), 1e-28);
    check_extremes::<f32>((1e-3, 1e-2), 1e30);
    check_extremes::<bf16>((1e-30, 1e-26), 1e28);
    check_extremes::<bf16>((1e26, 1e28), 1e-28);
    // Products that binary16 could not hold.
    check_extremes::<f16>((1e-7, 1e-6), 65000.0);
    check_extremes::<f16>((1.0, 10.0), 1e-3);
}

fn check_epilogues<T: Element>() {
    let device = device();
    let mut rng = Rng::new(5);
    let weights = Weights::moderate(&device, (37, 192), &mut rng);
    for columns in [1, 5, 9, 33, 70] {
        let mut tensor = |dims: &[usize]| {
            let count = dims.iter().product();
            HostTensor::contiguous(rng.vec::<T>(count, -1.0, 1.0), dims)
        };
        let (x, bias) = (tensor(&[columns, 192]), tensor(&[37]));
        let residual = tensor(&[columns, 37]);
        let buffers = [&x, &bias, &residual].map(|t| t.upload(&device));
        for activation in [None, Some(Activation::Silu), Some(Activation::Gelu)] {
            let epilogue = Epilogue {
                bias: Some(bias.view(&buffers[1])),
                activation,
                residual: Some(residual.view(&buffers[2])),
            };
            let want: Vec<f64> = weights
                .product(&x.storage)
                .into_iter()
                .enumerate()
                .map(|(i, sum)| {
                    let sum = sum + bias.storage[i % 37].to_f64();
                    activate(activation, sum) + residual.storage[i].to_f64()
                })
                .collect();
            for (name, run, limit) in paths::<T>(&device, columns) {
                let y = run(&device, &weights.matrix(), &x.view(&buffers[0]), &epilogue);
                let what = format!("{name} of {}, {activation:?}, {columns}", T::DTYPE);
                let y = download::<T>(&device, &y.unwrap());
                assert_close::<T>(&y, &want, 3. * limit, &what);
            }
        }
    }
}

fn activate(activation: Option<Activation>, x: f64) -> f64 {
    match activation {
        None => x,
        Some(Activation::Silu) => x / (1.0 + (-x).exp()),
        Some(_) => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

#[test]
fn epilogues() {
    check_epilogues::<f32>();
    check_epilogues::<f16>();
    check_epilogues::<bf16>();
}

fn check_gated<T: Element>() {
    let device = device();
    let mut rng = Rng::new(6);
    for rows in [1, 7, 66] {
        let gate = Weights::moderate(&device, (rows, 128), &mut rng);
        let up = Weights::moderate(&device, (rows, 128), &mut rng);
        for columns in [1, 2, 3, 8, 9, 40] {
            let dims = [columns, 128];
            let x = HostTensor::contiguous(rng.vec::<T>(columns * 128, -1.0, 1.0), &dims);
            let residual = rng.vec::<T>(columns * rows, -1.0, 1.0);
            let residual = HostTensor::contiguous(residual, &[columns, rows]);
            let (buffer, added) = (x.upload(&device), residual.upload(&device));
            let products = gate.product(&x.storage).into_iter();
            let want: Vec<f64> = products
                .zip(up.product(&x.storage))
                .map(|(g, u)| activate(Some(Activation::Gelu), g) * u)
                .collect();
            let what = format!("gated of {}, {rows}x{columns}", T::DTYPE);
            // Products, and what is made of them, are rounded where they go through memory.
            let limit = 10. * split::<T>();
            let view = x.view(&buffer);
            let y = gated(
                &device,
                &gate.matrix(),
                &up.matrix(),
                &view,
                Activation::Gelu,
            );
            assert_close::<T>(&download(&device, &y.unwrap()), &want, limit, &what);
            if columns > MATVEC_MAX_COLUMNS {
                continue;
            }
            let y = gated_matvec_floats(
                &device,
                &gate.matrix(),
                &up.matrix(),
                &view,
                Activation::Gelu,
                Some(residual.view(&added)),
            );
            let sums = want.iter().zip(&residual.storage);
            let want: Vec<f64> = sums.map(|(w, r)| w + r.to_f64()).collect();
            let limit = 10. * rounded::<T>();
            assert_close::<T>(&download(&device, &y.unwrap()), &want, limit, &what);
        }
    }
}

#[test]
fn gated_products() {
    check_gated::<f32>();
    check_gated::<f16>();
    check_gated::<bf16>();
}

/// A mixture with ids that leave experts out and prefer others.
fn check_experts<T: Element>(
    device: &Device,
    (experts, n, k): (usize, usize, usize),
    (tokens, topk, inputs): (usize, usize, usize),
    layout: Layout,
) {
    let mut rng = Rng::new(tokens as u64);
    let offset = 0;
    let mut weights = Weights::moderate(device, (experts * n, k), &mut rng);
    // Matrices of experts begin where their buffer does.
    let bytes = device.alloc(experts * n * k / BLOCK * 68).unwrap();
    device
        .copy(&weights.buffer, weights.offset, &bytes, 0, bytes.len())
        .unwrap();
    (weights.buffer, weights.offset) = (bytes, offset);
    let x = HostTensor::<T>::with_layout(&[tokens, inputs, k], layout, |count| {
        rng.vec(count, -1.0, 1.0)
    });
    let ids: Vec<u32> = (0..tokens * topk)
        .map(|_| match rng.below(8) {
            0 => u32::MAX,
            1..4 => 1 % experts as u32,
            _ => rng.below(experts) as u32,
        })
        .collect();
    let ids = HostTensor::contiguous(ids, &[tokens, topk]);
    let (on_x, on_ids) = (x.upload(device), ids.upload(device));
    let sizes = (experts, n, k);
    let (view, chosen) = (x.view(&on_x), ids.view(&on_ids));
    let got = indexed_moe(device, FORMAT, &weights.buffer, sizes, &view, &chosen);
    let values = x.values();
    let mut want = Vec::new();
    for (slot, &id) in ids.storage.iter().enumerate() {
        let place = if inputs == 1 { 0 } else { slot % topk };
        let x = &values[(slot / topk * inputs + place) * k..][..k];
        want.extend((0..n).map(|row| match id {
            u32::MAX => 0.0,
            id => {
                let w = &weights.values[(id as usize * n + row) * k..][..k];
                w.iter().zip(x).map(|(w, x)| w * x.to_f64()).sum()
            }
        }));
    }
    let what = format!("{} tokens of {}, {sizes:?}, {layout:?}", tokens, T::DTYPE);
    assert_close::<f32>(&download(device, &got.unwrap()), &want, 1e-9, &what);
}

#[test]
fn experts_of_a_few_slots_and_of_many() {
    let device = device();
    let each = |tokens, inputs| {
        let (sizes, slots) = ((5, 37, 192), (tokens, 2, inputs));
        check_experts::<f32>(&device, sizes, slots, Layout::Contiguous);
        check_experts::<f16>(&device, sizes, slots, Layout::Offset);
        check_experts::<bf16>(&device, sizes, slots, Layout::Contiguous);
    };
    each(3, 1);
    each(3, 2);
    // Narrow tiles.
    each(60, 1);
    each(45, 2);
    // Wide ones.
    let wide = (100, 2, 1);
    check_experts::<f32>(&device, (3, 130, 128), wide, Layout::Narrowed);
    check_experts::<bf16>(&device, (3, 130, 128), wide, Layout::Contiguous);
    // More than can be sorted.
    check_experts::<f16>(&device, (1030, 2, 64), (40, 2, 1), Layout::Contiguous);
}

#[test]
fn nothing_gives_nothing_or_zeros() {
    let device = device();
    let weights = device.alloc_zeroed(68).unwrap();
    let x = device.alloc_zeroed(40 * 64 * 4).unwrap();
    let run = |rows, cols, dims: &[usize]| {
        let strides = common::row_major(dims);
        let x = View::contiguous(&x, DType::F32, dims, &strides);
        let weights = QuantizedMatrix::new(FORMAT, &weights, rows, cols);
        let y = linear(&device, &weights, &x, &Epilogue::default()).unwrap();
        download::<f32>(&device, &y)
    };
    assert!(run(0, 64, &[2, 64]).is_empty());
    assert!(run(1, 64, &[0, 64]).is_empty());
    for columns in [2, 20, 40] {
        assert_eq!(run(3, 0, &[columns, 0]), vec![0.0; 3 * columns]);
    }
}

/// Nothing is shared by quantizing vectors before; who has them in 8 bits still gets the product of these.
#[test]
fn vectors_are_multiplied_as_floats() {
    let device = device();
    let mut rng = Rng::new(8);
    let weights = Weights::moderate(&device, (9, 64), &mut rng);
    for columns in [1, 9, 100] {
        let of = |dtype| multiplies_floats(&device, &weights.matrix(), columns, dtype).unwrap();
        assert!(of(DType::F32) && of(DType::BF16));
    }
    let x = HostTensor::contiguous(rng.vec::<f32>(128, -1.0, 1.0), &[2, 64]);
    let buffer = x.upload(&device);
    let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
    let none = Epilogue::default();
    let y = linear_quantized(&device, &weights.matrix(), &quantized, &none, DType::F32);
    let want = weights.product(&x.storage);
    assert_close::<f32>(&download(&device, &y.unwrap()), &want, 5e-4, "of 8 bits");
}

/// `linear` in a process in which a path is forced.
fn check_forced(columns: &[usize], limit: f64) {
    let device = device();
    let mut rng = Rng::new(9);
    let weights = Weights::moderate(&device, (19, 256), &mut rng);
    for &columns in columns {
        let x = HostTensor::contiguous(rng.vec::<f32>(columns * 256, -1.0, 1.0), &[columns, 256]);
        let buffer = x.upload(&device);
        let y = linear(
            &device,
            &weights.matrix(),
            &x.view(&buffer),
            &Epilogue::default(),
        );
        let what = format!("{columns}");
        let want = weights.product(&x.storage);
        assert_close::<f32>(&download(&device, &y.unwrap()), &want, limit, &what);
    }
}

/// Why a forced path refuses so many columns.
fn refusal(columns: usize) -> String {
    let device = device();
    let weights = Weights::moderate(&device, (2, 64), &mut Rng::new(10));
    let x = device.alloc_zeroed(columns * 64 * 4).unwrap();
    let (dims, strides) = ([columns, 64], [64, 1]);
    let x = View::contiguous(&x, DType::F32, &dims, &strides);
    let error = linear(&device, &weights.matrix(), &x, &Epilogue::default()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    error.to_string()
}

#[test]
fn forced_to_matvec() {
    let environment = [(Path::VARIABLE, "matvec")];
    isolated::in_child("forced_to_matvec", &environment, || {
        check_forced(&[1, 5, 8], 1e-11);
        assert!(refusal(9).contains("9 vectors"));
    });
}

#[test]
fn forced_to_few() {
    let environment = [(Path::VARIABLE, "few")];
    isolated::in_child("forced_to_few", &environment, || {
        match has_matrix(&device()) {
            true => check_forced(&[1, 8, 32], 1e-9),
            false => assert!(refusal(9).contains("no matrix instructions")),
        }
        assert!(refusal(33).contains("33 vectors"));
    });
}

#[test]
fn forced_to_matmul() {
    let environment = [(Path::VARIABLE, "matmul")];
    isolated::in_child("forced_to_matmul", &environment, || {
        check_forced(&[1, 8, 33], 1e-9);
    });
}

#[test]
fn forced_to_dequantize() {
    let environment = [(Path::VARIABLE, "dequantize")];
    isolated::in_child("forced_to_dequantize", &environment, || {
        check_forced(&[1, 9, 33], 1e-11);
    });
}

#[test]
fn forced_to_bf16() {
    let environment = [(Path::VARIABLE, "bf16")];
    isolated::in_child("forced_to_bf16", &environment, || {
        check_forced(&[1, 33], 5e-5);
    });
}

#[test]
fn forced_to_halves_is_refused() {
    let environment = [(Path::VARIABLE, "halves")];
    isolated::in_child("forced_to_halves_is_refused", &environment, || {
        assert!(refusal(9).contains("has no integers"));
    });
}

#[test]
fn misuse_is_a_typed_error() {
    let device = device();
    let weights = device.alloc_zeroed(2 * 68).unwrap();
    let x = device.alloc_zeroed(40 * 128 * 8).unwrap();
    let none = Epilogue::default();
    let run = |multiply: Run, format, rows, cols, dtype, dims: &[usize]| {
        let strides = common::row_major(dims);
        let weights = QuantizedMatrix::new(format, &weights, rows, cols);
        let x = View::contiguous(&x, dtype, dims, &strides);
        multiply(&device, &weights, &x, &none).unwrap_err()
    };
    let all: [Run; 3] = [matvec_floats, few_floats, matmul_floats];
    for multiply in all {
        let error = run(multiply, Format::Q8_0, 2, 64, DType::F32, &[1, 64]);
        assert!(error.to_string().contains("not in F8_E4M3"), "{error}");
        let error = run(multiply, FORMAT, 2, 64, DType::F64, &[1, 64]);
        assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
        let error = run(multiply, FORMAT, 2, 64, DType::F32, &[1, 32]);
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        let error = run(multiply, FORMAT, 2, 64, DType::F32, &[]);
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    }
    for multiply in [matvec_floats, matmul_floats] {
        let error = run(multiply, FORMAT, 3, 64, DType::F32, &[1, 64]);
        assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
        let error = run(multiply, FORMAT, 2, 96, DType::F32, &[1, 96]);
        assert!(error.to_string().contains("whole blocks"), "{error}");
    }
    let error = run(matvec_floats, FORMAT, 2, 64, DType::F32, &[9, 64]);
    assert!(error.to_string().contains("at most 8"), "{error}");
    let error = run(few_floats, FORMAT, 2, 64, DType::F32, &[33, 64]);
    assert!(error.to_string().contains("at most 32"), "{error}");
    let another = Device::new(0).unwrap();
    let matrix = QuantizedMatrix::new(FORMAT, &weights, 2, 64);
    let (dims, strides) = ([1, 64], [64, 1]);
    let x = View::contiguous(&x, DType::F32, &dims, &strides);
    let error = matmul_floats(&another, &matrix, &x, &none).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    let ids = device.alloc_zeroed(4).unwrap();
    let experts = |device: &Device, dtype| {
        let x = View::contiguous(x.buffer, dtype, &[1, 1, 64], &[64, 64, 1]);
        let ids = View::contiguous(&ids, DType::U32, &[1, 1], &[1, 1]);
        indexed_moe(device, FORMAT, &weights, (1, 2, 64), &x, &ids).unwrap_err()
    };
    let error = experts(&another, DType::F32);
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
    let error = experts(&device, DType::F64);
    assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
}
