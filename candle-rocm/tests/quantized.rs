//! Block-quantized weights against decoders written element by element.
//!
//! Blocks are random bytes, so scales take every value a half can, infinities and NaN included. Each value is exact
//! in f64 and rounded once to f32, so results must agree to the bit.

mod common;

use candle_rocm::ops::quantized::{dequantize, matvec, GgmlType, MATVEC_MAX_COLUMNS};
use candle_rocm::{DType, Device, Error, View};
use common::{
    assert_close, assert_exact, device, download, upload, Element, HostTensor, Layout, Rng,
};
use half::{bf16, f16};

const BLOCK_FORMATS: [GgmlType; 12] = [
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q8_1,
    GgmlType::Q2K,
    GgmlType::Q3K,
    GgmlType::Q4K,
    GgmlType::Q5K,
    GgmlType::Q6K,
    GgmlType::Q8K,
];

/// Element `e` of a block.
fn decode(format: GgmlType, block: &[u8], e: usize) -> f64 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
    let signed = |at: usize| f64::from(block[at] as i8);
    let bits =
        |at: usize, shift: usize, count: u32| i32::from(block[at] >> shift) & ((1 << count) - 1);
    // Formats with blocks of 32: byte and shift of the element's low 4 bits, and its bit among 32.
    let nibble = |from: usize| bits(from + e % 16, e / 16 * 4, 4);
    let fifth = |from: usize| bits(from + e / 8, e % 8, 1) << 4;
    // Formats with blocks of 256: the 6-bit scale and minimum of each 32 elements.
    let run = e / 32;
    let scale_and_min = || match run {
        0..4 => (bits(4 + run, 0, 6), bits(8 + run, 0, 6)),
        _ => (
            bits(8 + run, 0, 4) | bits(run, 6, 2) << 4,
            bits(8 + run, 4, 4) | bits(4 + run, 6, 2) << 4,
        ),
    };
    let value = |q: i32| f64::from(q);
    match format {
        GgmlType::Q4_0 => half(0) * value(nibble(2) - 8),
        GgmlType::Q4_1 => half(0) * value(nibble(4)) + half(2),
        GgmlType::Q5_0 => half(0) * value((nibble(6) | fifth(2)) - 16),
        GgmlType::Q5_1 => half(0) * value(nibble(8) | fifth(4)) + half(2),
        GgmlType::Q8_0 => half(0) * signed(2 + e),
        GgmlType::Q8_1 => half(0) * signed(4 + e),
        GgmlType::Q2K => {
            let q = bits(16 + e / 128 * 32 + e % 32, run % 4 * 2, 2);
            half(80) * value(bits(e / 16, 0, 4)) * value(q) - half(82) * value(bits(e / 16, 4, 4))
        }
        GgmlType::Q3K => {
            let q = bits(32 + e / 128 * 32 + e % 32, run % 4 * 2, 2) | bits(e % 32, run, 1) << 2;
            let sub = e / 16;
            let scale =
                bits(96 + sub % 8, sub / 8 * 4, 4) | bits(104 + sub % 4, sub / 4 * 2, 2) << 4;
            half(108) * value(scale - 32) * value(q - 4)
        }
        GgmlType::Q4K => {
            let q = bits(16 + e / 64 * 32 + e % 32, run % 2 * 4, 4);
            let (scale, min) = scale_and_min();
            half(0) * value(scale) * value(q) - half(2) * value(min)
        }
        GgmlType::Q5K => {
            let q =
                bits(48 + e / 64 * 32 + e % 32, run % 2 * 4, 4) | bits(16 + e % 32, run, 1) << 4;
            let (scale, min) = scale_and_min();
            half(0) * value(scale) * value(q) - half(2) * value(min)
        }
        GgmlType::Q6K => {
            let low = bits(e / 128 * 64 + run % 2 * 32 + e % 32, run % 4 / 2 * 4, 4);
            let high = bits(128 + e / 128 * 32 + e % 32, run % 4 * 2, 2);
            half(208) * signed(192 + e / 16) * value((low | high << 4) - 32)
        }
        GgmlType::Q8K => {
            let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            f64::from(d) * signed(4 + e)
        }
        _ => panic!("{format} has no blocks or its test is in quantized_types.rs"),
    }
}

