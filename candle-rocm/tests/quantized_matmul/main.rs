//! Products with quantized matrices, on every path, against f64.
//!
//! The integer paths are compared twice: with the 8-bit activations that they work on, where only the sums in f32
//! round, and with the activations as they were given.

#[path = "../common/mod.rs"]
mod common;
mod epilogues;
#[path = "../ggml/mod.rs"]
mod ggml;
mod halves;
#[path = "../isolated/mod.rs"]
mod isolated;
mod paths;

use candle_rocm::ops::quantized::{
    few, gated, gated_halves, gated_matvec, halves, linear, linear_quantized, matmul, matvec,
    multiplies_floats, Activation, Epilogue, Format, Path, QuantizedActivations, QuantizedMatrix,
    FEW_MAX_COLUMNS, MATVEC_MAX_COLUMNS,
};
use candle_rocm::{Buffer, DType, Device, Error, View};
use common::{assert_close, device, download, upload, Element, HostTensor, Layout, Rng};
use ggml::{moderate_blocks, values, BLOCK_FORMATS, LEVEL_FORMATS};
use half::{bf16, f16};

/// Normalised mean squared error that sums in f32 are allowed.
const SUMMED: f64 = 1e-11;
/// The same with 8-bit activations against exact ones.
const QUANTIZED: f64 = 5e-4;
/// The same with weights and 8-bit activations rounded to the eleven bits of f16's significand.
const HALVED: f64 = 5e-7;
/// The same with both operands rounded to the eight bits of bf16's significand.
const ROUNDED: f64 = 5e-5;

/// Multiplications that a comparison spends at most; of larger products some rows are compared.
const WORK: usize = 400_000;

/// A quantized matrix on the host and on the device, where it lies between other bytes.
struct Weights {
    format: Format,
    rows: usize,
    cols: usize,
    values: Vec<f32>,
    buffer: Buffer,
    offset: usize,
}

impl Weights {
    fn new(device: &Device, format: Format, rows: usize, cols: usize, rng: &mut Rng) -> Self {
        // Rows of most formats are at odd places anyway; a matrix within a buffer is, too.
        let offset = 2 * rng.below(9);
        Self::at(device, format, (rows, cols), offset, rng)
    }

    /// So many bytes behind the start of its buffer.
    fn at(
        device: &Device,
        format: Format,
        (rows, cols): (usize, usize),
        offset: usize,
        rng: &mut Rng,
    ) -> Self {
        let bytes = moderate_blocks(format, rows * cols / format.block_size(), rng);
        let padded = [vec![0xff; offset], bytes.clone(), vec![0xff; 3]].concat();
        Weights {
            format,
            rows,
            cols,
            values: values(device, format, &bytes),
            buffer: device.upload(&padded).unwrap(),
            offset,
        }
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        QuantizedMatrix {
            format: self.format,
            buffer: &self.buffer,
            offset: self.offset,
            rows: self.rows,
            cols: self.cols,
        }
    }

    fn row(&self, row: usize) -> Vec<f64> {
        exact(&self.values[row * self.cols..(row + 1) * self.cols])
    }
}

/// Activations as the kernels see them: 32 neighbours share the largest magnitude over 127.
fn eight_bits(x: &[f32]) -> Vec<f64> {
    x.chunks_exact(32)
        .flat_map(|block| {
            let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
            let d = largest / 127.0;
            let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
            block
                .iter()
                .map(move |v| f64::from((v * inverse).round_ties_even()) * f64::from(d))
        })
        .collect()
}

