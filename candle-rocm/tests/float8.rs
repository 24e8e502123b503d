//! Products of 8-bit floats against f64: of plain tensors with scales of every kind on every arch, and of matrices in
//! blocks of such floats where the arch has instructions for them.

mod common;

use candle_rocm::config::{Config, Path};
use candle_rocm::ops::norm::{
    add_rms_norm, add_rms_norm_quantize, rms_norm, rms_norm_quantize, Normed,
};
use candle_rocm::ops::quantized::{
    float8, forget, gated, linear, linear_float8, multiplies_float8, takes_float8, tune_float8,
    Activation, Epilogue, FloatActivations, Format, QuantizedMatrix, Scaling, MATVEC_MAX_COLUMNS,
};
use candle_rocm::ops::scaled::{scaled_matmul, Scales, BLOCK};
use candle_rocm::{Buffer, DType, Device, Error, View};
use common::{
    assert_close, device, download, nmse, row_major, upload, Element, HostTensor, Layout, Rng,
};
use float8::F8E4M3;
use half::{bf16, f16};

/// Normalised mean squared error that sums in f32 are allowed, of results in f32.
const SUMMED: f64 = 1e-11;
/// The same of results of 16 bits.
const ROUNDED: f64 = 1e-5;
/// The same with activations of 8-bit floats against exact ones.
const QUANTIZED: f64 = 2e-3;

/// How an operand is scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Tensor,
    Rows,
    Blocks,
}

const KINDS: [Kind; 3] = [Kind::Tensor, Kind::Rows, Kind::Blocks];

/// `[batches, rows, k]` with their scales, on the host.
struct Operand {
    floats: HostTensor<F8E4M3>,
    kind: Kind,
    scales: Vec<f32>,
    /// Rows that share a scale of blocks.
    shared: usize,
}

impl Operand {
    fn new(dims: [usize; 3], layout: Layout, kind: Kind, shared: usize, rng: &mut Rng) -> Self {
        let [batches, rows, k] = dims;
        let floats = HostTensor::with_layout(&dims, layout, |n| finite(rng, n));
        let count = match kind {
            Kind::Tensor => 1,
            Kind::Rows => batches * rows,
            Kind::Blocks => batches * rows.div_ceil(shared) * k.div_ceil(BLOCK),
        };
        Operand {
            floats,
            kind,
            scales: rng.vec(count, 0.01, 2.0),
            shared,
        }
    }

    /// The elements with their scales applied.
    fn values(&self) -> Vec<f64> {
        let &[_, rows, k] = &self.floats.dims[..] else {
            panic!("three dimensions")
        };
        let (lines, blocks) = (rows.div_ceil(self.shared), k.div_ceil(BLOCK));
        let scale = |i: usize| match self.kind {
            Kind::Tensor => self.scales[0],
            Kind::Rows => self.scales[i / k],
            Kind::Blocks => {
                let line = i / k / rows * lines + i / k % rows / self.shared;
                self.scales[line * blocks + i % k / BLOCK]
            }
        };
        let values = self.floats.values();
        let values = values.iter().enumerate();
        values
            .map(|(i, v)| v.to_f64() * f64::from(scale(i)))
            .collect()
    }
}

/// Any floats but NaN, all bits alike, -0 among them.
fn finite(rng: &mut Rng, count: usize) -> Vec<F8E4M3> {
    let float = |_| match rng.below(256) as u8 {
        0x7f | 0xff => F8E4M3::from_bits(0x80),
        bits => F8E4M3::from_bits(bits),
    };
    (0..count).map(float).collect()
}

/// The product for each matrix of `a`, which all meet one of `b` or each its own.
fn product(a: &[f64], b: &[f64], [batches, m, n, k]: [usize; 4]) -> Vec<f64> {
    let mut out = Vec::with_capacity(batches * m * n);
    for (matrix, a) in a.chunks(m * k).enumerate() {
        let b = match b.len() == n * k {
            true => b,
            false => &b[matrix * n * k..][..n * k],
        };
        for row in a.chunks(k) {
            let column = |column: &[f64]| row.iter().zip(column).map(|(x, y)| x * y).sum::<f64>();
            out.extend(b.chunks(k).map(column));
        }
    }
    out
}

