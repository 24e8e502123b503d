//! Block-quantized weights against decoders written element by element.
//!
//! Blocks are random bytes, so scales take every value a half can, infinities and NaN included. Each value is exact
//! in f64 and rounded once to f32, so results must agree to the bit.

mod common;
mod ggml;

use candle_rocm::ops::quantized::{dequantize, GgmlType};
use candle_rocm::{DType, Device, Error};
use common::{assert_exact, device, download, upload, Element, Rng};
use ggml::{decode_all, BLOCK_FORMATS};
use half::{bf16, f16};

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
