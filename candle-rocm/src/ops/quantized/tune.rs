//! From how many vectors on rocBLAS is faster than tiles of our own: measured on the GPU at hand instead of taken from
//! the tables.
//!
//! The tables of `select.rs` know generations of GPUs; what is faster also hangs on the card and on the version of
//! rocBLAS.

use super::crossovers::Crossovers;
use super::format::DeviceFormat;
use super::linear::{check, linear_by};
use super::{few, floats};
use super::{Epilogue, Format, Path, QuantizedMatrix, FEW_MAX_COLUMNS, MATVEC_MAX_COLUMNS};
use crate::measure::fastest;
use crate::{contiguous_strides, ops, Buffer, DType, Device, Error, Result, View};
use std::time::Duration;

const OP: &str = "tune";

/// Numbers of vectors that are measured.
pub(super) const COLUMNS: [usize; 6] = [16, 32, 64, 128, 256, 512];

/// What is faster for a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossover {
    /// The format.
    pub format: Format,
    /// Up to how many vectors our own kernels are the faster; none if they always are.
    pub above: Option<usize>,
}

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Vectors that were multiplied.
    pub columns: usize,
    /// By integers, or as 8-bit floats: in tiles, or as a few.
    pub matmul: Duration,
    /// By rocBLAS on bf16, the dequantizing included.
    pub bf16: Duration,
}

/// Measures a format by a matrix of `(rows, columns)` and remembers the result, for this process at once and for later
/// ones if there is a cache on disk. Gives the crossover and what it was found by.
///
/// # Errors
/// [`Error::InvalidArgument`] for a format that is not [`Format::is_weight`] or columns that are no whole blocks,
/// [`Error::Cache`] if the result cannot be written, and the device's.
pub fn tune(
    device: &Device,
    format: Format,
    (rows, cols): (usize, usize),
) -> Result<(Crossover, Vec<Timing>)> {
    if !format.is_weight() {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("{format} is not a format of quantized weights"),
        });
    }
    let weights = random_weights(device, format, rows, cols)?;
    let weights = QuantizedMatrix::new(format, &weights, rows, cols);
    let most = COLUMNS[COLUMNS.len() - 1];
    // As vectors come to both ways: 8-bit floats are dequantized for those of 16 bits only.
    let (dtype, by_rocblas) = match format.has_integers() {
        true => (DType::F32, Path::Bf16),
        false => (DType::BF16, Path::Dequantize),
    };
    let x = ops::rand::normal(device, dtype, most * cols, 0.0, 1.0)?;
    let mut timings = Vec::new();
    for columns in COLUMNS {
        let shape = [columns, cols];
        let strides = contiguous_strides(&shape);
        let x = View::contiguous(&x, dtype, &shape, &strides);
        let columns = check(&weights, &x)?;
        let time = |path| {
            fastest(device, || {
                linear_by(device, path, &weights, (&x, columns), &Epilogue::default()).map(drop)
            })
        };
        let few = || match format.has_integers() {
            true => few::works(device, format, columns),
            false => floats::works(device, Path::Few, columns, dtype),
        };
        let own = match columns <= FEW_MAX_COLUMNS && few()? {
            true => Path::Few,
            false => Path::Matmul,
        };
        timings.push(Timing {
            columns,
            matmul: time(own)?,
            bf16: time(by_rocblas)?,
        });
    }
    let above = crossover(&timings);
    Crossovers::of(device).insert(device.gpu(), format, above)?;
    Ok((Crossover { format, above }, timings))
}

/// A matrix to measure with: any bytes are as good as others for time, but for NaN and infinity, which some hardware is
/// slow with.
pub(super) fn random_weights(
    device: &Device,
    format: Format,
    rows: usize,
    cols: usize,
) -> Result<Buffer> {
    let bytes = format.size_of(OP, rows.saturating_mul(cols))?;
    let weights: Vec<u8> = (0..bytes)
        .map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f)
        .collect();
    device.upload(&weights)
}

/// Forgets what was measured of a GPU.
///
/// # Errors
/// [`Error::Cache`] if the file cannot be removed.
pub fn forget(device: &Device) -> Result<()> {
    Crossovers::of(device).clear(device.gpu())
}

/// The largest number of vectors for which integers are the faster; none if they are for the most vectors.
fn crossover(timings: &[Timing]) -> Option<usize> {
    let last = timings.iter().rev().find(|t| t.matmul <= t.bf16);
    match last {
        Some(timing) if timing.columns == COLUMNS[COLUMNS.len() - 1] => None,
        Some(timing) => Some(timing.columns),
        None => Some(MATVEC_MAX_COLUMNS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_that_integers_win_counts() {
        let timings = |wins: [bool; 6]| -> Vec<Timing> {
            let micros = Duration::from_micros;
            COLUMNS
                .iter()
                .zip(wins)
                .map(|(&columns, wins)| Timing {
                    columns,
                    matmul: micros(if wins { 1 } else { 3 }),
                    bf16: micros(2),
                })
                .collect()
        };
        assert_eq!(crossover(&timings([true; 6])), None);
        assert_eq!(crossover(&timings([false; 6])), Some(MATVEC_MAX_COLUMNS));
        let [t, f] = [true, false];
        assert_eq!(crossover(&timings([t, f, t, f, f, f])), Some(64));
    }
}