/// With scales and bias as views of device memory.
fn multiply(device: &Device, a: &Operand, b: &Operand, bias: Option<&[f32]>, to: DType) -> Buffer {
    let buffers = [a, b].map(|o| (o.floats.upload(device), upload(device, &o.scales)));
    let lengths = [[a.scales.len()], [b.scales.len()]];
    let scales = |i: usize, kind| {
        let view = View::contiguous(&buffers[i].1, DType::F32, &lengths[i], &[1]);
        match kind {
            Kind::Tensor => Scales::Tensor(view),
            Kind::Rows => Scales::Rows(view),
            Kind::Blocks => Scales::Blocks(view),
        }
    };
    let bias_len = [bias.map_or(0, <[f32]>::len)];
    let bias = bias.map(|bias| match to {
        DType::F16 => upload(
            device,
            &bias.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>(),
        ),
        DType::BF16 => upload(
            device,
            &bias.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>(),
        ),
        _ => upload(device, bias),
    });
    let bias = bias
        .as_ref()
        .map(|buffer| View::contiguous(buffer, to, &bias_len, &[1]));
    let (scale_a, scale_b) = (scales(0, a.kind), scales(1, b.kind));
    let one = b.floats.dims[0] == 1;
    let view_b = b.floats.view(&buffers[1].0);
    let view_b = View {
        dims: if one { &view_b.dims[1..] } else { view_b.dims },
        strides: if one {
            &view_b.strides[1..]
        } else {
            view_b.strides
        },
        ..view_b
    };
    let view_a = a.floats.view(&buffers[0].0);
    scaled_matmul(
        device,
        &view_a,
        &view_b,
        &scale_a,
        &scale_b,
        bias.as_ref(),
        to,
    )
    .unwrap()
}

fn check<T: Element>(device: &Device, a: &Operand, b: &Operand, bias: Option<&[f32]>, limit: f64) {
    let (&[batches, m, k], &[_, n, _]) = (&a.floats.dims[..], &b.floats.dims[..]) else {
        panic!("three dimensions")
    };
    let mut want = product(&a.values(), &b.values(), [batches, m, n, k]);
    if let Some(bias) = bias {
        for (i, sum) in want.iter_mut().enumerate() {
            *sum += T::from_f32(bias[i % n]).to_f64();
        }
    }
    let what = format!(
        "{batches} x {m} x {n} x {k} {:?} {:?} {}",
        a.kind,
        b.kind,
        T::DTYPE
    );
    let got = download::<T>(device, &multiply(device, a, b, bias, T::DTYPE));
    assert_close(&got, &want, limit, &what);
}

#[test]
fn scales_are_those_of_tensors_rows_and_blocks() {
    let device = device();
    let mut rng = Rng::new(1);
    for kind_a in KINDS {
        for kind_b in KINDS {
            // Tiles and parts of them, K with and without a part of a block or of a load.
            for [m, n, k] in [[3, 130, 300], [70, 67, 256], [1, 1, 1], [17, 9, 77]] {
                let a = Operand::new([1, m, k], Layout::Contiguous, kind_a, 1, &mut rng);
                let b = Operand::new([1, n, k], Layout::Contiguous, kind_b, BLOCK, &mut rng);
                check::<f32>(&device, &a, &b, None, SUMMED);
            }
        }
    }
}

