//! IQ2_XXS, IQ2_XS and IQ2_S: groups of 8 magnitudes from a codebook, signs apart.

use std::sync::LazyLock;

use ggml_formats::codebooks::{IQ2_S, IQ2_VALUES, IQ2_XS, IQ2_XXS};

use super::codebook::Codebook;
use super::grid::{self, Encoder, Layout, GROUP};
use super::{half_at, put, search, u16_at, u32_at};

static XXS: LazyLock<Codebook> = LazyLock::new(|| codebook(&IQ2_XXS));
static XS: LazyLock<Codebook> = LazyLock::new(|| codebook(&IQ2_XS));
static S: LazyLock<Codebook> = LazyLock::new(|| codebook(&IQ2_S));

fn codebook(entries: &[u16]) -> Codebook {
    Codebook::new(entries, GROUP, &IQ2_VALUES.map(f32::from))
}

/// What the 4-bit scales stand for.
fn multiplier(scale: u32) -> f32 {
    (0.5 + scale as f32) * 0.25
}

fn multipliers() -> Vec<f32> {
    (0..16).map(multiplier).collect()
}

fn layout(codebook: &'static Codebook, sub: usize) -> Layout {
    Layout {
        codebook,
        sub,
        shifts: &[0.],
        span: GROUP,
        // The largest magnitude meets the largest level, or one beyond or short of it.
        starts: &[0.016, 0.019, 0.022, 0.025, 0.029, 0.034, 0.04, 0.05],
    }
}

/// Half d; for each 32 elements four indices of a byte, then a word: four times 7 signs, and the scale in the highest 4
/// bits.
pub(super) fn read_xxs(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
        let (at, j) = (2 + g / 4 * 8, g % 4);
        let word = u32_at(block, at + 4);
        let signs = grid::even_signs(word >> (7 * j) & 127);
        let entry = XXS.entry(usize::from(block[at + j]));
        grid::put_signed(entry, signs, d * multiplier(word >> 28), values);
    }
}

pub(super) fn write_xxs(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let weights = search::weights(importance, values.len());
    let (magnitudes, signs) = grid::take_even_signs(values, &weights);
    let mut encoder = Encoder::new(layout(&XXS, 32), magnitudes, weights);
    let (d, scales) = encoder.encode(&multipliers());
    put(block, 0, &d.to_le_bytes());
    for (sub, scale) in scales.into_iter().enumerate() {
        let at = 2 + sub * 8;
        let mut word = (scale as u32) << 28;
        for j in 0..4 {
            block[at + j] = encoder.entries[sub * 4 + j] as u8;
            word |= u32::from(signs[sub * 4 + j] & 127) << (7 * j);
        }
        put(block, at + 4, &word.to_le_bytes());
    }
}

/// Half d; for each group 9 bits of index and 7 signs; a 4-bit scale for each 16 elements.
pub(super) fn read_xs(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
        let word = u16_at(block, 2 + g * 2);
        let scale = block[66 + g / 4] >> (g / 2 % 2 * 4) & 15;
        let signs = grid::even_signs(u32::from(word >> 9));
        let entry = XS.entry(usize::from(word & 511));
        grid::put_signed(entry, signs, d * multiplier(scale.into()), values);
    }
}

pub(super) fn write_xs(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let weights = search::weights(importance, values.len());
    let (magnitudes, signs) = grid::take_even_signs(values, &weights);
    let mut encoder = Encoder::new(layout(&XS, 16), magnitudes, weights);
    let (d, scales) = encoder.encode(&multipliers());
    block.fill(0);
    put(block, 0, &d.to_le_bytes());
    for (g, (entry, signs)) in encoder.entries.iter().zip(signs).enumerate() {
        let word = *entry as u16 | u16::from(signs & 127) << 9;
        put(block, 2 + g * 2, &word.to_le_bytes());
    }
    for (sub, scale) in scales.into_iter().enumerate() {
        block[66 + sub / 2] |= (scale as u8) << (sub % 2 * 4);
    }
}

/// Half d; for each group the low 8 bits of its index, then for each group 8 signs; the high 2 bits of the indices; a
/// 4-bit scale for each 16 elements.
pub(super) fn read_s(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
        let high = usize::from(block[66 + g / 4] >> (g % 4 * 2) & 3);
        let scale = block[74 + g / 4] >> (g / 2 % 2 * 4) & 15;
        let entry = S.entry(usize::from(block[2 + g]) | high << 8);
        grid::put_signed(entry, block[34 + g], d * multiplier(scale.into()), values);
    }
}

pub(super) fn write_s(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let weights = search::weights(importance, values.len());
    let (magnitudes, signs) = grid::take_signs(values);
    let mut encoder = Encoder::new(layout(&S, 16), magnitudes, weights);
    let (d, scales) = encoder.encode(&multipliers());
    block.fill(0);
    put(block, 0, &d.to_le_bytes());
    for (g, (entry, signs)) in encoder.entries.iter().zip(signs).enumerate() {
        block[2 + g] = *entry as u8;
        block[34 + g] = signs;
        block[66 + g / 4] |= ((entry >> 8) as u8) << (g % 4 * 2);
    }
    for (sub, scale) in scales.into_iter().enumerate() {
        block[74 + sub / 2] |= (scale as u8) << (sub % 2 * 4);
    }
}