fn exact(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * x * (1.0 + 0.044715 * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// The product in f64, `[columns, rows]`.
fn product(weights: &Weights, x: &[f64]) -> Vec<f64> {
    let rows: Vec<_> = (0..weights.rows).map(|row| weights.row(row)).collect();
    x.chunks_exact(weights.cols)
        .flat_map(|x| {
            let sum = move |w: &Vec<f64>| w.iter().zip(x).map(|(w, x)| w * x).sum();
            rows.iter().map(sum).collect::<Vec<f64>>()
        })
        .collect()
}

/// Rows that are worth comparing: all if that is cheap, else the ends, the edges of tiles and some others.
fn chosen_rows(rows: usize, work_per_row: usize, rng: &mut Rng) -> Vec<usize> {
    let most = (WORK / work_per_row.max(1)).max(4);
    if rows <= most {
        return (0..rows).collect();
    }
    let mut chosen = vec![0, rows - 1, rows - 2, 63.min(rows - 1)];
    chosen.extend((4..most).map(|_| rng.below(rows)));
    chosen
}

/// Panics unless `got`, `[columns, rows]`, is the product.
fn compare<T: Element>(got: &[T], weights: &Weights, x: &[f64], limit: f64, seed: u64, what: &str) {
    let columns = x.len() / weights.cols;
    assert_eq!(got.len(), columns * weights.rows, "{what}: element count");
    let rows = chosen_rows(weights.rows, columns * weights.cols, &mut Rng::new(seed));
    let (mut some, mut want) = (Vec::new(), Vec::new());
    for row in rows {
        let w = weights.row(row);
        for (c, x) in x.chunks_exact(weights.cols).enumerate() {
            some.push(got[c * weights.rows + row]);
            want.push(w.iter().zip(x).map(|(w, x)| w * x).sum());
        }
    }
    assert_close::<T>(&some, &want, limit, what);
}

/// One shape on the integer paths that take it.
fn check_shape(
    device: &Device,
    format: Format,
    (rows, cols, columns): (usize, usize, usize),
    rng: &mut Rng,
) {
    let weights = Weights::new(device, format, rows, cols, rng);
    let x = HostTensor::contiguous(rng.vec::<f32>(columns * cols, -1.0, 1.0), &[columns, cols]);
    let buffer = x.upload(device);
    let quantized = QuantizedActivations::quantize(device, &x.view(&buffer)).unwrap();
    let (seen, given) = (eight_bits(&x.storage), exact(&x.storage));
    let none = Epilogue::default();
    let check = |y: Buffer, path: &str| {
        let what = format!("{path} of {format}, {rows} by {cols}, {columns} columns");
        let y = download::<f32>(device, &y);
        let seed = (rows + cols + columns) as u64;
        // The error of a few results that happen to be small says little.
        if y.len() > 30 {
            compare(&y, &weights, &seen, SUMMED, seed, &what);
            compare(&y, &weights, &given, QUANTIZED, seed, &what);
        } else {
            compare(&y, &weights, &seen, 100. * SUMMED, seed, &what);
        }
    };
    if columns <= MATVEC_MAX_COLUMNS {
        let y = matvec(device, &weights.matrix(), &quantized, &none, DType::F32).unwrap();
        check(y, "matvec");
    }
    let y = few(device, &weights.matrix(), &quantized, &none, DType::F32);
    match device.properties().arch.generation().matrix() {
        Some(_) if columns <= FEW_MAX_COLUMNS => check(y.unwrap(), "few"),
        _ => assert!(matches!(y, Err(Error::InvalidArgument { .. }))),
    }
    let y = matmul(device, &weights.matrix(), &quantized, &none, DType::F32).unwrap();
    check(y, "matmul");
}

/// Columns at which kernels, tiles and loops change.
const COLUMNS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 32, 33, 64, 255, 256];

/// Every number of columns with few rows, and many rows with few elements.
fn check_family(format: Format, multiple: usize) {
    let device = device();
    let mut rng = Rng::new(format.number().unwrap().into());
    for columns in COLUMNS {
        for rows in [1, 3, 127] {
            for cols in [multiple, 512] {
                check_shape(&device, format, (rows, cols, columns), &mut rng);
            }
        }
    }
    for columns in [1, 2, 7, 16, 31] {
        check_shape(&device, format, (3, 4096, columns), &mut rng);
        check_shape(&device, format, (4097, 256, columns), &mut rng);
    }
}

#[test]
fn every_shape_in_blocks_of_32() {
    // 96 elements are less than the step of the tiles.
    check_family(Format::Q4_0, 96);
}

#[test]
fn every_shape_in_k_format() {
    check_family(Format::Q4K, 256);
}

/// The whole list: for a GPU.
#[test]
#[ignore = "every shape in every format: hours on the simulator"]
fn every_shape_in_every_format() {
    let device = device();
    let mut rng = Rng::new(5);
    for format in BLOCK_FORMATS.into_iter().chain(LEVEL_FORMATS) {
        for columns in COLUMNS {
            for rows in [1, 3, 127, 4097] {
                for cols in [256, 512, 4096] {
                    check_shape(&device, format, (rows, cols, columns), &mut rng);
                }
            }
        }
    }
}

/// Narrow and wide tiles, with little enough work for an emulator of the hardware.
#[test]
fn tiny() {
    let device = device();
    let mut rng = Rng::new(6);
    for format in [Format::Q4_0, Format::Q6K, Format::IQ2S] {
        for shape in [(9, 256, 1), (9, 256, 9), (66, 256, 34)] {
            check_shape(&device, format, shape, &mut rng);
        }
    }
}

/// The formats, or with `CANDLE_ROCM_TEST_PART=K/N` every N-th of them from the K-th on. Each has kernels of its own to
/// compile, which a simulated arch takes longer for than for running them: several archs share the formats.
fn formats() -> Vec<Format> {
    let all = BLOCK_FORMATS.into_iter().chain(LEVEL_FORMATS);
    let part = std::env::var("CANDLE_ROCM_TEST_PART").unwrap_or_default();
    if part.is_empty() {
        return all.collect();
    }
    let (from, each) = part.split_once('/').expect("a part is K/N");
    let (from, each) = (from.parse().unwrap(), each.parse().unwrap());
    all.skip(from).step_by(each).collect()
}

/// For the formats that share all but their readers with one of the above: each path and each way of scaling.
#[test]
fn every_format() {
    let device = device();
    let mut rng = Rng::new(7);
    let formats = formats();
    assert!(formats.len() > 4, "{formats:?}");
    for format in formats {
        let cols = format.block_size();
        for shape in [
            (3, 2 * cols, 1),
            (127, 3 * cols, 2),
            (5, 5 * cols, 3),
            (7, 512, 4),
            (33, 3 * cols, 8),
            (127, 3 * cols, 9),
            (65, 512, 65),
        ] {
            check_shape(&device, format, shape, &mut rng);
        }
    }
}

#[test]
fn small_and_large_activations() {
    let device = device();
    let mut rng = Rng::new(8);
    let weights = Weights::new(&device, Format::Q5_1, 6, 64, &mut rng);
    for scale in [1e-30f32, 1e30] {
        let x: Vec<f32> = rng
            .vec(2 * 64, -1.0, 1.0)
            .into_iter()
            .map(|v: f32| v * scale)
            .collect();
        let host = HostTensor::contiguous(x, &[2, 64]);
        let buffer = host.upload(&device);
        let quantized = QuantizedActivations::quantize(&device, &host.view(&buffer)).unwrap();
        let none = Epilogue::default();
        let y = matvec(&device, &weights.matrix(), &quantized, &none, DType::F32).unwrap();
        let what = format!("activations of {scale:e}");
        compare(
            &download::<f32>(&device, &y),
            &weights,
            &eight_bits(&host.storage),
            SUMMED,
            0,
            &what,
        );
    }
}

#[test]
fn a_block_that_is_not_finite_spoils_its_vector_only() {
    let device = device();
    let mut rng = Rng::new(9);
    let weights = Weights::new(&device, Format::Q6K, 5, 256, &mut rng);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x: Vec<f32> = rng.vec(3 * 256, -1.0, 1.0);
        x[256 + 77] = bad;
        let buffer = upload(&device, &x);
        let (dims, strides) = ([3, 256], [256, 1]);
        let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
        let quantized = QuantizedActivations::quantize(&device, &view).unwrap();
        let none = Epilogue::default();
        for multiply in [matvec, matmul] {
            let y = multiply(&device, &weights.matrix(), &quantized, &none, DType::F32).unwrap();
            let y = download::<f32>(&device, &y);
            for (i, v) in y.iter().enumerate() {
                assert_eq!(v.is_nan(), (5..10).contains(&i), "{bad}: result {i} is {v}");
            }
        }
    }
}

#[test]
fn linear_takes_every_layout_and_dtype() {
    fn check<T: Element>(device: &Device, weights: &Weights, limit: f64, rng: &mut Rng) {
        for layout in Layout::ALL {
            let dims = [2, 3, weights.cols];
            let x = HostTensor::<T>::with_layout(&dims, layout, |n| rng.vec(n, -1.0, 1.0));
            let buffer = x.upload(device);
            let y = linear(
                device,
                &weights.matrix(),
                &x.view(&buffer),
                &Epilogue::default(),
            );
            let x: Vec<f32> = x.values().iter().map(|v| v.to_f64() as f32).collect();
            let what = format!("{layout:?} {:?}", T::DTYPE);
            let y = download::<T>(device, &y.unwrap());
            compare(&y, weights, &eight_bits(&x), limit, 0, &what);
        }
    }
    let device = device();
    let mut rng = Rng::new(10);
    let weights = Weights::new(&device, Format::Q4_1, 9, 96, &mut rng);
    check::<f32>(&device, &weights, SUMMED, &mut rng);
    check::<f16>(&device, &weights, 1e-6, &mut rng);
    check::<bf16>(&device, &weights, 1e-4, &mut rng);
}
