//! Block-quantized weights against decoders written element by element.
//!
//! Blocks are random bytes, so scales take every value a half can, infinities and NaN included. Each value is exact in
//! f64 and rounded once to f32, so results must agree to the bit, but for the sign of zeros: compilers make one
//! instruction of a product and its conversion to f16, which adds +0.

mod common;
mod ggml;

use candle_rocm::ops::quantized::{dequantize, embedding, Format, QuantizedMatrix};
use candle_rocm::{DType, Device, Error, View};
use common::{assert_exact, device, download, upload, Element, HostTensor, Layout, Rng};
use ggml::{decode_all, values, BLOCK_FORMATS, LEVEL_FORMATS};
use half::{bf16, f16};

fn unsigned_zeros<T: Element>(values: Vec<T>) -> Vec<T> {
    let plain = |v: T| if v.to_f64() == 0. { T::from_f64(0.) } else { v };
    values.into_iter().map(plain).collect()
}

fn check<T: Element>(device: &Device, format: Format, bytes: &[u8], round: impl Fn(f32) -> T) {
    let want: Vec<T> = decode_all(format, bytes).into_iter().map(round).collect();
    let weights = device.upload(bytes).unwrap();
    let got = dequantize(device, format, &weights, 0, want.len(), T::DTYPE).unwrap();
    assert_eq!(got.len(), want.len() * T::DTYPE.size_in_bytes());
    let what = format!("{format} to {:?}", T::DTYPE);
    let got = unsigned_zeros(download::<T>(device, &got));
    assert_exact(&got, &unsigned_zeros(want), &what);
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
    let format = Format::Q6K;
    let bytes: Vec<u8> = Rng::new(2).any(5 * format.type_size() + 7);
    let weights = device.upload(&bytes).unwrap();
    let got = dequantize(&device, format, &weights, 0, 2 * 256, DType::F32).unwrap();
    let want = decode_all(format, &bytes[..2 * format.type_size()]);
    assert_exact(&download::<f32>(&device, &got), &want, "prefix");
}

#[test]
fn more_elements_than_a_grid_has_threads() {
    let device = device();
    let format = Format::Q8_0;
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
    let got = dequantize(&device, format, &weights, 0, blocks * 32, DType::F16).unwrap();
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
    let got = dequantize(&device, Format::F32, &weights, 0, 33, DType::F16).unwrap();
    let want: Vec<f16> = values.iter().map(|v| f16::from_f32(*v)).collect();
    assert_exact(&download::<f16>(&device, &got), &want, "f32 to f16");

    let values: Vec<bf16> = Rng::new(4).any(5);
    let weights = upload(&device, &values);
    let got = dequantize(&device, Format::BF16, &weights, 0, 5, DType::F32).unwrap();
    let want: Vec<f32> = values.iter().map(|v| v.to_f32()).collect();
    assert_exact(&download::<f32>(&device, &got), &want, "bf16 to f32");
}

/// Whether operations take weights in it: integers and f64 occur in files, but not as weights.
fn supported(format: &Format) -> bool {
    use Format::{BF16, F16, F32};
    format.block_size() > 1 || matches!(format, F32 | F16 | BF16)
}

#[test]
fn nothing_gives_nothing() {
    let device = device();
    let weights = device.alloc(0).unwrap();
    for &format in Format::ALL.iter().filter(|format| supported(format)) {
        let got = dequantize(&device, format, &weights, 0, 0, DType::F32).unwrap();
        assert_eq!(got.len(), 0, "{format}");
    }
}

#[test]
fn misuse_is_a_typed_error() {
    let device = device();
    let weights = device.alloc_zeroed(2 * 18).unwrap();
    let run = |count, to| dequantize(&device, Format::Q4_0, &weights, 0, count, to).unwrap_err();

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

    for format in Format::ALL.iter().filter(|format| !supported(format)) {
        let error = dequantize(&device, *format, &weights, 0, 1, DType::F32).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        let name = format!("weights in {format} are not supported");
        assert!(error.to_string().contains(&name), "{error}");
    }

    for to in [DType::F64, DType::U8, DType::F8E4M3] {
        let error = run(64, to);
        assert!(
            matches!(error, Error::UnsupportedDType { op: "dequantize", dtype } if dtype == to),
            "{error}"
        );
    }
}