fn decode_all(format: GgmlType, bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(format.type_size())
        .flat_map(|block| (0..format.block_size()).map(move |e| decode(format, block, e) as f32))
        .collect()
}

fn check<T: Element>(device: &Device, format: GgmlType, bytes: &[u8], round: impl Fn(f32) -> T) {
    let want: Vec<T> = decode_all(format, bytes).into_iter().map(round).collect();
    let weights = device.upload(bytes).unwrap();
    let got = dequantize(device, format, &weights, want.len(), T::DTYPE).unwrap();
    assert_eq!(got.len(), want.len() * T::DTYPE.size_in_bytes());
    let what = format!("{format} to {:?}", T::DTYPE);
    assert_exact(&download::<T>(device, &got), &want, &what);
}

#[test]
fn every_format_to_every_dtype() {
    let device = device();
    let mut rng = Rng::new(1);
    for format in BLOCK_FORMATS {
        for blocks in [1, 3, 257] {
            let bytes: Vec<u8> = rng.any(blocks * format.type_size());
            check(&device, format, &bytes, |v| v);
            check(&device, format, &bytes, f16::from_f32);
            check(&device, format, &bytes, bf16::from_f32);
        }
    }
}

#[test]
fn a_prefix_of_a_longer_buffer() {
    let device = device();
    let format = GgmlType::Q6K;
    let bytes: Vec<u8> = Rng::new(2).any(5 * format.type_size() + 7);
    let weights = device.upload(&bytes).unwrap();
    let got = dequantize(&device, format, &weights, 2 * 256, DType::F32).unwrap();
    let want = decode_all(format, &bytes[..2 * format.type_size()]);
    assert_exact(&download::<f32>(&device, &got), &want, "prefix");
}

#[test]
fn more_elements_than_a_grid_has_threads() {
    let device = device();
    let format = GgmlType::Q8_0;
    let threads =
        candle_rocm::LaunchConfig::MAX_GRID as usize * candle_rocm::LaunchConfig::BLOCK as usize;
    // Eight elements a thread, and a second round of the grid-stride loop for some.
    let blocks = threads * 8 / format.block_size() + 5;
    let mut bytes = vec![0; blocks * format.type_size()];
    let (first, last) = (0, (blocks - 1) * format.type_size());
    for at in [first, last] {
        let block: Vec<u8> = Rng::new(at as u64).any(format.type_size());
        bytes[at..at + format.type_size()].copy_from_slice(&block);
    }
    let weights = device.upload(&bytes).unwrap();
    let got = dequantize(&device, format, &weights, blocks * 32, DType::F16).unwrap();
    for (block, at) in [(0, first), (blocks - 1, last)] {
        let want: Vec<f16> = decode_all(format, &bytes[at..at + format.type_size()])
            .into_iter()
            .map(f16::from_f32)
            .collect();
        let mut values = vec![0; 64];
        device.download(&got, block * 64, &mut values).unwrap();
        assert_exact(&common::from_bytes::<f16>(&values), &want, "end block");
    }
}

#[test]
fn plain_formats_are_cast() {
    let device = device();
    let values: Vec<f32> = Rng::new(3).any(33);
    let weights = upload(&device, &values);
    let got = dequantize(&device, GgmlType::F32, &weights, 33, DType::F16).unwrap();
    let want: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
    assert_exact(&download::<f16>(&device, &got), &want, "f32 to f16");

    let values: Vec<bf16> = Rng::new(4).any(5);
    let weights = upload(&device, &values);
    let got = dequantize(&device, GgmlType::BF16, &weights, 5, DType::F32).unwrap();
    let want: Vec<f32> = values.iter().map(|v| v.to_f32()).collect();
    assert_exact(&download::<f32>(&device, &got), &want, "bf16 to f32");
}

