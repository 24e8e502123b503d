//! Rows and columns of a tensor in GGUF's order, or some of them.

use super::tensors::floats;
use worker::gguf::Format;

/// See the module; dimensions of 1 behind the first one go.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Picked {
    /// The first dimension in the file, and what is taken of it in this order.
    pub rows: Option<(usize, Vec<u32>)>,
    /// The same of the last one.
    pub columns: Option<(usize, Vec<u32>)>,
    /// Logarithms of rates become the rates, below zero.
    pub rates: bool,
}

impl Picked {
    /// Whether a tensor of this shape, outermost first, is one of those that are picked from.
    pub(super) fn fits(&self, shape: &[usize]) -> bool {
        let rows = self.rows.as_ref().map(|(all, _)| *all);
        let columns = self.columns.as_ref().map(|(all, _)| *all);
        rows.is_none_or(|all| shape[0] == all)
            && columns.is_none_or(|all| shape.len() == 2 && shape[1] == all)
    }

    /// Matrices stay as they are stored; vectors and convolutions are float32.
    pub(super) fn gives_floats(&self, shape: &[usize]) -> bool {
        shape.len() != 2
    }

    /// The shape that comes of one.
    pub(super) fn shape(&self, shape: &[usize]) -> Vec<usize> {
        let rest = shape[1..].iter().copied().filter(|d| *d > 1);
        let mut shape: Vec<usize> = [shape[0]].into_iter().chain(rest).collect();
        if let Some((_, rows)) = &self.rows {
            shape[0] = rows.len();
        }
        if let (Some((_, columns)), Some(last)) = (&self.columns, shape.last_mut()) {
            *last = columns.len();
        }
        shape
    }

    /// Whether blocks of this format stay whole, of a tensor of this shape.
    pub(super) fn moves_blocks(&self, format: Format, shape: &[usize]) -> bool {
        let columns = self.columns.as_ref();
        let whole = columns.is_none_or(|(_, all)| in_blocks(all, format.block_size()).is_some());
        !self.gives_floats(shape) && whole
    }

    /// The numbers that come of these, or the blocks.
    pub(super) fn apply(&self, data: &[u8], format: Format, shape: &[usize]) -> Vec<u8> {
        let row = data.len() / shape[0];
        let rows = match &self.rows {
            Some((_, rows)) => pick(data, row, rows),
            None => data.to_vec(),
        };
        let data = match &self.columns {
            Some((_, columns)) => {
                let blocks = in_blocks(columns, format.block_size()).unwrap_or_default();
                let rows = rows.chunks_exact(row);
                rows.flat_map(|one| pick(one, format.type_size(), &blocks))
                    .collect()
            }
            None => rows,
        };
        if !self.gives_floats(shape) {
            return data;
        }
        let data = floats(&data, format, 0.0);
        if !self.rates {
            return data;
        }
        let logarithms = data.chunks_exact(4);
        let rate = |b: &[u8]| -f32::from_le_bytes([b[0], b[1], b[2], b[3]]).exp();
        logarithms.flat_map(|b| rate(b).to_le_bytes()).collect()
    }
}

/// Columns by their blocks of so many, if those stay whole.
fn in_blocks(columns: &[u32], block: usize) -> Option<Vec<u32>> {
    let blocks = columns.chunks(block).map(|columns| {
        let follow = columns.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let first = columns[0] as usize;
        let whole = columns.len() == block && first.is_multiple_of(block) && follow;
        whole.then_some((first / block) as u32)
    });
    blocks.collect()
}

/// Pieces of so many bytes, those that are asked for in their order.
fn pick(data: &[u8], size: usize, places: &[u32]) -> Vec<u8> {
    let piece = |place: &u32| &data[*place as usize * size..(*place as usize + 1) * size];
    places.iter().flat_map(piece).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(picked: &Picked, values: &[f32], shape: &[usize]) -> (Vec<usize>, Vec<f32>) {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let out = picked.apply(&data, Format::F32, shape);
        let numbers = out.chunks_exact(4);
        let numbers = numbers.map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        (picked.shape(shape), numbers.collect())
    }

    #[test]
    fn rows_and_columns_change_places() {
        let numbers = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let rows = Picked {
            rows: Some((4, vec![2, 0])),
            ..Picked::default()
        };
        let expected = (vec![2, 2], vec![5.0, 6.0, 1.0, 2.0]);
        assert_eq!(picked(&rows, &numbers, &[4, 1, 2]), expected);
        assert!(!rows.fits(&[5, 2]));
        let columns = Picked {
            columns: Some((4, vec![3, 1])),
            ..Picked::default()
        };
        let expected = (vec![2, 2], vec![4.0, 2.0, 8.0, 6.0]);
        assert_eq!(picked(&columns, &numbers, &[2, 4]), expected);
        assert!(!columns.fits(&[4, 2]));
        assert!(!columns.moves_blocks(Format::F8E4M3, &[2, 4]));
        let halves = Picked {
            columns: Some((128, (64..128).chain(0..64).collect())),
            ..Picked::default()
        };
        assert!(halves.moves_blocks(Format::F8E4M3, &[1, 128]));
        let row: Vec<u8> = [[1; 68], [2; 68]].concat();
        let moved = halves.apply(&row, Format::F8E4M3, &[1, 128]);
        assert_eq!(moved, [[2; 68], [1; 68]].concat());
        let rates = Picked {
            rows: Some((2, vec![1, 0])),
            rates: true,
            ..Picked::default()
        };
        assert_eq!(picked(&rates, &[0.0, 1.0], &[2]).1, [-1f32.exp(), -1.0]);
    }
}