#[test]
fn results_are_of_any_float_and_have_a_bias() {
    let device = device();
    let mut rng = Rng::new(2);
    let a = Operand::new([1, 20, 200], Layout::Contiguous, Kind::Rows, 1, &mut rng);
    let b = Operand::new(
        [1, 30, 200],
        Layout::Contiguous,
        Kind::Blocks,
        BLOCK,
        &mut rng,
    );
    let bias: Vec<f32> = rng.vec(30, -90.0, 90.0);
    for bias in [None, Some(&bias[..])] {
        check::<f32>(&device, &a, &b, bias, SUMMED);
        check::<bf16>(&device, &a, &b, bias, ROUNDED);
    }
    // Sums that f16 has.
    let [mut a, mut b] = [a, b];
    a.scales.iter_mut().for_each(|scale| *scale *= 1e-3);
    b.scales.iter_mut().for_each(|scale| *scale *= 1e-2);
    check::<f16>(&device, &a, &b, Some(&bias), ROUNDED);
}

#[test]
fn operands_have_any_layout_and_matrices_are_many_or_one() {
    let device = device();
    let mut rng = Rng::new(3);
    for layout in [Layout::Offset, Layout::Transposed, Layout::Narrowed] {
        let a = Operand::new([2, 11, 140], layout, Kind::Blocks, 1, &mut rng);
        for matrices in [1, 2] {
            let b = Operand::new([matrices, 131, 140], layout, Kind::Blocks, BLOCK, &mut rng);
            check::<f32>(&device, &a, &b, None, SUMMED);
            let b = Operand::new([matrices, 13, 140], layout, Kind::Rows, BLOCK, &mut rng);
            check::<f32>(&device, &a, &b, None, SUMMED);
        }
    }
}

#[test]
fn large_tiles_are_right_too() {
    // As many as make the simulated GPU take tiles of 128.
    let device = device();
    let units = device.properties().compute_units as usize;
    let mut rng = Rng::new(4);
    let n = 129 + 128 * units.min(16);
    for kind in [Kind::Tensor, Kind::Blocks] {
        let a = Operand::new([1, 250, 200], Layout::Contiguous, kind, 1, &mut rng);
        let b = Operand::new([1, n, 200], Layout::Contiguous, kind, BLOCK, &mut rng);
        check::<f32>(&device, &a, &b, None, SUMMED);
    }
}

/// On hardware with another bias, the bits of NaN are numbers and those of -0 are NaN.
#[test]
fn nan_spreads_along_its_row_and_column_and_minus_zero_does_not() {
    let device = device();
    let (m, n, k) = (20, 70, 130);
    let mut rng = Rng::new(5);
    let mut a = Operand::new([1, m, k], Layout::Contiguous, Kind::Tensor, 1, &mut rng);
    let mut b = Operand::new([1, n, k], Layout::Contiguous, Kind::Tensor, 1, &mut rng);
    a.floats.storage[3 * k..4 * k].fill(F8E4M3::from_bits(0x80));
    a.floats.storage[5 * k + 129] = F8E4M3::from_bits(0x7f);
    b.floats.storage[66 * k] = F8E4M3::from_bits(0xff);
    let got = download::<f32>(&device, &multiply(&device, &a, &b, None, DType::F32));
    let want = product(&a.values(), &b.values(), [1, m, n, k]);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!(got.is_nan(), i / n == 5 || i % n == 66, "{i}: {got}");
        assert_eq!(got.is_nan(), want.is_nan(), "{i}");
    }
    assert!((0..66).all(|column| got[3 * n + column] == 0.0));
}

#[test]
fn every_float_is_what_it_is() {
    // Each times one: exact, subnormal ones included.
    let device = device();
    let all: Vec<F8E4M3> = (0..=255).map(F8E4M3::from_bits).collect();
    for m in [256, 3] {
        let mut one = Operand::new(
            [1, m, 1],
            Layout::Contiguous,
            Kind::Tensor,
            1,
            &mut Rng::new(6),
        );
        let mut floats = Operand::new(
            [1, 256, 1],
            Layout::Contiguous,
            Kind::Tensor,
            1,
            &mut Rng::new(6),
        );
        one.floats.storage.fill(F8E4M3::from_f32(1.0));
        floats.floats.storage.copy_from_slice(&all);
        (one.scales[0], floats.scales[0]) = (1.0, 1.0);
        let got = download::<f32>(&device, &multiply(&device, &one, &floats, None, DType::F32));
        for (i, got) in got.iter().enumerate() {
            let want = all[i % 256].to_f32();
            assert!(
                *got == want || got.is_nan() && want.is_nan(),
                "{i}: {got} instead of {want}"
            );
        }
    }
}

