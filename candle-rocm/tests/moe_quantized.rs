//! Quantized mixtures of experts against f64, slot by slot and sorted by expert.

mod common;
mod ggml;
mod isolated;

use candle_rocm::ops::moe::indexed_moe;
use candle_rocm::ops::quantized::{Format, Path};
use candle_rocm::{DType, Device, Error, View};
use common::{assert_close, device, download, Element, HostTensor, Layout, Rng};
use ggml::{moderate_blocks, values, BLOCK_FORMATS, LEVEL_FORMATS};
use half::f16;

/// Against exact activations; the integer kernels work on 8-bit ones.
const LIMIT: f64 = 5e-4;

/// Shapes of one mixture.
#[derive(Clone, Copy, Debug)]
struct Shape {
    experts: usize,
    n: usize,
    k: usize,
    tokens: usize,
    topk: usize,
    /// Vectors of a token: 1 or `topk`.
    inputs: usize,
}

/// Weights of a format as bytes and values.
fn weights(device: &Device, format: Format, count: usize, rng: &mut Rng) -> (Vec<u8>, Vec<f32>) {
    match format {
        Format::F32 | Format::BF16 | Format::F16 => {
            let values: Vec<f16> = rng.vec(count, -1.0, 1.0);
            // Coarse enough for all three.
            let values: Vec<f32> = values
                .iter()
                .map(|v| (v.to_f32() * 64.0).round() / 64.0)
                .collect();
            let bytes = values.iter().flat_map(|&v| match format {
                Format::F32 => v.to_le_bytes().to_vec(),
                Format::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
                _ => half::bf16::from_f32(v).to_le_bytes().to_vec(),
            });
            (bytes.collect(), values)
        }
        _ => {
            let bytes = moderate_blocks(format, count / format.block_size(), rng);
            let values = values(device, format, &bytes);
            (bytes, values)
        }
    }
}

/// Compares one mixture, with ids that leave experts out and prefer others.
fn check<T: Element>(device: &Device, format: Format, shape: Shape, layout: Layout, rng: &mut Rng) {
    let Shape {
        experts,
        n,
        k,
        tokens,
        topk,
        inputs,
    } = shape;
    let (bytes, values) = weights(device, format, experts * n * k, rng);
    let buffer = device.upload(&bytes).unwrap();
    let x = HostTensor::<T>::with_layout(&[tokens, inputs, k], layout, |count| {
        rng.vec(count, -1.0, 1.0)
    });
    let ids = HostTensor::<u32>::with_layout(&[tokens, topk], layout, |count| {
        let id = |_| match rng.below(8) {
            0 => u32::MAX,
            1..4 => 1 % experts as u32,
            _ => rng.below(experts) as u32,
        };
        (0..count).map(id).collect()
    });
    let (on_x, on_ids) = (x.upload(device), ids.upload(device));
    let got = indexed_moe(
        device,
        format,
        &buffer,
        (experts, n, k),
        &x.view(&on_x),
        &ids.view(&on_ids),
    );
    let got = download::<f32>(device, &got.unwrap());
    let (x, ids) = (x.values(), ids.values());
    let mut want = Vec::new();
    for (slot, &id) in ids.iter().enumerate() {
        let (token, place) = (slot / topk, if inputs == 1 { 0 } else { slot % topk });
        let x = &x[(token * inputs + place) * k..][..k];
        for row in 0..n {
            let dot = |expert: usize| {
                let w = &values[(expert * n + row) * k..][..k];
                w.iter()
                    .zip(x)
                    .map(|(w, x)| f64::from(*w) * x.to_f64())
                    .sum()
            };
            want.push(if id == u32::MAX {
                0.0
            } else {
                dot(id as usize)
            });
        }
    }
    assert_close::<f32>(
        &got,
        &want,
        LIMIT,
        &format!("{format}, {shape:?}, {layout:?}"),
    );
}

const FEW: Shape = Shape {
    experts: 5,
    n: 7,
    k: 256,
    tokens: 3,
    topk: 2,
    inputs: 1,
};
/// Of 24 slots for each expert on average, so narrow tiles.
const MANY: Shape = Shape {
    experts: 5,
    n: 37,
    k: 256,
    tokens: 60,
    topk: 2,
    inputs: 1,
};

/// Slot by slot and sorted, with little enough work for an emulator of the hardware.
#[test]
fn tiny() {
    let device = device();
    let mut rng = Rng::new(20);
    for format in [Format::Q4_0, Format::Q5K, Format::F16] {
        for tokens in [2, 35] {
            let shape = Shape {
                n: 5,
                tokens,
                ..FEW
            };
            check::<f32>(&device, format, shape, Layout::Contiguous, &mut rng);
        }
    }
}

#[test]
fn every_format_slot_by_slot() {
    let device = device();
    let mut rng = Rng::new(21);
    let plain = [Format::F32, Format::F16, Format::BF16];
    for format in BLOCK_FORMATS.into_iter().chain(LEVEL_FORMATS).chain(plain) {
        check::<f32>(&device, format, FEW, Layout::Contiguous, &mut rng);
    }
}

