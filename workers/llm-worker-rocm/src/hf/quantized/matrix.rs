//! A quantized matrix of a folder, made of tensors that lie in the files in another layout.

use crate::hf::files::{bytes_of, Files, Source};
use half::{bf16, f16};
use rayon::prelude::*;
use std::ops::Range;
use worker::gguf::Format;

/// Rows that are made at once: a layout whose neighbours in memory are outputs reads some of them together.
const CHUNK: usize = 64;

/// How the numbers of a matrix, or of a stack of matrices, lie in the files.
///
/// A stack's rows are counted through: row `i` is row `i % outputs` of matrix `i / outputs`. Values of scales and of
/// weights are checked while rows are made, for nobody reads a whole file before; what is wrong with them is told by
/// [`Err`], without the name of the tensor. Shapes and dtypes have been checked when the layout was made, so that no
/// access is out of range.
pub(in crate::hf) trait Layout: Send + Sync {
    /// The format in which a matrix loses least: one of blocks that holds the numbers exactly, else that of
    /// [`Layout::plain`].
    fn format(&self) -> Format;

    /// The format of plain numbers for what needs elements: F32, F16 or BF16.
    fn plain(&self) -> Format {
        Format::BF16
    }

    /// Writes some rows as blocks of [`Layout::format`]; only called if that has blocks.
    fn blocks(&self, files: &Files, rows: Range<usize>, out: &mut [u8]) -> Result<(), String>;

    /// Writes the elements of some rows, with all scales, in the order of the input.
    fn elements(&self, files: &Files, rows: Range<usize>, out: &mut [f32]) -> Result<(), String>;
}

/// See the module.
pub(in crate::hf) struct Matrix {
    /// Outermost first: `[outputs, inputs]`, or `[matrices, outputs, inputs]` of a stack.
    pub shape: Vec<usize>,
    pub layout: Box<dyn Layout>,
    /// What lies in the files of it.
    pub sources: Vec<Source>,
    /// What products with its blocks have to be multiplied with, one number for each matrix of a stack; elements have it
    /// already.
    pub scales: Option<Vec<f32>>,
    /// Column `i` of its blocks is this input; elements are in the order of the input.
    pub order: Option<Vec<u32>>,
}

impl Matrix {
    /// Elements of a row.
    pub(in crate::hf) fn inputs(&self) -> usize {
        *self.shape.last().unwrap_or(&0)
    }

    /// Bytes of a row in a format.
    pub(in crate::hf) fn row_bytes(&self, format: Format) -> usize {
        bytes_of(format, self.inputs())
    }

    /// Writes some rows in the layout's format, or as elements in one of plain numbers, on several threads.
    pub(in crate::hf) fn make(
        &self,
        files: &Files,
        format: Format,
        rows: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), String> {
        let row_bytes = self.row_bytes(format);
        let chunks = out.par_chunks_mut(CHUNK * row_bytes).enumerate();
        chunks.try_for_each(|(i, out)| {
            let first = rows.start + i * CHUNK;
            let rows = first..first + out.len() / row_bytes;
            if format.block_size() > 1 {
                return self.layout.blocks(files, rows, out);
            }
            let mut elements = vec![0.0; rows.len() * self.inputs()];
            self.layout.elements(files, rows, &mut elements)?;
            put_plain(&elements, format, out);
            Ok(())
        })
    }

    /// Writes some of the bytes that all rows have in a format.
    pub(in crate::hf) fn make_bytes(
        &self,
        files: &Files,
        format: Format,
        bytes: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), String> {
        let row = self.row_bytes(format);
        let rows = bytes.start / row..bytes.end.div_ceil(row);
        if rows.start * row == bytes.start && rows.end * row == bytes.end {
            return self.make(files, format, rows, out);
        }
        let mut whole = vec![0; rows.len() * row];
        let skipped = bytes.start - rows.start * row;
        self.make(files, format, rows, &mut whole)?;
        out.copy_from_slice(&whole[skipped..skipped + bytes.len()]);
        Ok(())
    }
}

/// Writes numbers in a format of plain numbers, rounded to nearest.
fn put_plain(values: &[f32], format: Format, out: &mut [u8]) {
    let halves = out.chunks_exact_mut(2).zip(values);
    match format {
        Format::F16 => halves.for_each(|(to, v)| {
            to.copy_from_slice(&f16::from_f32(*v).to_le_bytes());
        }),
        Format::BF16 => halves.for_each(|(to, v)| {
            to.copy_from_slice(&bf16::from_f32(*v).to_le_bytes());
        }),
        _ => {
            for (to, v) in out.chunks_exact_mut(4).zip(values) {
                to.copy_from_slice(&v.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row `i` is of `i`s: bytes as blocks, numbers as elements.
    struct Counted;

    impl Layout for Counted {
        fn format(&self) -> Format {
            Format::MXFP4
        }

        fn blocks(&self, _: &Files, rows: Range<usize>, out: &mut [u8]) -> Result<(), String> {
            let row = out.len() / rows.len();
            for (i, out) in rows.zip(out.chunks_exact_mut(row)) {
                out.fill(i as u8);
            }
            Ok(())
        }

        fn elements(&self, _: &Files, rows: Range<usize>, out: &mut [f32]) -> Result<(), String> {
            let row = out.len() / rows.len();
            for (i, out) in rows.zip(out.chunks_exact_mut(row)) {
                out.fill(i as f32);
            }
            Ok(())
        }
    }

    fn counted() -> Matrix {
        Matrix {
            shape: vec![2, 80, 64],
            layout: Box::new(Counted),
            sources: Vec::new(),
            scales: None,
            order: None,
        }
    }

    #[test]
    fn rows_are_made_in_chunks_and_parts() {
        let (matrix, files) = (counted(), Files::default());
        assert_eq!(matrix.row_bytes(Format::MXFP4), 34);
        let mut all = vec![0; 160 * 34];
        matrix
            .make(&files, Format::MXFP4, 0..160, &mut all)
            .unwrap();
        for (i, row) in all.chunks_exact(34).enumerate() {
            assert_eq!(row, [i as u8; 34]);
        }
        // From the middle of a row to that of another, and whole rows.
        for range in [50..34 * 90 + 3, 34 * 70..34 * 71, 3..4] {
            let mut part = vec![0; range.len()];
            let made = matrix.make_bytes(&files, Format::MXFP4, range.clone(), &mut part);
            made.unwrap();
            assert_eq!(part, all[range]);
        }
    }

    #[test]
    fn elements_become_plain_numbers() {
        let (matrix, files) = (counted(), Files::default());
        let row = |format: Format, bytes: &[u8]| {
            let size = 64 * bytes.len();
            let mut out = vec![0; size];
            matrix.make(&files, format, 3..4, &mut out).unwrap();
            assert_eq!(out, bytes.repeat(64));
        };
        row(Format::F32, &3f32.to_le_bytes());
        row(Format::F16, &f16::from_f32(3.0).to_le_bytes());
        row(Format::BF16, &bf16::from_f32(3.0).to_le_bytes());
    }
}
