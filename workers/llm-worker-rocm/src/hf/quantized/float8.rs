//! Matrices of 8-bit floats (e4m3) with scales of whole matrices, outputs or blocks.

use super::matrix::Layout;
use super::scales::Scales;
use crate::hf::files::{Files, Source};
use std::ops::Range;
use worker::gguf::Format;

const BLOCK: usize = Format::F8E4M3.block_size();
const BLOCK_BYTES: usize = Format::F8E4M3.type_size();

/// See the module.
pub(super) struct Float8 {
    pub weight: Source,
    pub scales: Scales,
    /// Of a matrix of the stack.
    pub outputs: usize,
    pub inputs: usize,
    /// Whether matrices lie there with rows of outputs.
    pub turned: bool,
}

impl Float8 {
    /// Calls with each row's bytes and scales.
    fn each(
        &self,
        files: &Files,
        rows: Range<usize>,
        mut f: impl FnMut(usize, &[u8], &[f32]) -> Result<(), String>,
    ) -> Result<(), String> {
        let data = files.bytes(self.weight);
        let turned = self.turned.then(|| self.turn(data, rows.clone()));
        let data = match &turned {
            Some(turned) => &turned[..],
            None => &data[rows.start * self.inputs..rows.end * self.inputs],
        };
        let mut scales = Vec::new();
        for (i, row) in data.chunks_exact(self.inputs).enumerate() {
            let (matrix, output) = (
                (rows.start + i) / self.outputs,
                (rows.start + i) % self.outputs,
            );
            self.scales.of_row(files, matrix, output, &mut scales)?;
            f(i, row, &scales)?;
        }
        Ok(())
    }

    /// Rows of inputs where there are rows of outputs.
    fn turn(&self, data: &[u8], rows: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; rows.len() * self.inputs];
        for input in 0..self.inputs {
            for (i, row) in rows.clone().enumerate() {
                let (matrix, output) = (row / self.outputs, row % self.outputs);
                let from = (matrix * self.inputs + input) * self.outputs + output;
                out[i * self.inputs + input] = data[from];
            }
        }
        out
    }
}

impl Layout for Float8 {
    fn format(&self) -> Format {
        let whole = self.inputs.is_multiple_of(BLOCK);
        let aligned = self.scales.width >= self.inputs || self.scales.width.is_multiple_of(BLOCK);
        match whole && aligned {
            true => Format::F8E4M3,
            false => self.plain(),
        }
    }

    fn blocks(&self, files: &Files, rows: Range<usize>, out: &mut [u8]) -> Result<(), String> {
        let row_bytes = self.inputs / BLOCK * BLOCK_BYTES;
        self.each(files, rows, |i, row, scales| {
            let blocks = out[i * row_bytes..(i + 1) * row_bytes].chunks_exact_mut(BLOCK_BYTES);
            for (block, (out, from)) in blocks.zip(row.chunks_exact(BLOCK)).enumerate() {
                let scale = scales[block * BLOCK / self.scales.width];
                let (d, bytes) = out.split_at_mut(BLOCK_BYTES - BLOCK);
                d.copy_from_slice(&scale.to_le_bytes());
                let mut is_nan = false;
                for (to, bits) in bytes.iter_mut().zip(from) {
                    is_nan |= bits & 0x7f == 0x7f;
                    // The format has no -0.
                    *to = if *bits == 0x80 { 0 } else { *bits };
                }
                refuse_nan(is_nan)?;
            }
            Ok(())
        })
    }

    fn elements(&self, files: &Files, rows: Range<usize>, out: &mut [f32]) -> Result<(), String> {
        self.each(files, rows, |i, row, scales| {
            let out = &mut out[i * self.inputs..(i + 1) * self.inputs];
            for (column, (to, bits)) in out.iter_mut().zip(row).enumerate() {
                refuse_nan(bits & 0x7f == 0x7f)?;
                *to = value(*bits) * scales[column / self.scales.width];
            }
            Ok(())
        })
    }
}

fn refuse_nan(is_nan: bool) -> Result<(), String> {
    match is_nan {
        true => Err("a weight is NaN".to_string()),
        false => Ok(()),
    }
}

/// What a byte that is not NaN stands for.
pub(super) fn value(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits) >> 3 & 15, u32::from(bits) & 7);
    let magnitude = match exponent {
        0 => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20),
    };
    match bits & 0x80 {
        0 => magnitude,
        _ => -magnitude,
    }
}
