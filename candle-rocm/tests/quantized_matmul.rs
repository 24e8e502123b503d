//! Products with quantized matrices, on every path, against f64.
//!
//! The integer paths are compared twice: with the 8-bit activations that they work on, where only the sums in f32
//! round, and with the activations as they were given.

mod common;
mod ggml;
mod isolated;

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

/// The formats that are multiplied as f16, by elements that make rows a multiple of 16 bytes.
const HALVES: [(Format, usize); 3] = [(Format::Q4K, 256), (Format::Q5K, 256), (Format::Q6K, 2048)];

/// Blocks whose scales are of all magnitudes that a binary16 has, by halves of the exponents.
fn spread_scales(weights: &mut [u8], format: Format) {
    let at: &[usize] = match format {
        Format::Q6K => &[208],
        _ => &[0, 2],
    };
    for (i, block) in weights.chunks_exact_mut(format.type_size()).enumerate() {
        for at in at {
            // Up to 2^15 and down to the subnormal ones.
            block[at + 1] = (block[at + 1] & 0x83) | ((i * 7 % 30) as u8 * 4);
        }
    }
}

#[test]
fn as_halves() {
    let device = device();
    let mut rng = Rng::new(23);
    let none = Epilogue::default();
    for (format, multiple) in HALVES {
        for (rows, blocks, columns, scale) in [
            (40, 1, 1, 1.0f32),
            (65, 2, 9, 1.0),
            (31, 1, 16, 1e-30),
            (33, 1, 32, 1e30),
        ] {
            let cols = multiple * blocks;
            let weights = Weights::at(&device, format, (rows, cols), 32, &mut rng);
            let mut x = rng.vec::<f32>(columns * cols, -1.0, 1.0);
            // Neighbouring blocks of very different magnitudes.
            for (i, v) in x.iter_mut().enumerate() {
                *v *= scale * if i / 32 % 5 == 0 { 100.0 } else { 1.0 };
            }
            let x = HostTensor::contiguous(x, &[columns, cols]);
            let buffer = x.upload(&device);
            let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
            let y = halves(&device, &weights.matrix(), &quantized, &none, DType::F32);
            match device.properties().arch.generation().matrix() {
                Some(_) => {
                    let what = format!("halves of {format}, {rows} by {cols}, {columns} columns");
                    let y = download::<f32>(&device, &y.unwrap());
                    compare(&y, &weights, &eight_bits(&x.storage), HALVED, 1, &what);
                }
                None => assert!(matches!(y, Err(Error::InvalidArgument { .. }))),
            }
        }
    }
}

/// Sums of what f16 could not hold: scales of blocks from its smallest numbers to its largest.
#[test]
fn as_halves_whatever_the_scales_are() {
    let device = device();
    if device.properties().arch.generation().matrix().is_none() {
        return;
    }
    let mut rng = Rng::new(24);
    for (format, multiple) in HALVES {
        let (rows, cols, columns) = (40, 2 * multiple, 9);
        let mut bytes = moderate_blocks(format, rows * cols / format.block_size(), &mut rng);
        spread_scales(&mut bytes, format);
        let weights = Weights {
            format,
            rows,
            cols,
            values: values(&device, format, &bytes),
            buffer: device.upload(&bytes).unwrap(),
            offset: 0,
        };
        let x = HostTensor::contiguous(rng.vec(columns * cols, -1.0, 1.0), &[columns, cols]);
        let buffer = x.upload(&device);
        let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
        let none = Epilogue::default();
        let y = halves(&device, &weights.matrix(), &quantized, &none, DType::F32).unwrap();
        let y = download::<f32>(&device, &y);
        let what = format!("halves of {format}, all scales");
        compare(&y, &weights, &eight_bits(&x.storage), HALVED, 1, &what);
    }
}

/// A block of activations that is not finite spoils its vector; gate and up are multiplied at once.
#[test]
fn gate_and_up_as_halves() {
    let device = device();
    if device.properties().arch.generation().matrix().is_none() {
        return;
    }
    let mut rng = Rng::new(26);
    for (format, cols) in HALVES {
        let (rows, columns) = (45, 11);
        let [gate, up] = [0, 16].map(|at| Weights::at(&device, format, (rows, cols), at, &mut rng));
        let mut x = rng.vec::<f32>(columns * cols, -1.0, 1.0);
        x[3 * cols + 77] = f32::NAN;
        let x = HostTensor::contiguous(x, &[columns, cols]);
        let buffer = x.upload(&device);
        let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
        let (one, other) = (gate.matrix(), up.matrix());
        let y = gated_halves(
            &device,
            &one,
            &other,
            &quantized,
            Activation::Silu,
            DType::F32,
        );
        let y = download::<f32>(&device, &y.unwrap());
        let seen = eight_bits(&x.storage);
        let (gates, ups) = (product(&gate, &seen), product(&up, &seen));
        let (mut some, mut want) = (Vec::new(), Vec::new());
        for (i, v) in y.into_iter().enumerate() {
            let is_spoilt = i / rows == 3;
            assert_eq!(v.is_nan(), is_spoilt, "{format}: result {i} is {v}");
            if !is_spoilt {
                some.push(v);
                want.push(silu(gates[i]) * ups[i]);
            }
        }
        assert_close::<f32>(&some, &want, 4.0 * HALVED, &format!("gated, {format}"));
    }
}

