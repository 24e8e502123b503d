//! MXFP4 and NVFP4: 4-bit floats (e2m1) with a small float as scale.

use ggml_formats::codebooks::E2M1_DOUBLED;

use super::search;

/// Half of `2^(exponent - 127)`: levels are stored doubled.
pub(super) fn e8m0_half(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// One byte of exponent; 16 bytes of nibbles, the low ones are the first half of the block.
pub(super) fn read_mxfp4(block: &[u8], values: &mut [f32]) {
    let d = e8m0_half(block[0]);
    for (i, byte) in block[1..].iter().enumerate() {
        values[i] = d * level(byte & 15);
        values[i + 16] = d * level(byte >> 4);
    }
}

/// The exponent is that of the largest magnitude, so that it falls into the levels' last octave; then each value takes
/// the nearest level. This is the choice of the package `gguf`.
pub(super) fn write_mxfp4(values: &[f32], _importance: Option<&[f32]>, block: &mut [u8]) {
    let max = search::largest_magnitude(values);
    block[0] = match max > 0. {
        true => (max.log2().floor() + 125.) as u8,
        false => 0,
    };
    let d = e8m0_half(block[0]);
    for i in 0..16 {
        block[1 + i] = nearest(values[i], d) | nearest(values[i + 16], d) << 4;
    }
}

/// Elements that share a scale in NVFP4.
const SUB: usize = 16;

/// Half of an unsigned e4m3 float; the sign bit is ignored, and NaN is zero.
fn ue4m3_half(bits: u8) -> f32 {
    let (exponent, mantissa) = (bits >> 3 & 15, u32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.,
        (_, 0) => mantissa as f32 / 1024.,
        _ => f32::from_bits((u32::from(exponent) + 119) << 23 | mantissa << 20),
    }
}

/// Four scales; per 16 elements 8 bytes of nibbles, the low ones are the first half.
pub(super) fn read_nvfp4(block: &[u8], values: &mut [f32]) {
    for (sub, values) in values.chunks_exact_mut(SUB).enumerate() {
        let d = ue4m3_half(block[sub]);
        for i in 0..8 {
            let byte = block[4 + sub * 8 + i];
            values[i] = d * level(byte & 15);
            values[i + 8] = d * level(byte >> 4);
        }
    }
}

/// Tries the scales around the one that maps the largest magnitude to the largest level.
pub(super) fn write_nvfp4(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    const LARGEST_SCALE: u8 = 0x7e;
    let weights = search::weights(importance, values.len());
    for (sub, values) in values.chunks_exact(SUB).enumerate() {
        let weights = &weights[sub * SUB..(sub + 1) * SUB];
        let max = search::largest_magnitude(values);
        // Scales grow with their bits.
        let full = (0..LARGEST_SCALE)
            .find(|&bits| ue4m3_half(bits) * 12. >= max)
            .unwrap_or(LARGEST_SCALE);
        let loss = |bits: u8| -> f32 {
            let d = ue4m3_half(bits);
            let errors = values.iter().map(|&v| v - d * level(nearest(v, d)));
            errors.zip(weights).map(|(e, w)| w * e * e).sum()
        };
        let candidates = full.saturating_sub(4)..=LARGEST_SCALE.min(full + 4);
        let best = candidates
            .map(|bits| (bits, loss(bits)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(full, |(bits, _)| bits);
        let d = ue4m3_half(best);
        block[sub] = best;
        for i in 0..8 {
            block[4 + sub * 8 + i] = nearest(values[i], d) | nearest(values[i + 8], d) << 4;
        }
    }
}

fn level(code: u8) -> f32 {
    f32::from(E2M1_DOUBLED[usize::from(code)])
}

/// The code whose level times `d` is nearest, the first of equals.
fn nearest(value: f32, d: f32) -> u8 {
    let mut best = (0, f32::INFINITY);
    for code in 0..16 {
        let error = (d * level(code) - value).abs();
        if error < best.1 {
            best = (code, error);
        }
    }
    best.0
}
