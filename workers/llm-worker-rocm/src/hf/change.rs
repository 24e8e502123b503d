//! What becomes of a tensor's numbers and shape on the way to GGUF.

use super::files::bytes_of;
use super::latent::{HeadPart, LatentSizes};
use super::names::TensorName;
use super::picked::Picked;
use half::{bf16, f16};
use worker::gguf::{Format, TensorInfo};

/// The tensors that one of a folder becomes, each with what changes it.
pub(super) type Places = Vec<(TensorName, Option<Change>)>;

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// Logarithms of rates become the rates, below zero; a vector becomes a column.
    Rates,
    /// A vector becomes a column.
    Column,
    /// Dimensions of 1 go.
    Squeezed,
    /// A vector becomes rows, one for each of so many groups.
    Groups(usize),
    /// A matrix becomes a vector.
    Flat,
    /// A matrix is turned, or those of a stack.
    Transposed,
    /// One of two halves of the rows.
    Half(usize),
    /// What heads have for keys or values of the one matrix for both.
    HeadPart(HeadPart, LatentSizes),
    /// Runs of rows have factors: how many rows, and the factor; the last run is as long as needed.
    Scaled(Vec<(usize, f64)>),
    /// Rows or columns in another order, or some of them.
    Picked(Picked),
}

impl Change {
    /// Why it cannot be made, if so.
    pub(super) fn refuses(&self, shape: &[usize]) -> Option<String> {
        let fits = match self {
            Self::Rates => matches!(shape.len(), 1 | 2),
            Self::Column => shape.len() == 1,
            Self::Squeezed | Self::Scaled(_) | Self::Flat => true,
            Self::Transposed => matches!(shape.len(), 2 | 3),
            Self::Groups(groups) => shape.len() == 1 && shape[0].is_multiple_of(*groups),
            Self::HeadPart(_, sizes) => shape == sizes.whole(),
            Self::Picked(picked) => picked.fits(shape),
            Self::Half(_) => shape.len() >= 2 && shape[shape.len() - 2].is_multiple_of(2),
        };
        (!fits).then(|| format!("a shape of {shape:?} is not expected"))
    }

    /// The tensor that comes of one of this format and shape, outermost first.
    pub(super) fn info(&self, format: Format, shape: &[usize]) -> TensorInfo {
        let format = match self.gives_floats(shape) {
            true => Format::F32,
            false => format,
        };
        let shape = self.shape(shape);
        let elements = shape.iter().product();
        TensorInfo {
            format,
            offset: 0,
            dims: shape.iter().rev().map(|d| *d as u64).collect(),
            bytes: bytes_of(format, elements) as u64,
        }
    }

    /// Whether it only moves rows, or blocks of this format, of a tensor of this shape.
    pub(super) fn moves_blocks(&self, format: Format, shape: &[usize]) -> bool {
        match self {
            Self::Half(_) => true,
            Self::HeadPart(part, _) => *part == HeadPart::Values,
            Self::Picked(picked) => picked.moves_blocks(format, shape),
            _ => false,
        }
    }

    /// Whether it leaves the columns of a matrix where they are.
    pub(super) fn keeps_columns(&self) -> bool {
        match self {
            Self::Half(_) => true,
            Self::Picked(picked) => picked.columns.is_none(),
            _ => false,
        }
    }

    /// Matrices stay as they are stored; the small ones of recurrences are float32.
    fn gives_floats(&self, shape: &[usize]) -> bool {
        match self {
            Self::HeadPart(..) => false,
            Self::Picked(picked) => picked.gives_floats(shape),
            Self::Half(_) | Self::Scaled(_) | Self::Transposed => shape.len() == 1,
            _ => true,
        }
    }

    /// Whether it is a matrix still, whose rows are some of a matrix's of this shape.
    pub(super) fn keeps_rows(&self, shape: &[usize]) -> bool {
        let is_of_rows = matches!(
            self,
            Self::Half(_) | Self::HeadPart(..) | Self::Scaled(_) | Self::Picked(_)
        );
        is_of_rows && !self.gives_floats(shape)
    }

    fn shape(&self, shape: &[usize]) -> Vec<usize> {
        match self {
            Self::Rates | Self::Column if shape.len() == 1 => vec![shape[0], 1],
            Self::Squeezed => shape.iter().copied().filter(|d| *d > 1).collect(),
            Self::Groups(groups) => vec![*groups, shape[0] / groups],
            Self::Picked(picked) => picked.shape(shape),
            Self::Flat => vec![shape.iter().product()],
            Self::Transposed => {
                let mut shape = shape.to_vec();
                let columns = shape.len() - 1;
                shape.swap(columns - 1, columns);
                shape
            }
            Self::HeadPart(part, sizes) => sizes.shape(*part),
            Self::Half(_) => {
                let mut shape = shape.to_vec();
                let rows = shape.len() - 2;
                shape[rows] /= 2;
                shape
            }
            _ => shape.to_vec(),
        }
    }