#[test]
fn as_halves_only_what_is_aligned() {
    let device = device();
    let mut rng = Rng::new(25);
    let none = Epilogue::default();
    for (format, cols, offset) in [
        (Format::Q4K, 256, 8),
        (Format::Q6K, 256, 0),
        (Format::Q8_0, 256, 0),
    ] {
        let weights = Weights::at(&device, format, (2, cols), offset, &mut rng);
        let x = HostTensor::contiguous(rng.vec::<f32>(9 * cols, -1.0, 1.0), &[9, cols]);
        let buffer = x.upload(&device);
        let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
        let y = halves(&device, &weights.matrix(), &quantized, &none, DType::F32);
        assert!(matches!(y, Err(Error::InvalidArgument { .. })), "{format}");
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

#[test]
fn epilogues_on_every_path() {
    fn check<T: Element>(device: &Device, limit: f64) {
        let mut rng = Rng::new(11);
        let (rows, cols) = (35, 512);
        let weights = Weights::new(device, Format::Q5K, rows, cols, &mut rng);
        for columns in [1, 3, 20] {
            let x =
                HostTensor::contiguous(rng.vec::<T>(columns * cols, -1.0, 1.0), &[columns, cols]);
            let bias =
                HostTensor::<T>::with_layout(&[rows], Layout::Offset, |n| rng.vec(n, -3.0, 3.0));
            let residual = HostTensor::<T>::with_layout(&[columns, rows], Layout::Offset, |n| {
                rng.vec(n, -3.0, 3.0)
            });
            let buffers = [
                x.upload(device),
                bias.upload(device),
                residual.upload(device),
            ];
            let seen: Vec<f32> = x.storage.iter().map(|v| v.to_f64() as f32).collect();
            let sums = product(&weights, &eight_bits(&seen));
            let quantized = QuantizedActivations::quantize(device, &x.view(&buffers[0])).unwrap();
            for activation in [None, Some(Activation::Silu), Some(Activation::Gelu)] {
                let epilogue = Epilogue {
                    bias: Some(bias.view(&buffers[1])),
                    activation,
                    residual: Some(residual.view(&buffers[2])),
                };
                let (bias, residual) = (bias.values(), residual.values());
                let want: Vec<f64> = (0..columns * rows)
                    .map(|i| {
                        let v = sums[i] + bias[i % rows].to_f64();
                        let v = match activation {
                            None => v,
                            Some(Activation::Silu) => silu(v),
                            _ => gelu(v),
                        };
                        v + residual[i].to_f64()
                    })
                    .collect();
                let multiply = if columns <= MATVEC_MAX_COLUMNS {
                    matvec
                } else {
                    matmul
                };
                let y = multiply(device, &weights.matrix(), &quantized, &epilogue, T::DTYPE);
                let what = format!("{columns} columns, {activation:?}, {:?}", T::DTYPE);
                assert_close::<T>(&download(device, &y.unwrap()), &want, limit, &what);
                let y =
                    linear_quantized(device, &weights.matrix(), &quantized, &epilogue, T::DTYPE);
                assert_close::<T>(&download(device, &y.unwrap()), &want, limit, &what);
            }
        }
    }
    let device = device();
    check::<f32>(&device, SUMMED);
    check::<f16>(&device, 1e-6);
    check::<bf16>(&device, 1e-4);
}

#[test]
fn gate_and_up_in_one_kernel_or_several() {
    let device = device();
    let mut rng = Rng::new(12);
    for format in [Format::Q4_0, Format::Q6K] {
        let (rows, cols) = (37, 256);
        let gate = Weights::new(&device, format, rows, cols, &mut rng);
        let up = Weights::new(&device, format, rows, cols, &mut rng);
        for columns in [1, 2, 3, 8, 17] {
            let x =
                HostTensor::contiguous(rng.vec::<f32>(columns * cols, -1.0, 1.0), &[columns, cols]);
            let buffer = x.upload(&device);
            let (seen, limit) =
                match multiplies_floats(&device, &gate.matrix(), columns, DType::F32).unwrap() {
                    true => (exact(&x.storage), ROUNDED),
                    false => (eight_bits(&x.storage), 1e-10),
                };
            let products = product(&gate, &seen).into_iter().zip(product(&up, &seen));
            let want: Vec<f64> = products.map(|(g, u)| silu(g) * u).collect();
            let what = format!("{format}, {columns} columns");
            let got = gated(
                &device,
                &gate.matrix(),
                &up.matrix(),
                &x.view(&buffer),
                Activation::Silu,
            );
            assert_close::<f32>(&download(&device, &got.unwrap()), &want, limit, &what);
            if columns > MATVEC_MAX_COLUMNS {
                continue;
            }
            let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
            let residual =
                HostTensor::contiguous(rng.vec::<f32>(columns * rows, -1.0, 1.0), &[columns, rows]);
            let added = residual.upload(&device);
            let got = gated_matvec(
                &device,
                &gate.matrix(),
                &up.matrix(),
                &quantized,
                Activation::Silu,
                Some(residual.view(&added)),
                DType::F32,
            );
            let sums = want.iter().zip(&residual.storage);
            let want: Vec<f64> = sums.map(|(w, r)| w + f64::from(*r)).collect();
            assert_close::<f32>(&download(&device, &got.unwrap()), &want, 1e-10, &what);
        }
    }
}

/// `linear` of several numbers of columns, in a process in which a path is forced.
fn check_forced(format: Format, columns: &[usize], limit: f64) {
    let device = device();
    let mut rng = Rng::new(13);
    let weights = Weights::new(&device, format, 19, 256, &mut rng);
    for &columns in columns {
        let x = HostTensor::contiguous(rng.vec::<f32>(columns * 256, -1.0, 1.0), &[columns, 256]);
        let buffer = x.upload(&device);
        let bias = HostTensor::contiguous(vec![0.5f32; 19], &[19]);
        let bias_buffer = bias.upload(&device);
        let epilogue = Epilogue {
            bias: Some(bias.view(&bias_buffer)),
            ..Epilogue::default()
        };
        let y = linear(&device, &weights.matrix(), &x.view(&buffer), &epilogue).unwrap();
        let want: Vec<f64> = product(&weights, &exact(&x.storage))
            .into_iter()
            .map(|v| v + 0.5)
            .collect();
        assert_close::<f32>(&download(&device, &y), &want, limit, &format!("{columns}"));
    }
}

#[test]
fn forced_to_dequantize() {
    let environment = [(Path::VARIABLE, "dequantize")];
    // No activation is quantized on this path, so its error is that of f32.
    isolated::in_child("forced_to_dequantize", &environment, || {
        check_forced(Format::Q3K, &[1, 8, 9], SUMMED);
    });
}

#[test]
fn forced_to_bf16() {
    let environment = [(Path::VARIABLE, "bf16")];
    isolated::in_child("forced_to_bf16", &environment, || {
        check_forced(Format::Q4K, &[1, 8, 33], ROUNDED);
    });
}

#[test]
fn a_matrix_larger_than_what_is_dequantized_at_a_time() {
    let environment = [(Path::VARIABLE, "bf16")];
    let name = "a_matrix_larger_than_what_is_dequantized_at_a_time";
    isolated::in_child(name, &environment, || {
        let device = device();
        let mut rng = Rng::new(17);
        // 256 such rows are 128 MiB of bf16. Few of them differ, in a number that does not divide 256.
        let (rows, cols, distinct) = (300, 1 << 18, 7);
        let few = Weights::new(&device, Format::Q4_0, distinct, cols, &mut rng);
        let row_bytes = cols / 32 * 18;
        let buffer = device.alloc(rows * row_bytes).unwrap();
        for row in 0..rows {
            let from = few.offset + row % distinct * row_bytes;
            device
                .copy(&few.buffer, from, &buffer, row * row_bytes, row_bytes)
                .unwrap();
        }
        let x = HostTensor::contiguous(rng.vec::<f32>(2 * cols, -1.0, 1.0), &[2, cols]);
        let x_buffer = x.upload(&device);
        let weights = QuantizedMatrix::new(Format::Q4_0, &buffer, rows, cols);
        let y = linear(&device, &weights, &x.view(&x_buffer), &Epilogue::default()).unwrap();
        let sums = product(&few, &exact(&x.storage));
        let want: Vec<f64> = (0..2 * rows)
            .map(|i| sums[i / rows * distinct + i % rows % distinct])
            .collect();
        assert_close::<f32>(&download(&device, &y), &want, ROUNDED, "in parts");
    });
}

#[test]
fn forced_to_matmul() {
    let environment = [(Path::VARIABLE, "matmul")];
    isolated::in_child("forced_to_matmul", &environment, || {
        check_forced(Format::Q2K, &[1, 8, 33], QUANTIZED);
    });
}

#[test]
fn forced_to_matvec_refuses_more_columns() {
    let environment = [(Path::VARIABLE, "matvec")];
    isolated::in_child(
        "forced_to_matvec_refuses_more_columns",
        &environment,
        || {
            check_forced(Format::Q4K, &[1, 8], QUANTIZED);
            let device = device();
            let weights = Weights::new(&device, Format::Q4K, 2, 256, &mut Rng::new(1));
            let x = device.alloc_zeroed(9 * 256 * 4).unwrap();
            let (dims, strides) = ([9, 256], [256, 1]);
            let x = View::contiguous(&x, DType::F32, &dims, &strides);
            let error = linear(&device, &weights.matrix(), &x, &Epilogue::default()).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("9 vectors"), "{error}");
        },
    );
}

#[test]
fn an_unknown_path_is_an_error() {
    let environment = [(Path::VARIABLE, "fast")];
    isolated::in_child("an_unknown_path_is_an_error", &environment, || {
        let error = candle_rocm::Device::new(0).unwrap_err().to_string();
        assert!(
            error.contains("\"fast\" is not auto, matvec") && error.contains(Path::VARIABLE),
            "{error}"
        );
    });
}

#[test]
fn nothing_gives_nothing_or_zeros() {
    let device = device();
    let weights = device.alloc_zeroed(18).unwrap();
    let x = device.alloc_zeroed(20 * 32 * 4).unwrap();
    let run = |rows, cols, dims: &[usize]| {
        let strides = common::row_major(dims);
        let x = View::contiguous(&x, DType::F32, dims, &strides);
        let weights = QuantizedMatrix::new(Format::Q4_0, &weights, rows, cols);
        let y = linear(&device, &weights, &x, &Epilogue::default()).unwrap();
        download::<f32>(&device, &y)
    };
    assert!(run(0, 32, &[2, 32]).is_empty());
    assert!(run(1, 32, &[0, 32]).is_empty());
    assert_eq!(run(3, 0, &[2, 0]), [0.0; 6]);
    assert_eq!(run(3, 0, &[20, 0]), [0.0; 60]);
}

#[test]
fn misuse_is_a_typed_error() {
    use Format::{F16, Q4_0};
    let device = device();
    let weights = device.alloc_zeroed(4 * 18).unwrap();
    let x = device.alloc_zeroed(9 * 64 * 8).unwrap();
    let quantize = |dtype, dims: &[usize]| {
        let strides = common::row_major(dims);
        QuantizedActivations::quantize(&device, &View::contiguous(&x, dtype, dims, &strides))
    };
    let run = |format, rows, cols, columns: usize| {
        let x = quantize(DType::F32, &[columns, cols]).unwrap();
        let weights = QuantizedMatrix::new(format, &weights, rows, cols);
        matvec(&device, &weights, &x, &Epilogue::default(), DType::F32).unwrap_err()
    };
    let error = quantize(DType::F64, &[1, 64]).unwrap_err();
    let is_f64 = matches!(error, Error::UnsupportedDType { dtype, .. } if dtype == DType::F64);
    assert!(is_f64, "{error}");
    let error = quantize(DType::F32, &[1, 48]).unwrap_err();
    assert!(error.to_string().contains("multiples of 32"), "{error}");
    let error = quantize(DType::F32, &[]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");

    let error = run(Q4_0, 2, 64, 9);
    assert!(error.to_string().contains("at most 8"), "{error}");
    let error = run(F16, 1, 32, 1);
    assert!(
        error.to_string().contains("f16 is not a quantized format"),
        "{error}"
    );
    let error = run(Q4_0, 3, 64, 1);
    assert!(
        matches!(error, Error::OutOfBounds { bytes: 108, .. }),
        "{error}"
    );

    let matrix = QuantizedMatrix::new(Q4_0, &weights, 2, 64);
    let short = quantize(DType::F32, &[1, 32]).unwrap();
    let fits = quantize(DType::F32, &[1, 64]).unwrap();
    let none = Epilogue::default();
    for multiply in [matvec, matmul] {
        let error = multiply(&device, &matrix, &short, &none, DType::F32).unwrap_err();
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        let error = multiply(&device, &matrix, &fits, &none, DType::F64).unwrap_err();
        assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
        let (dims, strides) = ([3], [1]);
        let epilogue = |dtype| Epilogue {
            bias: Some(View::contiguous(&x, dtype, &dims, &strides)),
            ..Epilogue::default()
        };
        let error = multiply(&device, &matrix, &fits, &epilogue(DType::F32), DType::F32);
        assert!(
            matches!(error, Err(Error::ShapeMismatch { .. })),
            "{error:?}"
        );
        let error = multiply(&device, &matrix, &fits, &epilogue(DType::F16), DType::F32);
        assert!(
            matches!(error, Err(Error::DTypeMismatch { .. })),
            "{error:?}"
        );
    }
    let another = Device::new(0).unwrap();
    let error = matvec(&another, &matrix, &fits, &none, DType::F32).unwrap_err();
    assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
}
