//! From how many vectors on products of 8-bit floats are faster than what is chosen otherwise: measured on the GPU at
//! hand, as nothing else makes them a choice.

use super::crossovers::Crossovers;
use super::float8::multiplies_float8;
use super::linear::{check, linear_by, path_without_float8};
use super::tune::{random_weights, COLUMNS};
use super::{Epilogue, Format, Path, QuantizedMatrix};
use crate::measure::fastest;
use crate::{contiguous_strides, ops, DType, Device, Result, View};
use std::time::Duration;

/// What is faster for matrices of floats of 8 or 4 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Float8Crossover {
    /// Their format.
    pub format: Format,
    /// From how many vectors on 8-bit floats are the faster; none if they are not for the most.
    pub from: Option<usize>,
    /// What it was found by.
    pub timings: Vec<Float8Timing>,
}

/// One comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Float8Timing {
    /// Vectors that were multiplied.
    pub columns: usize,
    /// By 8-bit floats, the quantizing included.
    pub float8: Duration,
    /// By what is chosen otherwise, with activations as they are.
    pub other: Duration,
}

/// Measures products of a format with 8-bit floats by a matrix of `(rows, columns)` and remembers the result, for this process at once
/// and for later ones if there is a cache on disk; none for other formats, and on GPUs without such instructions.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for columns that are no whole blocks,
/// [`Error::Cache`](crate::Error::Cache) if the result cannot be written, and the device's.
pub fn tune_float8(
    device: &Device,
    format: Format,
    (rows, cols): (usize, usize),
) -> Result<Option<Float8Crossover>> {
    if !multiplies_float8(device, format)? {
        return Ok(None);
    }
    let weights = random_weights(device, format, rows, cols)?;
    let weights = QuantizedMatrix::new(format, &weights, rows, cols);
    let most = COLUMNS[COLUMNS.len() - 1];
    let x = ops::rand::normal(device, DType::F32, most * cols, 0.0, 1.0)?;
    let mut timings = Vec::new();
    for columns in COLUMNS {
        let shape = [columns, cols];
        let strides = contiguous_strides(&shape);
        let x = View::contiguous(&x, DType::F32, &shape, &strides);
        let columns = check(&weights, &x)?;
        let time = |path| {
            fastest(device, || {
                linear_by(device, path, &weights, (&x, columns), &Epilogue::default()).map(drop)
            })
        };
        timings.push(Float8Timing {
            columns,
            float8: time(Path::Float8)?,
            other: time(path_without_float8(device, &weights, columns, x.dtype)?)?,
        });
    }
    let from = first_gain(&timings);
    Crossovers::of(device).insert_float8(device.gpu(), format, from)?;
    Ok(Some(Float8Crossover {
        format,
        from,
        timings,
    }))
}

/// The smallest number of vectors from which on 8-bit floats are always the faster.
fn first_gain(timings: &[Float8Timing]) -> Option<usize> {
    let gains = timings.iter().rev().take_while(|t| t.float8 < t.other);
    gains.last().map(|timing| timing.columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_taken_from_where_they_win_for_good() {
        let from = |wins: [bool; 4]| {
            let micros = Duration::from_micros;
            let timings: Vec<Float8Timing> = (wins.iter().zip([16, 32, 64, 128]))
                .map(|(wins, columns)| Float8Timing {
                    columns,
                    float8: micros(if *wins { 1 } else { 3 }),
                    other: micros(2),
                })
                .collect();
            first_gain(&timings)
        };
        let [t, f] = [true, false];
        assert_eq!(from([t; 4]), Some(16));
        assert_eq!(from([t, f, t, t]), Some(64));
        assert_eq!(from([t, t, t, f]), None);
    }
}