#[test]
fn sizes_are_those_of_gguf() {
    // Bits per weight, times 1000, as published for the formats.
    for (format, millibits) in [
        (Format::Q4_0, 4500),
        (Format::Q4_1, 5000),
        (Format::Q5_0, 5500),
        (Format::Q5_1, 6000),
        (Format::Q8_0, 8500),
        (Format::Q2K, 2625),
        (Format::Q4K, 4500),
        (Format::Q5K, 5500),
        (Format::Q6K, 6562),
    ] {
        assert_eq!(
            format.type_size() * 8000 / format.block_size(),
            millibits,
            "{format}"
        );
    }
}

#[test]
fn rows_of_every_table() {
    let device = device();
    let mut rng = Rng::new(14);
    for format in BLOCK_FORMATS.into_iter().chain(LEVEL_FORMATS) {
        let (rows, cols) = (7, 3 * format.block_size());
        let bytes: Vec<u8> = rng.any(rows * 3 * format.type_size());
        let table = values(&device, format, &bytes);
        let padded = device.upload(&[&[0; 2], &bytes[..]].concat()).unwrap();
        let table_on_device = QuantizedMatrix {
            offset: 2,
            ..QuantizedMatrix::new(format, &padded, rows, cols)
        };
        for layout in Layout::ALL {
            let ids = HostTensor::<u32>::with_layout(&[2, 3], layout, |n| {
                let id = |i| {
                    if i % 5 == 4 {
                        u32::MAX
                    } else {
                        rng.below(rows) as u32
                    }
                };
                (0..n).map(id).collect()
            });
            let on_device = ids.upload(&device);
            let got = embedding(&device, &table_on_device, &ids.view(&on_device)).unwrap();
            let row = |id: u32| match id {
                u32::MAX => vec![0.0; cols],
                _ => table[id as usize * cols..][..cols].to_vec(),
            };
            let want: Vec<f32> = ids.values().into_iter().flat_map(row).collect();
            assert_exact(
                &download::<f32>(&device, &got),
                &want,
                &format!("{format} {layout:?}"),
            );
        }
    }
}

#[test]
fn rows_of_plain_tables() {
    let device = device();
    let table: Vec<bf16> = Rng::new(15).vec(5 * 3, -1.0, 1.0);
    let buffer = upload(&device, &table);
    let matrix = QuantizedMatrix::new(Format::BF16, &buffer, 5, 3);
    let ids = upload(&device, &[4u32, 0]);
    let ids = View::contiguous(&ids, DType::U32, &[2], &[1]);
    let got = embedding(&device, &matrix, &ids).unwrap();
    let want: Vec<f32> = [4, 0]
        .into_iter()
        .flat_map(|row: usize| table[row * 3..][..3].iter().map(|v| v.to_f32()))
        .collect();
    assert_exact(&download::<f32>(&device, &got), &want, "bf16 rows");
}

#[test]
fn a_row_that_does_not_exist_is_reported() {
    let device = device();
    let buffer = device.alloc_zeroed(3 * 34).unwrap();
    let matrix = QuantizedMatrix::new(Format::Q8_0, &buffer, 3, 32);
    let ids = upload(&device, &[1u32, 3]);
    let ids = View::contiguous(&ids, DType::U32, &[2], &[1]);
    let got = embedding(&device, &matrix, &ids).unwrap();
    let error = device.synchronize().unwrap_err();
    assert!(
        matches!(
            error,
            Error::IndexOutOfRange {
                index: 3,
                size: 3,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(download::<f32>(&device, &got), [0.0; 64]);
    let ids = View::contiguous(&buffer, DType::I64, &[2], &[1]);
    let error = embedding(&device, &matrix, &ids).unwrap_err();
    assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
}
