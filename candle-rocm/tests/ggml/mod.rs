//! Decoders of ggml's blocks, written element by element, and random blocks.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use crate::common::{download, Rng};
use candle_rocm::ops::quantized::{dequantize, Format};
use candle_rocm::{DType, Device};
use half::f16;

/// The formats with an integer kernel.
pub const BLOCK_FORMATS: [Format; 12] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q8_0,
    Format::Q8_1,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Q8K,
];

/// The formats of levels and codebooks; quantized_types.rs compares their values with those of other programs.
pub const LEVEL_FORMATS: [Format; 13] = [
    Format::IQ1S,
    Format::IQ1M,
    Format::IQ2XXS,
    Format::IQ2XS,
    Format::IQ2S,
    Format::IQ3XXS,
    Format::IQ3S,
    Format::IQ4NL,
    Format::IQ4XS,
    Format::TQ1_0,
    Format::TQ2_0,
    Format::MXFP4,
    Format::NVFP4,
];

/// Element `e` of a block.
pub fn decode(format: Format, block: &[u8], e: usize) -> f64 {
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
        Format::Q4_0 => half(0) * value(nibble(2) - 8),
        Format::Q4_1 => half(0) * value(nibble(4)) + half(2),
        Format::Q5_0 => half(0) * value((nibble(6) | fifth(2)) - 16),
        Format::Q5_1 => half(0) * value(nibble(8) | fifth(4)) + half(2),
        Format::Q8_0 => half(0) * signed(2 + e),
        Format::Q8_1 => half(0) * signed(4 + e),
        Format::Q2K => {
            let q = bits(16 + e / 128 * 32 + e % 32, run % 4 * 2, 2);
            half(80) * value(bits(e / 16, 0, 4)) * value(q) - half(82) * value(bits(e / 16, 4, 4))
        }
        Format::Q3K => {
            let q = bits(32 + e / 128 * 32 + e % 32, run % 4 * 2, 2) | bits(e % 32, run, 1) << 2;
            let sub = e / 16;
            let scale =
                bits(96 + sub % 8, sub / 8 * 4, 4) | bits(104 + sub % 4, sub / 4 * 2, 2) << 4;
            half(108) * value(scale - 32) * value(q - 4)
        }
        Format::Q4K => {
            let q = bits(16 + e / 64 * 32 + e % 32, run % 2 * 4, 4);
            let (scale, min) = scale_and_min();
            half(0) * value(scale) * value(q) - half(2) * value(min)
        }
        Format::Q5K => {
            let q =
                bits(48 + e / 64 * 32 + e % 32, run % 2 * 4, 4) | bits(16 + e % 32, run, 1) << 4;
            let (scale, min) = scale_and_min();
            half(0) * value(scale) * value(q) - half(2) * value(min)
        }
        Format::Q6K => {
            let low = bits(e / 128 * 64 + run % 2 * 32 + e % 32, run % 4 / 2 * 4, 4);
            let high = bits(128 + e / 128 * 32 + e % 32, run % 4 * 2, 2);
            half(208) * signed(192 + e / 16) * value((low | high << 4) - 32)
        }
        Format::Q8K => {
            let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            f64::from(d) * signed(4 + e)
        }
        _ => panic!("{format} has no blocks or its test is in quantized_types.rs"),
    }
}

/// Every element: by [`decode`], or as the device dequantizes those that it does not know.
pub fn values(device: &Device, format: Format, bytes: &[u8]) -> Vec<f32> {
    if !LEVEL_FORMATS.contains(&format) {
        return decode_all(format, bytes);
    }
    let count = bytes.len() / format.type_size() * format.block_size();
    let blocks = device.upload(bytes).unwrap();
    download(
        device,
        &dequantize(device, format, &blocks, 0, count, DType::F32).unwrap(),
    )
}

/// Every element, rounded to f32.
pub fn decode_all(format: Format, bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(format.type_size())
        .flat_map(|block| (0..format.block_size()).map(move |e| decode(format, block, e) as f32))
        .collect()
}

/// Blocks whose scales are finite and of like magnitude, so that no product drowns the others.
pub fn moderate_blocks(format: Format, blocks: usize, rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = rng.any(blocks * format.type_size());
    let scales: &[usize] = match format {
        Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Q8_1 => &[0],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::TQ1_0 => &[52],
        Format::TQ2_0 => &[64],
        // Scales of their own kinds, below.
        Format::Q8K | Format::IQ1M | Format::MXFP4 | Format::NVFP4 => &[],
        format if LEVEL_FORMATS.contains(&format) => &[0],
        _ => &[0, 2],
    };
    for block in bytes.chunks_exact_mut(format.type_size()) {
        match format {
            Format::Q8K => {
                let scale = rng.uniform(-0.1, 0.1) as f32;
                block[..4].copy_from_slice(&scale.to_le_bytes());
            }
            // The highest bits of a half that is spread over the block.
            Format::IQ1M => block[55] = block[55] & 0x0f | 0x20,
            Format::MXFP4 => block[0] = 120 + rng.below(8) as u8,
            _ => {}
        }
        for &at in scales {
            let scale = f16::from_f64(rng.uniform(-0.1, 0.1));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}