#[test]
fn every_kind_of_scale_sorted() {
    let device = device();
    let mut rng = Rng::new(22);
    for format in [
        Format::Q4_0,
        Format::Q8_0,
        Format::Q2K,
        Format::Q5K,
        Format::IQ2S,
        Format::IQ4NL,
        Format::F16,
    ] {
        check::<f32>(&device, format, MANY, Layout::Contiguous, &mut rng);
    }
}

#[test]
fn every_shape() {
    let device = device();
    let mut rng = Rng::new(23);
    let wide = Shape {
        experts: 3,
        n: 65,
        tokens: 70,
        ..MANY
    };
    let one_expert = Shape {
        experts: 1,
        n: 3,
        tokens: 130,
        topk: 1,
        ..MANY
    };
    let many_experts = Shape {
        experts: 130,
        n: 2,
        tokens: 20,
        topk: 8,
        ..MANY
    };
    for shape in [wide, one_expert, many_experts, FEW, MANY] {
        for inputs in [1, shape.topk] {
            let shape = Shape { inputs, ..shape };
            check::<f32>(&device, Format::Q4K, shape, Layout::Contiguous, &mut rng);
        }
    }
}

#[test]
fn every_layout_and_dtype() {
    let device = device();
    let mut rng = Rng::new(24);
    for layout in Layout::ALL {
        let own = Shape { inputs: 2, ..FEW };
        check::<f32>(&device, Format::Q4_1, own, layout, &mut rng);
        check::<f16>(&device, Format::Q6K, own, layout, &mut rng);
        check::<f16>(&device, Format::BF16, own, layout, &mut rng);
    }
}

/// Plain numbers fill no blocks: their vectors have any length.
#[test]
fn plain_numbers_of_any_length() {
    let device = device();
    let mut rng = Rng::new(26);
    for format in [Format::F32, Format::F16, Format::BF16] {
        for k in [1, 7, 33, 250] {
            let shape = Shape { k, ..FEW };
            check::<f32>(&device, format, shape, Layout::Contiguous, &mut rng);
            check::<f16>(&device, format, shape, Layout::Offset, &mut rng);
        }
    }
}

#[test]
fn forced_paths() {
    for (path, shape) in [("matvec", MANY), ("matmul", FEW)] {
        isolated::in_child("forced_paths", &[(Path::VARIABLE, path)], || {
            let mut rng = Rng::new(25);
            check::<f32>(&device(), Format::Q3K, shape, Layout::Contiguous, &mut rng);
            check::<f32>(&device(), Format::Q5_0, shape, Layout::Contiguous, &mut rng);
        });
    }
}

#[test]
fn an_expert_that_does_not_exist_is_reported() {
    let device = device();
    let weights = device.alloc_zeroed(4 * 3 * 256 / 32 * 18).unwrap();
    for (format, tokens) in [(Format::Q4_0, 2), (Format::Q4_0, 100), (Format::F16, 2)] {
        let k = 32;
        let (dims, strides) = ([tokens, 1, k], [k, k, 1]);
        let zeros = device.alloc_zeroed(tokens * k * 4).unwrap();
        let x = View::contiguous(&zeros, DType::F32, &dims, &strides);
        let mut ids = vec![0u32; tokens];
        ids[tokens - 1] = 4;
        let on_device = common::upload(&device, &ids);
        let (dims, strides) = ([tokens, 1], [1, 1]);
        let ids = View::contiguous(&on_device, DType::U32, &dims, &strides);
        let y = indexed_moe(&device, format, &weights, (4, 3, k), &x, &ids).unwrap();
        let error = device.synchronize().unwrap_err();
        assert!(
            matches!(
                error,
                Error::IndexOutOfRange {
                    op: "indexed-moe",
                    index: 4,
                    size: 4
                }
            ),
            "{error}"
        );
        assert_eq!(download::<f32>(&device, &y), vec![0.0; tokens * 3]);
    }
}

#[test]
fn misuse_is_a_typed_error() {
    let device = device();
    let weights = device.alloc_zeroed(2 * 3 * 18).unwrap();
    let buffer = device.alloc_zeroed(4 * 3 * 32 * 4).unwrap();
    let run = |experts, x: &[usize], ids: &[usize], dtype| {
        let (x_strides, id_strides) = (common::row_major(x), common::row_major(ids));
        let x = View::contiguous(&buffer, DType::F32, x, &x_strides);
        let ids = View::contiguous(&buffer, dtype, ids, &id_strides);
        indexed_moe(&device, Format::Q4_0, &weights, (experts, 3, 32), &x, &ids).unwrap_err()
    };
    for (x, ids) in [
        (&[4, 1, 32][..], &[3, 2][..]),
        (&[4, 3, 32], &[4, 2]),
        (&[4, 1, 64], &[4, 2]),
        (&[4, 32], &[4, 2]),
    ] {
        let error = run(2, x, ids, DType::U32);
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
    }
    let error = run(2, &[4, 1, 32], &[4, 2], DType::I64);
    assert!(matches!(error, Error::UnsupportedDType { .. }), "{error}");
    let error = run(3, &[4, 1, 32], &[4, 2], DType::U32);
    assert!(matches!(error, Error::OutOfBounds { .. }), "{error}");
    let error = run(0, &[4, 1, 32], &[4, 2], DType::U32);
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}
