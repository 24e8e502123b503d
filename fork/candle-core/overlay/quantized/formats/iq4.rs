//! IQ4_NL and IQ4_XS: sixteen levels, denser near zero.

use ggml_formats::codebooks::IQ4_VALUES;
use half::f16;

use super::search::{self, Fit, SubBlocks};
use super::{half_at, put, u16_at};

/// Elements that share 16 bytes of nibbles, the low ones first.
const RUN: usize = 32;

fn level(code: u8) -> f32 {
    f32::from(IQ4_VALUES[usize::from(code)])
}

fn read_run(nibbles: &[u8], scale: f32, values: &mut [f32]) {
    for (i, byte) in nibbles.iter().enumerate() {
        values[i] = scale * level(byte & 15);
        values[i + 16] = scale * level(byte >> 4);
    }
}

/// Half d; 16 bytes of nibbles.
pub(super) fn read_nl(block: &[u8], values: &mut [f32]) {
    read_run(&block[2..], half_at(block, 0), values);
}

/// Half d; the high 2 bits of eight scales; the low 4 bits of eight scales, which are signed with an offset of 32; 128
/// bytes of nibbles.
pub(super) fn read_xs(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    let high = u16_at(block, 2);
    for (run, values) in values.chunks_exact_mut(RUN).enumerate() {
        let low = block[4 + run / 2] >> (run % 2 * 4) & 15;
        let scale = i16::from(low) | ((high >> (run * 2) & 3) << 4) as i16;
        let nibbles = &block[8 + run * 16..8 + (run + 1) * 16];
        read_run(nibbles, d * f32::from(scale - 32), values);
    }
}

/// Values being encoded.
struct Runs<'a> {
    values: &'a [f32],
    weights: Vec<f32>,
    codes: Vec<u8>,
}

impl<'a> Runs<'a> {
    fn new(values: &'a [f32], importance: Option<&[f32]>) -> Self {
        Self {
            values,
            weights: search::weights(importance, values.len()),
            codes: vec![0; values.len()],
        }
    }

    fn put_nibbles(&self, run: usize, nibbles: &mut [u8]) {
        let codes = &self.codes[run * RUN..(run + 1) * RUN];
        for (i, byte) in nibbles.iter_mut().enumerate() {
            *byte = codes[i] | codes[i + 16] << 4;
        }
    }
}

impl SubBlocks for Runs<'_> {
    fn count(&self) -> usize {
        self.values.len() / RUN
    }

    fn scale(&mut self, sub: usize) -> f32 {
        let max = search::largest_magnitude(&self.values[sub * RUN..(sub + 1) * RUN]);
        // The levels are not symmetric: either end may meet the largest magnitude, or one some levels further in.
        let starts = [-1f32, 1.].into_iter().flat_map(|sign| {
            [127f32, 120., 113., 104., 96., 89.]
                .into_iter()
                .map(move |level| sign * max / level)
        });
        search::best_scale(starts, |scale| self.fit(sub, scale))
    }

    fn fit(&mut self, sub: usize, scale: f32) -> Fit {
        let inverse = search::inverse(scale);
        let mut fit = Fit::default();
        for i in sub * RUN..(sub + 1) * RUN {
            let wanted = self.values[i] * inverse;
            let code = IQ4_VALUES
                .windows(2)
                .filter(|pair| wanted > f32::from(i16::from(pair[0]) + i16::from(pair[1])) * 0.5)
                .count() as u8;
            self.codes[i] = code;
            fit.add(self.weights[i], self.values[i], level(code));
        }
        fit
    }
}

pub(super) fn write_nl(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let mut runs = Runs::new(values, importance);
    let d = f16::from_f32(runs.scale(0));
    runs.fit(0, d.to_f32());
    put(block, 0, &d.to_le_bytes());
    runs.put_nibbles(0, &mut block[2..]);
}

pub(super) fn write_xs(values: &[f32], importance: Option<&[f32]>, block: &mut [u8]) {
    let mut runs = Runs::new(values, importance);
    let multipliers: Vec<f32> = (-32..32).map(|m| m as f32).collect();
    let (d, scales) = search::choose_scales(&mut runs, &multipliers);
    block.fill(0);
    put(block, 0, &d.to_le_bytes());
    let mut high = 0u16;
    for (run, scale) in scales.into_iter().enumerate() {
        block[4 + run / 2] |= (scale as u8 & 15) << (run % 2 * 4);
        high |= (scale as u16 >> 4) << (run * 2);
        runs.put_nibbles(run, &mut block[8 + run * 16..8 + (run + 1) * 16]);
    }
    put(block, 2, &high.to_le_bytes());
}