#[test]
fn nothing_gives_nothing() {
    let device = device();
    let weights = device.alloc(0).unwrap();
    for &format in GgmlType::ALL {
        let got = dequantize(&device, format, &weights, 0, DType::F32).unwrap();
        assert_eq!(got.len(), 0, "{format}");
    }
}

#[test]
fn misuse_is_a_typed_error() {
    let device = device();
    let weights = device.alloc_zeroed(2 * 18).unwrap();
    let run = |count, to| dequantize(&device, GgmlType::Q4_0, &weights, count, to).unwrap_err();

    let error = run(33, DType::F32);
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains("blocks of q4_0"), "{error}");

    let error = run(96, DType::F32);
    let Error::OutOfBounds {
        bytes,
        buffer_bytes,
        ..
    } = error
    else {
        panic!("{error}");
    };
    assert_eq!((bytes, buffer_bytes), (54, 36));

    let error = run(usize::MAX / 32 * 32, DType::F32);
    assert!(
        matches!(error, Error::OutOfBounds { .. } | Error::TooLarge { .. }),
        "{error}"
    );

    for to in [DType::F64, DType::U8, DType::F8E4M3] {
        let error = run(64, to);
        assert!(
            matches!(error, Error::UnsupportedDType { op: "dequantize", dtype } if dtype == to),
            "{error}"
        );
    }
}

#[test]
fn numbers_and_sizes_are_those_of_gguf() {
    for &format in GgmlType::ALL {
        assert_eq!(GgmlType::from_u32(format.to_u32()), Some(format));
    }
    for unknown in [4, 5, 31, 32, 33, 36, 37, 38, 41, u32::MAX] {
        assert_eq!(GgmlType::from_u32(unknown), None);
    }
    // Bits per weight, times 1000, as published for the formats.
    for (format, millibits) in [
        (GgmlType::Q4_0, 4500),
        (GgmlType::Q4_1, 5000),
        (GgmlType::Q5_0, 5500),
        (GgmlType::Q5_1, 6000),
        (GgmlType::Q8_0, 8500),
        (GgmlType::Q2K, 2625),
        (GgmlType::Q4K, 4500),
        (GgmlType::Q5K, 5500),
        (GgmlType::Q6K, 6562),
    ] {
        assert_eq!(
            format.type_size() * 8000 / format.block_size(),
            millibits,
            "{format}"
        );
    }
}