    /// The numbers that come of these.
    pub(super) fn apply(&self, data: &[u8], format: Format, shape: &[usize]) -> Vec<u8> {
        if let Self::Picked(picked) = self {
            return picked.apply(data, format, shape);
        }
        if let Self::Half(half) = self {
            let matrices: usize = shape[..shape.len() - 2].iter().product();
            let size = data.len() / matrices / 2;
            let halves = data.chunks_exact(size).skip(*half).step_by(2);
            return halves.flatten().copied().collect();
        }
        if let Self::HeadPart(part, sizes) = self {
            return sizes.take(*part, data, data.len() / shape[0]);
        }
        if *self == Self::Transposed {
            let (rows, columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
            let size = data.len() / shape.iter().product::<usize>();
            let mut turned = Vec::with_capacity(data.len());
            for matrix in data.chunks_exact(rows * columns * size) {
                for column in 0..columns {
                    for row in matrix.chunks_exact(columns * size) {
                        turned.extend_from_slice(&row[column * size..(column + 1) * size]);
                    }
                }
            }
            return turned;
        }
        let mut values = floats(data, format);
        match self {
            Self::Rates => values.iter_mut().for_each(|v| *v = -v.exp()),
            Self::Scaled(runs) => {
                let row = values.len() / shape[0];
                let mut rest = &mut values[..];
                for (i, (rows, factor)) in runs.iter().enumerate() {
                    let count = match i + 1 == runs.len() {
                        true => rest.len(),
                        false => (rows * row).min(rest.len()),
                    };
                    let (run, after) = rest.split_at_mut(count);
                    for value in run {
                        *value = (f64::from(*value) * factor) as f32;
                    }
                    rest = after;
                }
            }
            _ => {}
        }
        match format {
            _ if self.gives_floats(shape) => bytes(values, f32::to_le_bytes),
            Format::F16 => bytes(values, |v| f16::from_f32(v).to_le_bytes()),
            Format::BF16 => bytes(values, |v| bf16::from_f32(v).to_le_bytes()),
            _ => bytes(values, f32::to_le_bytes),
        }
    }
}

fn bytes<const N: usize>(values: Vec<f32>, of: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    values.into_iter().flat_map(of).collect()
}

fn floats(data: &[u8], format: Format) -> Vec<f32> {
    let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
    match format {
        Format::F16 => halves().map(|b| f16::from_le_bytes(b).to_f32()).collect(),
        Format::BF16 => halves().map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => data
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(change: &Change, values: &[f32], shape: &[usize]) -> (Vec<u64>, Vec<f32>) {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let info = change.info(Format::F32, shape);
        let out = change.apply(&data, Format::F32, shape);
        assert_eq!(info.bytes as usize, out.len());
        (info.dims, floats(&out, Format::F32))
    }

    #[test]
    fn shapes_and_numbers_change() {
        let (dims, values) = changed(&Change::Rates, &[0.0, 1.0], &[2]);
        assert_eq!(dims, [1, 2]);
        assert_eq!(values, [-1.0, -1f32.exp()]);
        let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let (dims, values) = changed(&Change::Half(1), &numbers, &[2, 2, 2]);
        assert_eq!((dims, values), (vec![2, 1, 2], vec![3.0, 4.0, 7.0, 8.0]));
        let scaled = Change::Scaled(vec![(1, 2.0), (0, 10.0)]);
        let (_, values) = changed(&scaled, &numbers[..6], &[3, 2]);
        assert_eq!(values, [2.0, 4.0, 30.0, 40.0, 50.0, 60.0]);
        let (dims, values) = changed(&Change::Transposed, &numbers, &[2, 2, 2]);
        assert_eq!(dims, [2, 2, 2]);
        assert_eq!(values, [1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]);
        let (dims, values) = changed(&Change::Transposed, &numbers[..6], &[2, 3]);
        assert_eq!(
            (dims, values),
            (vec![2, 3], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0])
        );
        assert_eq!(changed(&Change::Flat, &numbers, &[2, 4]).0, [8]);
        assert_eq!(changed(&Change::Squeezed, &numbers, &[2, 1, 4]).0, [4, 2]);
        assert_eq!(changed(&Change::Groups(2), &numbers, &[8]).0, [4, 2]);
        assert!(Change::Groups(3).refuses(&[8]).is_some());
        let halves = Change::Scaled(vec![(0, 3.0)]).info(Format::BF16, &[4, 2]);
        assert_eq!((halves.format, halves.bytes), (Format::BF16, 16));
    }
}
