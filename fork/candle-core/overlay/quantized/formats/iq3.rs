//! IQ3_XXS and IQ3_S: groups of 4 magnitudes from a codebook, signs apart.

use std::sync::LazyLock;

use ggml_formats::codebooks::{IQ3_S, IQ3_XXS, IQ3_XXS_VALUES};

use super::codebook::Codebook;
use super::grid::{self, Encoder, Layout, GROUP};
use super::{half_at, put, search, u32_at};

/// Elements of an entry: two share a byte of signs.
const QUAD: usize = 4;

static XXS: LazyLock<Codebook> =
    LazyLock::new(|| Codebook::new(&IQ3_XXS, QUAD, &IQ3_XXS_VALUES.map(f32::from)));
static S: LazyLock<Codebook> = LazyLock::new(|| {
    let levels: [f32; 8] = std::array::from_fn(|code| (2 * code + 1) as f32);
    Codebook::new(&IQ3_S, QUAD, &levels)
});

/// What the 4-bit scales of IQ3_XXS stand for.
fn multiplier_xxs(scale: u32) -> f32 {
    (0.5 + scale as f32) * 0.5
}

/// What the 4-bit scales of IQ3_S stand for.
fn multiplier_s(scale: u32) -> f32 {
    (1 + 2 * scale) as f32
}

/// Half d; 64 indices of a byte; for each 32 elements a word: four times 7 signs, and the scale in the highest 4 bits.
pub(super) fn read_xxs(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
        let word = u32_at(block, 66 + g / 4 * 4);
        let signs = grid::even_signs(word >> (7 * (g % 4)) & 127);
        let scale = d * multiplier_xxs(word >> 28);
        for (half, values) in values.chunks_exact_mut(QUAD).enumerate() {
            let entry = XXS.entry(usize::from(block[2 + g * 2 + half]));
            grid::put_signed(entry, signs >> (half * QUAD), scale, values);
        }
    }
}

pub(super) fn write_xxs(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let weights = search::weights(importance, values.len());
    let (magnitudes, signs) = grid::take_even_signs(values, &weights);
    let layout = Layout {
        codebook: &XXS,
        sub: 32,
        shifts: &[0.],
        span: QUAD,
        starts: &[0.0125, 0.0137, 0.015, 0.0161, 0.0175, 0.019, 0.021],
    };
    let mut encoder = Encoder::new(layout, magnitudes, weights);
    let multipliers: Vec<f32> = (0..16).map(multiplier_xxs).collect();
    let (d, scales) = encoder.encode(&multipliers);
    put(block, 0, &d.to_le_bytes());
    for (i, entry) in encoder.entries.iter().enumerate() {
        block[2 + i] = *entry as u8;
    }
    for (sub, scale) in scales.into_iter().enumerate() {
        let mut word = (scale as u32) << 28;
        for j in 0..4 {
            word |= u32::from(signs[sub * 4 + j] & 127) << (7 * j);
        }
        put(block, 66 + sub * 4, &word.to_le_bytes());
    }
}

/// Half d; the low 8 bits of 64 indices; their ninth bits; a byte of signs for each 8 elements; a 4-bit scale for each
/// 32.
pub(super) fn read_s(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, values) in values.chunks_exact_mut(QUAD).enumerate() {
        let ninth = usize::from(block[66 + i / 8] >> (i % 8) & 1);
        let signs = block[74 + i / 2] >> (i % 2 * QUAD);
        let scale = block[106 + i / 16] >> (i / 8 % 2 * 4) & 15;
        let entry = S.entry(usize::from(block[2 + i]) | ninth << 8);
        grid::put_signed(entry, signs, d * multiplier_s(scale.into()), values);
    }
}

pub(super) fn write_s(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let weights = search::weights(importance, values.len());
    let (magnitudes, signs) = grid::take_signs(values);
    let layout = Layout {
        codebook: &S,
        sub: 32,
        shifts: &[0.],
        span: QUAD,
        starts: &[0.05, 0.056, 0.062, 0.067, 0.073, 0.08, 0.09],
    };
    let mut encoder = Encoder::new(layout, magnitudes, weights);
    let multipliers: Vec<f32> = (0..16).map(multiplier_s).collect();
    let (d, scales) = encoder.encode(&multipliers);
    block.fill(0);
    put(block, 0, &d.to_le_bytes());
    for (i, entry) in encoder.entries.iter().enumerate() {
        block[2 + i] = *entry as u8;
        block[66 + i / 8] |= ((entry >> 8) as u8) << (i % 8);
    }
    put(block, 74, &signs);
    for (sub, scale) in scales.into_iter().enumerate() {
        block[106 + sub / 2] |= (scale as u8) << (sub % 2 * 4);
    }
}
