//! Parts of tensors.

use std::ops::Range;
use worker::gguf::TensorInfo;

/// What a shard has of a tensor that it does not have whole.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cut {
    /// A part of it.
    Part(Part),
    /// Zeros: another shard brings what is to be added once.
    Zeros,
    /// Nothing, for the same reason.
    Nothing,
}

/// Some elements of a tensor along one of its dimensions.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    /// The tensor's name in the file.
    pub of: String,
    /// Which dimension, the innermost being 0.
    pub dim: usize,
    /// Elements along it; along the innermost, whole blocks of the tensor's format.
    pub ranges: Vec<Range<usize>>,
}

impl Part {
    /// Elements along the dimension.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(|range| range.len()).sum()
    }

    /// What the header says of the part of a tensor.
    pub fn info(&self, whole: &TensorInfo) -> TensorInfo {
        let mut dims = whole.dims.clone();
        let all = std::mem::replace(&mut dims[self.dim], self.len() as u64);
        TensorInfo {
            dims,
            format: whole.format,
            offset: 0,
            bytes: whole.bytes * self.len() as u64 / all,
        }
    }

    /// Its bytes among those of the whole tensor.
    pub fn bytes(&self, whole: &TensorInfo) -> Vec<Range<usize>> {
        let dims: Vec<usize> = whole.dims.iter().map(|d| *d as usize).collect();
        let (block, size) = (whole.format.block_size(), whole.format.type_size());
        // Elements of a step along the dimension, and its bytes.
        let (elements, step) = match self.dim {
            0 => (block, size),
            dim => (1, dims[..dim].iter().product::<usize>() / block * size),
        };
        let count = dims[self.dim] / elements;
        let outer: usize = dims[self.dim + 1..].iter().product();
        let mut bytes: Vec<Range<usize>> = Vec::new();
        for first in (0..outer).map(|index| index * count) {
            for range in &self.ranges {
                let start = (first + range.start / elements) * step;
                let end = (first + range.end / elements) * step;
                match bytes.last_mut() {
                    Some(last) if last.end == start => last.end = end,
                    _ => bytes.push(start..end),
                }
            }
        }
        bytes
    }
}

#[cfg(test)]
// Ranges are what is compared.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use worker::gguf::Format;

    fn tensor(format: Format, dims: &[u64]) -> TensorInfo {
        let elements: u64 = dims.iter().product();
        TensorInfo {
            dims: dims.to_vec(),
            format,
            offset: 64,
            bytes: elements / format.block_size() as u64 * format.type_size() as u64,
        }
    }

    fn part(dim: usize, ranges: &[Range<usize>]) -> Part {
        Part {
            of: "x".to_string(),
            dim,
            ranges: ranges.to_vec(),
        }
    }

    #[test]
    fn rows_lie_behind_each_other() {
        let whole = tensor(Format::Q8_0, &[64, 10]);
        let rows = part(1, &[2..5]);
        assert_eq!(rows.bytes(&whole), [2 * 68..5 * 68]);
        let info = rows.info(&whole);
        assert_eq!((&info.dims[..], info.bytes), (&[64, 3][..], 3 * 68));
        // Neighbours are one piece.
        assert_eq!(part(1, &[0..2, 2..3]).bytes(&whole), [0..3 * 68]);
    }

    #[test]
    fn columns_are_blocks_of_each_row() {
        let whole = tensor(Format::Q8_0, &[96, 2]);
        let columns = part(0, &[32..96]);
        assert_eq!(columns.bytes(&whole), [34..3 * 34, 4 * 34..6 * 34]);
        assert_eq!(columns.info(&whole).bytes, 4 * 34);
    }

    #[test]
    fn parts_of_experts_are_parts_of_each() {
        let whole = tensor(Format::F32, &[2, 4, 3]);
        let rows = part(1, &[0..1, 2..3]);
        let bytes = rows.bytes(&whole);
        assert_eq!(bytes, [0..8, 16..24, 32..40, 48..56, 64..72, 80..88]);
        assert_eq!(rows.info(&whole).dims, [2, 2, 3]);
        assert_eq!(part(2, &[1..2]).bytes(&whole), [32..64]);
    }
}
