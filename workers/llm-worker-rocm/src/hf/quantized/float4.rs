//! Matrices of 4-bit floats (e2m1), two neighbours to a byte, the first in its low half: MXFP4 and NVFP4.

use super::float8;
use super::matrix::Layout;
use super::scales::power_of_two;
use crate::hf::files::{Files, Source};
use std::ops::Range;
use worker::gguf::Format;

/// What numbers share a scale, and what scales are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// 32, and a power of two.
    Mx,
    /// 16, and an 8-bit float (e4m3) without a sign.
    Nv,
}

impl Kind {
    /// Numbers that share a scale.
    pub(super) const fn group(self) -> usize {
        match self {
            Self::Mx => 32,
            Self::Nv => 16,
        }
    }

    const fn format(self) -> Format {
        match self {
            Self::Mx => Format::MXFP4,
            Self::Nv => Format::NVFP4,
        }
    }

    fn scale(self, bits: u8) -> Result<f32, String> {
        let value = match self {
            Self::Mx => power_of_two(bits),
            Self::Nv if bits & 0x7f == 0x7f => f32::NAN,
            Self::Nv => float8::value(bits),
        };
        match value.is_nan() || value < 0.0 || bits == 0x80 && self == Self::Nv {
            true => Err(format!("a scale is {value}")),
            false => Ok(value),
        }
    }
}

/// See the module.
pub(super) struct Float4 {
    pub kind: Kind,
    pub weight: Source,
    /// A byte for each group of a row.
    pub scales: Source,
    /// Of each matrix of the stack, for all its numbers.
    pub global: Option<Vec<f32>>,
    /// Of a matrix of the stack.
    pub outputs: usize,
    pub inputs: usize,
}

impl Float4 {
    /// Calls with each row's bytes and scales.
    fn each(
        &self,
        files: &Files,
        rows: Range<usize>,
        mut f: impl FnMut(usize, &[u8], &[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let (bytes, groups) = (self.inputs / 2, self.inputs / self.kind.group());
        let data = &files.bytes(self.weight)[rows.start * bytes..rows.end * bytes];
        let scales = &files.bytes(self.scales)[rows.start * groups..rows.end * groups];
        let rows = data.chunks_exact(bytes).zip(scales.chunks_exact(groups));
        for (i, (row, scales)) in rows.enumerate() {
            for bits in scales {
                self.kind.scale(*bits)?;
            }
            f(i, row, scales)?;
        }
        Ok(())
    }
}

impl Layout for Float4 {
    fn format(&self) -> Format {
        let format = self.kind.format();
        match self.inputs.is_multiple_of(format.block_size()) {
            true => format,
            false => self.plain(),
        }
    }

    /// The scales of a block, then for each group bytes of a number of its first half and one of the second.
    fn blocks(&self, files: &Files, rows: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        let format = self.kind.format();
        let groups = format.block_size() / self.kind.group();
        let half = self.kind.group() / 2;
        let row_bytes = self.inputs / format.block_size() * format.type_size();
        self.each(files, rows, |i, row, scales| {
            let out = &mut out[i * row_bytes..(i + 1) * row_bytes];
            let blocks = out.chunks_exact_mut(format.type_size());
            let from = row.chunks_exact(groups * half);
            for ((out, from), scales) in blocks.zip(from).zip(scales.chunks_exact(groups)) {
                let (d, numbers) = out.split_at_mut(groups);
                d.copy_from_slice(scales);
                for (to, from) in numbers.chunks_exact_mut(half).zip(from.chunks_exact(half)) {
                    let number = |i: usize| from[i / 2] >> (i % 2 * 4) & 15;
                    for (i, to) in to.iter_mut().enumerate() {
                        *to = number(i) | number(i + half) << 4;
                    }
                }
            }
            Ok(())
        })
    }

    fn elements(&self, files: &Files, rows: Range<usize>, out: &mut [f32]) -> Result<(), String> {
        let first = rows.start;
        self.each(files, rows, |i, row, scales| {
            let matrix = (first + i) / self.outputs;
            let global = self.global.as_ref().map_or(1.0, |global| global[matrix]);
            let out = &mut out[i * self.inputs..(i + 1) * self.inputs];
            for (column, to) in out.iter_mut().enumerate() {
                let scale = self.kind.scale(scales[column / self.kind.group()])? * global;
                *to = level(row[column / 2] >> (column % 2 * 4) & 15) * scale;
            }
            Ok(())
        })
    }
}

/// What four bits stand for.
fn level(bits: u8) -> f32 {
    const LEVELS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = LEVELS[usize::from(bits & 7)];
    match bits & 8 {
        0 => magnitude,
        _ => -magnitude,
    }
}