#[test]
fn without_elements_there_is_nothing_or_the_bias() {
    let device = device();
    let mut rng = Rng::new(7);
    let bias = [1.5f32, -2.0];
    for [m, n, k] in [[0, 2, 3], [3, 0, 4], [3, 2, 0]] {
        for kind in KINDS {
            let a = Operand::new([1, m, k], Layout::Contiguous, kind, 1, &mut rng);
            let b = Operand::new([1, n, k], Layout::Contiguous, kind, BLOCK, &mut rng);
            let y = multiply(&device, &a, &b, Some(&bias[..n]), DType::F32);
            let got = download::<f32>(&device, &y);
            assert_eq!(got, [bias; 3].concat()[..m * n]);
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = device();
    let floats = upload(&device, &[F8E4M3::from_f32(1.0); 12]);
    let scales = upload(&device, &[1f32; 8]);
    let view = |dims: &'static [usize], strides: &'static [usize]| {
        View::contiguous(&floats, DType::F8E4M3, dims, strides)
    };
    let numbers = |dims: &'static [usize], strides: &'static [usize]| {
        View::contiguous(&scales, DType::F32, dims, strides)
    };
    let one = Scales::Tensor(numbers(&[1], &[1]));
    let a = view(&[2, 6], &[6, 1]);
    let run = |b: &View, scale_a: &Scales, bias: Option<&View>, to| {
        scaled_matmul(&device, &a, b, scale_a, &one, bias, to)
            .map(drop)
            .unwrap_err()
    };
    let other = view(&[3, 4], &[4, 1]);
    assert!(matches!(
        run(&other, &one, None, DType::F32),
        Error::ShapeMismatch { .. }
    ));
    let batched = view(&[3, 1, 6], &[6, 6, 1]);
    let batched = View {
        dims: &[2, 1, 6],
        ..batched
    };
    assert!(matches!(
        run(&batched, &one, None, DType::F32),
        Error::ShapeMismatch { .. }
    ));
    let error = run(&a, &Scales::Rows(numbers(&[3], &[1])), None, DType::F32).to_string();
    assert!(
        error.contains("these operands have 2 of this kind"),
        "{error}"
    );
    let spread = View {
        strides: &[2],
        ..numbers(&[2], &[1])
    };
    assert!(matches!(
        run(&a, &Scales::Rows(spread), None, DType::F32),
        Error::InvalidArgument { .. }
    ));
    let error = run(
        &a,
        &Scales::Rows(View {
            dtype: DType::F8E4M3,
            ..numbers(&[2], &[1])
        }),
        None,
        DType::F32,
    );
    assert!(matches!(error, Error::DTypeMismatch { .. }));
    assert!(matches!(
        run(&a, &one, None, DType::U32),
        Error::UnsupportedDType { .. }
    ));
    let bias = numbers(&[3], &[1]);
    assert!(matches!(
        run(&a, &one, Some(&bias), DType::F32),
        Error::ShapeMismatch { .. }
    ));
    let wide = View {
        dtype: DType::F32,
        ..numbers(&[2, 4], &[4, 1])
    };
    assert!(matches!(
        run(&wide, &one, None, DType::F32),
        Error::UnsupportedDType { .. }
    ));
}

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
            let takes = takes_float8(device, &matrix, columns, DType::F32).unwrap();
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
    let takes = |columns| takes_float8(plain, &weights.matrix(), columns, DType::F32).unwrap();
    assert_eq!(takes(1 << 20), found.from.is_some());
    forget(plain).unwrap();
    assert!(!takes(1 << 20));
}
