//! Matrices turned.

use crate::parallel::{written, On, Shared, Threads};

/// Rows and columns that are turned at once.
const SIDE: usize = 8;

/// `x`, `(batch, rows, columns)`, as `(batch, columns, rows)`.
pub fn transposed(threads: &dyn Threads, x: &[f32], (rows, columns): (usize, usize)) -> Vec<f32> {
    if x.is_empty() {
        return Vec::new();
    }
    assert!(x.len().is_multiple_of(rows * columns));
    let batch = x.len() / (rows * columns);
    let bands = columns.div_ceil(SIDE);
    let band = |i: usize, out: Shared| {
        let start = i / bands * rows * columns;
        let first = i % bands * SIDE;
        let width = SIDE.min(columns - first);
        let from = &x[start + first..];
        // SAFETY: these lines of the output are this task's.
        let to = unsafe { out.pointer().add(start + first * rows) };
        let whole = if width == SIDE { rows / SIDE * SIDE } else { 0 };
        for row in (0..whole).step_by(SIDE) {
            let block: [&[f32]; SIDE] =
                std::array::from_fn(|i| &from[(row + i) * columns..][..SIDE]);
            (0..SIDE).for_each(|j| {
                let line: [f32; SIDE] = std::array::from_fn(|i| block[i][j]);
                // SAFETY: as above.
                unsafe {
                    to.add(j * rows + row)
                        .cast::<[f32; SIDE]>()
                        .write_unaligned(line)
                }
            });
        }
        for row in whole..rows {
            for (j, x) in from[row * columns..][..width].iter().enumerate() {
                // SAFETY: as above.
                unsafe { *to.add(j * rows + row) = *x }
            }
        }
    };
    // SAFETY: the bands are all lines.
    unsafe {
        written(x.len(), |out| {
            On::best(threads).for_each(batch * bands, x.len(), |i| band(i, out));
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rayon;

    #[test]
    fn every_element_finds_its_place() {
        for (batch, rows, columns) in [(1, 1, 1), (2, 8, 8), (3, 7, 30), (1, 130, 257), (2, 65, 3)]
        {
            let x: Vec<f32> = (0..batch * rows * columns).map(|i| i as f32).collect();
            for (i, found) in transposed(&Rayon, &x, (rows, columns)).iter().enumerate() {
                let (b, column, row) = (i / rows / columns, i / rows % columns, i % rows);
                assert_eq!(
                    *found,
                    x[(b * rows + row) * columns + column],
                    "{rows} {columns} {i}"
                );
            }
        }
        assert!(transposed(&Rayon, &[], (0, 3)).is_empty());
    }
}
