//! Linear layers.

use crate::lanes::Level;
use crate::parallel::{written, On, Threads};
use crate::product::{multiply_all, Bias, Columns, Job};
use std::ops::Range;

/// The columns of a matrix whose rows they are.
struct Transposed<'a> {
    matrix: &'a [f32],
    depth: usize,
}

impl Columns for Transposed<'_> {
    unsafe fn pack(
        &self,
        _: Level,
        depth: Range<usize>,
        columns: Range<usize>,
        width: usize,
        to: *mut f32,
    ) {
        turn(self.matrix.as_ptr(), self.depth, depth, columns, width, to);
    }
}

/// Rows `columns` of a matrix, `stride` apart, as columns: lines `depth` of them, each `width` long.
///
/// # Safety
/// The matrix has these rows, and `to` these lines.
pub(crate) unsafe fn turn(
    matrix: *const f32,
    stride: usize,
    depth: Range<usize>,
    columns: Range<usize>,
    width: usize,
    to: *mut f32,
) {
    const SIDE: usize = 8;
    let count = columns.len();
    let rows = matrix.add(columns.start * stride + depth.start);
    for first in (0..width).step_by(SIDE) {
        // Behind the last column its numbers stand once more: nobody reads the sums.
        let from: [*const f32; SIDE] =
            std::array::from_fn(|i| rows.wrapping_add((first + i).min(count - 1) * stride));
        for k in 0..depth.len() {
            let line: [f32; SIDE] = std::array::from_fn(|i| *from[i].add(k));
            to.add(k * width + first)
                .cast::<[f32; SIDE]>()
                .write_unaligned(line);
        }
    }
}

/// `x`, `(rows, inputs)`, times the transpose of `weight`, `(outputs, inputs)`, plus `bias`, `outputs`: `(rows, outputs)`.
/// Without bias, nothing is added.
pub fn linear(
    threads: &dyn Threads,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    inputs: usize,
) -> Vec<f32> {
    linear_at(On::best(threads), x, weight, bias, inputs)
}

pub(crate) fn linear_at(
    on: On,
    x: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    inputs: usize,
) -> Vec<f32> {
    assert!(inputs > 0 && x.len().is_multiple_of(inputs) && weight.len().is_multiple_of(inputs));
    let (rows, outputs) = (x.len() / inputs, weight.len() / inputs);
    assert!(bias.is_none_or(|bias| bias.len() == outputs));
    let job = Job {
        depth: inputs,
        left: (x, inputs),
        right: &Transposed {
            matrix: weight,
            depth: inputs,
        },
        out: (0, outputs),
        rows,
        columns: outputs,
        bias: bias.map(Bias::Columns),
    };
    // SAFETY: sizes are checked above.
    unsafe { written(rows * outputs, |out| multiply_all(on, &[job], out)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{all, numbers};

    #[test]
    fn products_are_sums_of_products() {
        for on in all() {
            let level = on.level;
            for (rows, inputs, outputs) in [
                (1, 1, 1),
                (3, 5, 7),
                (13, 515, 65),
                (70, 1030, 129),
                (257, 24, 96),
                (5, 16, 300),
            ] {
                let (x, w, b) = (
                    numbers(rows * inputs, 1),
                    numbers(outputs * inputs, 2),
                    numbers(outputs, 3),
                );
                for bias in [None, Some(b.as_slice())] {
                    let out = linear_at(on, &x, &w, bias, inputs);
                    for (i, found) in out.iter().enumerate() {
                        let (row, column) = (i / outputs, i % outputs);
                        let expected: f64 = (0..inputs)
                            .map(|k| {
                                f64::from(x[row * inputs + k]) * f64::from(w[column * inputs + k])
                            })
                            .sum::<f64>()
                            + bias.map_or(0.0, |b| f64::from(b[column]));
                        let apart = (f64::from(*found) - expected).abs();
                        assert!(
                            apart < 1e-5 * (inputs as f64).sqrt(),
                            "{level:?} {rows} {inputs} {outputs} {i}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_in_its_row() {
        for on in all() {
            let mut x = vec![1f32; 3 * 20];
            x[20] = f32::NAN;
            x[40] = f32::INFINITY;
            let out = linear_at(on, &x, &vec![0.5; 17 * 20], None, 20);
            assert!(out[..17].iter().all(|x| *x == 10.0), "{:?}", on.level);
            assert!(out[17..34].iter().all(|x| x.is_nan()));
            assert!(out[34..].iter().all(|x| *x == f32::INFINITY));
        }
    }
}
