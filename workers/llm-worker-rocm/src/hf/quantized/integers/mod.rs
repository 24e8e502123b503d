//! Matrices of integers of 4 or 8 bits with a scale, and perhaps a zero point, for each group of a row's elements: what
//! GPTQ, AWQ and compressed-tensors write.
//!
//! | Elements                       | Become  | Bits | What is lost                                              |
//! |--------------------------------|---------|------|-----------------------------------------------------------|
//! | 4 bits about the middle        | Q4_0    | 4.5  | nothing of scales that are halves, else 2^-11 of a scale  |
//! | 4 bits with zero points        | Q4_1    | 5    | besides, 2^-11 of zero point times scale                  |
//! | 8 bits about the middle        | Q8_0    | 8.5  | as with Q4_0                                              |
//! | others, and what has no blocks | scales' | 16   | the rounding of the products to the scales' own type      |
//!
//! "About the middle" is what all zero points of a matrix are, whatever its configuration calls itself. Blocks have 32
//! elements, so groups must have a multiple of that. Where `g_idx` says that groups are not made of neighbours (GPTQ's
//! `desc_act`), columns are sorted by group, and [`super::Matrix::order`] tells how.

mod build;
mod columns;
mod config;
mod packing;
#[cfg(test)]
mod tests;

use build::IntegerScales;
pub(super) use build::Packer;
pub(super) use config::{awq, gptq, tensors};

use super::matrix::Layout;
use crate::hf::files::{Files, Source};
use columns::Columns;
use half::f16;
use packing::Packing;
use safetensors::Dtype;
use std::ops::Range;
use worker::gguf::Format;

/// Elements of a block of the formats that matrices become.
const BLOCK: usize = 32;
/// Outputs whose codes are taken at a time.
const TILE: usize = 64;

/// The codes of a block's columns, of some outputs each.
type Tile = [[u8; TILE]; BLOCK];

/// Where a matrix's tensors are.
#[derive(Debug, Clone)]
struct Sources {
    codes: Source,
    scales: Source,
    zeros: Option<Source>,
}

/// What lies there.
#[derive(Clone, Copy)]
struct Parts<'a> {
    codes: &'a [u8],
    scales: &'a [u8],
    zeros: Option<&'a [u8]>,
}

impl Sources {
    fn parts<'a>(&self, files: &'a Files) -> Parts<'a> {
        Parts {
            codes: files.bytes(self.codes),
            scales: files.bytes(self.scales),
            zeros: self.zeros.map(|zeros| files.bytes(zeros)),
        }
    }
}

/// A checked matrix.
#[derive(Debug)]
struct Integers {
    packing: Packing,
    columns: Columns,
    sources: Sources,
    format: Format,
}

impl Integers {
    /// Checks the parts of a matrix and chooses its format. `g_idx` is the group of each input, if the file says so.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    fn new(
        packing: Packing,
        sources: Sources,
        g_idx: Option<Source>,
        files: &Files,
    ) -> Result<Self, String> {
        let parts = sources.parts(files);
        packing.check(parts)?;
        let columns = Columns::new(&packing, g_idx.map(|source| files.bytes(source)))?;
        let scales = packing.check_scales(parts)?;
        let has_blocks = columns.has_blocks() && scales.are_halves;
        let format = match packing.bits {
            4 if has_blocks && scales.are_of_middle => Format::Q4_0,
            4 if has_blocks && scales.offsets_are_halves => Format::Q4_1,
            8 if has_blocks && scales.are_of_middle => Format::Q8_0,
            _ => plain(packing.scale_type),
        };
        Ok(Self {
            packing,
            columns,
            sources,
            format,
        })
    }

    /// The input of each column of blocks, where that is not their order.
    fn order(&self) -> Option<Vec<u32>> {
        let has_blocks = self.format.block_size() > 1;
        self.columns
            .order()
            .filter(|_| has_blocks)
            .map(<[u32]>::to_vec)
    }

    /// The block of an output's columns of a group, whose codes are those of `n`.
    fn block(
        &self,
        parts: Parts,
        (group, output): (usize, usize),
        (codes, n): (&Tile, usize),
        to: &mut [u8],
    ) {
        let scale = self.packing.scale(parts.scales, group, output);
        let (d, mut numbers) = to.split_at_mut(2);
        d.copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        if self.format == Format::Q4_1 {
            let zero = self.packing.zero(parts.zeros, group, output);
            let least = f16::from_f32(-f32::from(zero) * scale);
            numbers[..2].copy_from_slice(&least.to_le_bytes());
            numbers = &mut numbers[2..];
        }
        if self.format == Format::Q8_0 {
            for (to, codes) in numbers.iter_mut().zip(codes) {
                // 128 is the middle.
                *to = codes[n] ^ 0x80;
            }
            return;
        }
        let (low, high) = codes.split_at(BLOCK / 2);
        for ((to, low), high) in numbers.iter_mut().zip(low).zip(high) {
            *to = low[n] | high[n] << 4;
        }
    }
}

/// The type of scales, which that of products is where what computes with them makes these first.
fn plain(scales: Dtype) -> Format {
    match scales {
        Dtype::F16 => Format::F16,
        Dtype::BF16 => Format::BF16,
        _ => Format::F32,
    }
}

impl Layout for Integers {
    fn format(&self) -> Format {
        self.format
    }

    fn plain(&self) -> Format {
        plain(self.packing.scale_type)
    }

    fn blocks(&self, files: &Files, rows: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        let (parts, size) = (self.sources.parts(files), self.format.type_size());
        let row = self.packing.inputs / BLOCK * size;
        let mut codes: Tile = [[0; TILE]; BLOCK];
        for (first, out) in rows.step_by(TILE).zip(out.chunks_mut(TILE * row)) {
            let outputs = first..first + out.len() / row;
            for block in 0..self.packing.inputs / BLOCK {
                let inputs: [usize; BLOCK] =
                    std::array::from_fn(|i| self.columns.input(block * BLOCK + i));
                let group = self.columns.group(inputs[0]);
                (self.packing).codes(parts.codes, &inputs, outputs.clone(), &mut codes);
                for (n, row) in out.chunks_exact_mut(row).enumerate() {
                    let to = &mut row[block * size..(block + 1) * size];
                    self.block(parts, (group, first + n), (&codes, n), to);
                }
            }
        }
        Ok(())
    }

    fn elements(&self, files: &Files, rows: Range<usize>, out: &mut [f32]) -> Result<(), String> {
        let (parts, width) = (self.sources.parts(files), self.packing.inputs);
        let mut codes: Tile = [[0; TILE]; BLOCK];
        for (first, out) in rows.step_by(TILE).zip(out.chunks_mut(TILE * width)) {
            let outputs = first..first + out.len() / width;
            for start in (0..width).step_by(BLOCK) {
                let inputs: Vec<usize> = (start..width.min(start + BLOCK)).collect();
                (self.packing).codes(parts.codes, &inputs, outputs.clone(), &mut codes);
                for (n, row) in out.chunks_exact_mut(width).enumerate() {
                    for (input, codes) in inputs.iter().zip(&codes) {
                        let group = self.columns.group(*input);
                        let zero = self.packing.zero(parts.zeros, group, first + n);
                        let scale = self.packing.scale(parts.scales, group, first + n);
                        row[*input] = (f32::from(codes[n]) - f32::from(zero)) * scale;
                    }
                }
            }
        }
        Ok(())
    }
}
