//! Encoding in the formats that index a codebook.

use half::f16;

use super::codebook::Codebook;
use super::search::{self, Fit, SubBlocks};

/// Elements of a block of these formats.
pub(super) const BLOCK: usize = 256;

/// Elements that share a byte of signs.
pub(super) const GROUP: usize = 8;

/// What a format makes of a codebook.
pub(super) struct Layout {
    pub codebook: &'static Codebook,
    /// Elements that share a scale.
    pub sub: usize,
    /// What may be added to all levels of a span of elements.
    pub shifts: &'static [f32],
    /// Elements that share a shift.
    pub span: usize,
    /// Scales to start from, times the largest magnitude.
    pub starts: &'static [f32],
}

/// Values being encoded.
pub(super) struct Encoder {
    layout: Layout,
    values: Vec<f32>,
    weights: Vec<f32>,
    /// Index of each entry.
    pub entries: Vec<usize>,
    /// Index into the layout's shifts, for each span.
    pub shifts: Vec<usize>,
}

impl Encoder {
    pub fn new(layout: Layout, values: Vec<f32>, weights: Vec<f32>) -> Self {
        Self {
            entries: vec![0; BLOCK / layout.codebook.dims()],
            shifts: vec![0; BLOCK / layout.span],
            layout,
            values,
            weights,
        }
    }

    /// The block's scale, and an index into `multipliers` for each sub-block.
    pub fn encode(&mut self, multipliers: &[f32]) -> (f16, Vec<usize>) {
        search::choose_scales(self, multipliers)
    }

    /// Chooses the entries of a span for one shift.
    fn fit_span(&mut self, span: usize, scale: f32, shift: f32) -> Fit {
        let (dims, inverse) = (self.layout.codebook.dims(), search::inverse(scale));
        let mut fit = Fit::default();
        for at in (span * self.layout.span..(span + 1) * self.layout.span).step_by(dims) {
            let mut point = [0f32; GROUP];
            let (values, weights) = (&self.values[at..at + dims], &self.weights[at..at + dims]);
            for (point, value) in point.iter_mut().zip(values) {
                *point = value * inverse - shift;
            }
            let index = self.layout.codebook.nearest(&point[..dims], weights);
            self.entries[at / dims] = index;
            let levels = self.layout.codebook.entry(index);
            for ((level, value), weight) in levels.iter().zip(values).zip(weights) {
                fit.add(*weight, *value, level + shift);
            }
        }
        fit
    }
}

impl SubBlocks for Encoder {
    fn count(&self) -> usize {
        BLOCK / self.layout.sub
    }

    fn scale(&mut self, sub: usize) -> f32 {
        let values = &self.values[sub * self.layout.sub..(sub + 1) * self.layout.sub];
        let max = search::largest_magnitude(values);
        let starts = self.layout.starts.iter().map(|factor| max * factor);
        // Signs are stored apart, and the scales have none.
        search::best_scale(starts, |scale| self.fit(sub, scale)).max(0.)
    }

    fn fit(&mut self, sub: usize, scale: f32) -> Fit {
        let spans = self.layout.sub / self.layout.span;
        let mut all = Fit::default();
        for span in sub * spans..(sub + 1) * spans {
            let mut best = (0, Fit::default(), f32::INFINITY);
            for (index, &shift) in self.layout.shifts.iter().enumerate() {
                let fit = self.fit_span(span, scale, shift);
                if fit.loss(scale) < best.2 {
                    best = (index, fit, fit.loss(scale));
                }
            }
            self.shifts[span] = best.0;
            if best.0 + 1 != self.layout.shifts.len() {
                self.fit_span(span, scale, self.layout.shifts[best.0]);
            }
            all = all + best.1;
        }
        all
    }
}

/// Takes the signs off: magnitudes, and a byte per group with a bit for each negative element.
pub(super) fn take_signs(values: &[f32]) -> (Vec<f32>, Vec<u8>) {
    let bytes = values.chunks_exact(GROUP).map(|group| {
        let negative = group.iter().enumerate().filter(|(_, value)| **value < 0.);
        negative.fold(0, |byte, (i, _)| byte | 1 << i)
    });
    (values.iter().map(|v| v.abs()).collect(), bytes.collect())
}

/// The same with an even number of bits in each byte: where it is odd, the element that matters least gets the wrong
/// sign (and so a negative "magnitude").
pub(super) fn take_even_signs(values: &[f32], weights: &[f32]) -> (Vec<f32>, Vec<u8>) {
    let (mut magnitudes, mut signs) = take_signs(values);
    for (group, byte) in signs.iter_mut().enumerate() {
        if byte.count_ones() % 2 == 0 {
            continue;
        }
        let cost = |i: &usize| {
            let e = group * GROUP + i;
            weights[e] * values[e] * values[e]
        };
        let least = (0..GROUP).min_by(|a, b| cost(a).total_cmp(&cost(b)));
        let least = least.unwrap_or_default();
        *byte ^= 1 << least;
        magnitudes[group * GROUP + least] *= -1.;
    }
    (magnitudes, signs)
}

/// All 8 signs, given the first 7 of an even number.
pub(super) fn even_signs(seven: u32) -> u8 {
    (seven | (seven.count_ones() % 2) << 7) as u8
}

/// Writes the elements of an entry, scaled and signed.
pub(super) fn put_signed(entry: &[f32], signs: u8, scale: f32, values: &mut [f32]) {
    for (i, (value, level)) in values.iter_mut().zip(entry).enumerate() {
        *value = if signs >> i & 1 == 0 {
            scale * level
        } else {
            -scale * level
        };
    }
}