/// Blocks whose scales are finite and of like magnitude, so that no product drowns the others.
fn moderate_blocks(format: GgmlType, blocks: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = rng.any(blocks * format.type_size());
    let scales: &[usize] = match format {
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 | GgmlType::Q8_1 => &[0],
        GgmlType::Q2K => &[80, 82],
        GgmlType::Q3K => &[108],
        GgmlType::Q6K => &[208],
        _ => &[0, 2],
    };
    for block in bytes.chunks_exact_mut(format.type_size()) {
        if format == GgmlType::Q8K {
            let scale = rng.uniform(-0.1, 0.1) as f32;
            block[..4].copy_from_slice(&scale.to_le_bytes());
            continue;
        }
        for &at in scales {
            let scale = f16::from_f64(rng.uniform(-0.1, 0.1));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

fn product(weights: &[f32], rows: usize, cols: usize, x: &[f32]) -> Vec<f64> {
    x.chunks_exact(cols)
        .flat_map(|x| {
            (0..rows).map(move |row| {
                let row = &weights[row * cols..(row + 1) * cols];
                row.iter()
                    .zip(x)
                    .map(|(w, x)| f64::from(*w) * f64::from(*x))
                    .sum()
            })
        })
        .collect()
}

#[test]
fn matvec_of_every_format_and_column_count() {
    let device = device();
    let mut rng = Rng::new(5);
    for format in BLOCK_FORMATS {
        // Odd row counts leave lanes, waves and blocks partly filled; 5 blocks of 32 leave lanes without elements.
        for (rows, blocks) in [(1, 1), (7, 5), (131, 3)] {
            let cols = blocks * format.block_size();
            let bytes = moderate_blocks(format, rows * blocks, &mut rng);
            let decoded = decode_all(format, &bytes);
            let weights = device.upload(&bytes).unwrap();
            for columns in 1..=MATVEC_MAX_COLUMNS {
                let x =
                    HostTensor::contiguous(rng.vec(columns * cols, -1.0, 1.0), &[columns, cols]);
                let buffer = x.upload(&device);
                let got = matvec(&device, format, &weights, rows, cols, &x.view(&buffer)).unwrap();
                let want = product(&decoded, rows, cols, &x.storage);
                let what = format!("{format}, {rows} by {cols}, {columns} columns");
                assert_close::<f32>(&download(&device, &got), &want, 1e-7, &what);
            }
        }
    }
}

#[test]
fn matvec_takes_every_layout() {
    let device = device();
    let mut rng = Rng::new(6);
    let (rows, cols) = (9, 96);
    let bytes = moderate_blocks(GgmlType::Q4_1, rows * cols / 32, &mut rng);
    let decoded = decode_all(GgmlType::Q4_1, &bytes);
    let weights = device.upload(&bytes).unwrap();
    for layout in Layout::ALL {
        let x = HostTensor::<f32>::with_layout(&[2, 3, cols], layout, |n| rng.vec(n, -1.0, 1.0));
        let buffer = x.upload(&device);
        let got = matvec(
            &device,
            GgmlType::Q4_1,
            &weights,
            rows,
            cols,
            &x.view(&buffer),
        )
        .unwrap();
        let want = product(&decoded, rows, cols, &x.values());
        assert_close::<f32>(
            &download(&device, &got),
            &want,
            1e-7,
            &format!("{layout:?}"),
        );
    }
}

#[test]
fn matvec_of_nothing() {
    let device = device();
    let weights = device.alloc_zeroed(18).unwrap();
    let x = device.alloc_zeroed(2 * 32 * 4).unwrap();
    let run = |rows, cols, dims: &[usize]| {
        let strides = common::row_major(dims);
        let x = View::contiguous(&x, DType::F32, dims, &strides);
        download::<f32>(
            &device,
            &matvec(&device, GgmlType::Q4_0, &weights, rows, cols, &x).unwrap(),
        )
    };
    assert_eq!(run(0, 32, &[2, 32]), []);
    assert_eq!(run(1, 32, &[0, 32]), []);
    assert_eq!(run(3, 0, &[2, 0]), [0.0; 6]);
}

#[test]
fn matvec_misuse_is_a_typed_error() {
    let device = device();
    let weights = device.alloc_zeroed(4 * 18).unwrap();
    let x = device.alloc_zeroed(9 * 64 * 4).unwrap();
    let run = |format, rows, cols, dtype, dims: &[usize]| {
        let strides = common::row_major(dims);
        let x = View::contiguous(&x, dtype, dims, &strides);
        matvec(&device, format, &weights, rows, cols, &x).unwrap_err()
    };
    use GgmlType::{F16, Q4_0};
    let error = run(Q4_0, 2, 64, DType::F16, &[1, 64]);
    assert!(
        matches!(
            error,
            Error::UnsupportedDType {
                dtype: DType::F16,
                ..
            }
        ),
        "{error}"
    );
    let error = run(Q4_0, 2, 64, DType::F32, &[1, 32]);
    assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    let error = run(Q4_0, 2, 64, DType::F32, &[9, 64]);
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let error = run(F16, 1, 32, DType::F32, &[1, 32]);
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let error = run(Q4_0, 2, 48, DType::F32, &[1, 48]);
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let error = run(Q4_0, 3, 64, DType::F32, &[1, 64]);
    assert!(
        matches!(
            error,
            Error::OutOfBounds {
                bytes: 108,
                buffer_bytes: 72,
                ..
            }
        ),
        "{error}"
    );
}
