//! IQ1_S and IQ1_M: groups of 8 ternary values from a codebook, all of them moved by an eighth up or down.

use std::sync::LazyLock;

use ggml_formats::codebooks::IQ1;

use super::codebook::Codebook;
use super::grid::{Encoder, Layout, GROUP};
use super::{put, search, u16_at};

static CODEBOOK: LazyLock<Codebook> = LazyLock::new(|| Codebook::new(&IQ1, GROUP, &[-1., 0., 1.]));

/// What is added to the levels, by the bit that says so.
const SHIFTS: [f32; 2] = [0.125, -0.125];

/// What the 3-bit scales stand for.
fn multiplier(scale: u32) -> f32 {
    (2 * scale + 1) as f32
}

fn encoder(sub: usize, span: usize, values: &[f32], importance: Option<&[f32]>) -> Encoder {
    let layout = Layout {
        codebook: &CODEBOOK,
        sub,
        shifts: &SHIFTS,
        span,
        starts: &[0.3, 0.4, 0.5, 0.6, 0.7, 0.85],
    };
    let weights = search::weights(importance, values.len());
    Encoder::new(layout, values.to_vec(), weights)
}

fn multipliers() -> Vec<f32> {
    (0..8).map(multiplier).collect()
}

fn put_group(index: usize, shift: f32, scale: f32, values: &mut [f32]) {
    for (value, level) in values.iter_mut().zip(CODEBOOK.entry(index)) {
        *value = scale * (level + shift);
    }
}

/// Half d; the low 8 bits of 32 indices; for each 32 elements a u16: the high 3 bits of four indices, the scale, and
/// the shift.
pub(super) fn read_s(block: &[u8], values: &mut [f32]) {
    let d = super::half_at(block, 0);
    for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
        let word = u16_at(block, 34 + g / 4 * 2);
        let index = usize::from(block[2 + g]) | usize::from(word >> (g % 4 * 3) & 7) << 8;
        let scale = d * multiplier(u32::from(word >> 12 & 7));
        put_group(index, SHIFTS[usize::from(word >> 15)], scale, values);
    }
}

pub(super) fn write_s(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let mut encoder = encoder(32, 32, values, importance);
    let (d, scales) = encoder.encode(&multipliers());
    put(block, 0, &d.to_le_bytes());
    for (sub, scale) in scales.into_iter().enumerate() {
        let mut word = (scale as u16) << 12 | (encoder.shifts[sub] as u16) << 15;
        for j in 0..4 {
            let index = encoder.entries[sub * 4 + j];
            block[2 + sub * 4 + j] = index as u8;
            word |= (index as u16 >> 8) << (j * 3);
        }
        put(block, 34 + sub * 2, &word.to_le_bytes());
    }
}

/// The low 8 bits of 32 indices; for each a nibble: the high 3 bits, and the shift; four u16 that hold four 3-bit
/// scales each (one for 16 elements) and, in their highest 4 bits, a quarter of half d, the lowest first.
pub(super) fn read_m(block: &[u8], values: &mut [f32]) {
    let word = |i: usize| u16_at(block, 48 + i * 2);
    let bits = (0..4).fold(0, |bits, i| bits | word(i) >> 12 << (i * 4));
    let d = half::f16::from_bits(bits).to_f32();
    for (g, values) in values.chunks_exact_mut(GROUP).enumerate() {
        let nibble = usize::from(block[32 + g / 2] >> (g % 2 * 4));
        let index = usize::from(block[g]) | (nibble & 7) << 8;
        let scale = d * multiplier(u32::from(word(g / 8) >> (g / 2 % 4 * 3) & 7));
        put_group(index, SHIFTS[nibble >> 3 & 1], scale, values);
    }
}

pub(super) fn write_m(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let mut encoder = encoder(16, GROUP, values, importance);
    let (d, scales) = encoder.encode(&multipliers());
    block.fill(0);
    for (g, (index, shift)) in encoder.entries.iter().zip(&encoder.shifts).enumerate() {
        block[g] = *index as u8;
        block[32 + g / 2] |= ((index >> 8 | shift << 3) as u8) << (g % 2 * 4);
    }
    for (i, scales) in scales.chunks_exact(4).enumerate() {
        let quarter = d.to_bits() >> (i * 4) << 12;
        let fields = scales.iter().enumerate();
        let word = fields.fold(quarter, |word, (j, scale)| {
            word | (*scale as u16) << (j * 3)
        });
        put(block, 48 + i * 2, &word.to_le_bytes());
    }
}
