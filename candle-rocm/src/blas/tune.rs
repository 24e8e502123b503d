//! Whether rocBLAS or our own kernels multiply faster, measured on the GPU at hand.

use super::backend::refusal;
use super::measured::{Class, Measured, Size};
use super::{multiply_by, Output};
use crate::config::Multiplier;
use crate::measure::fastest;
use crate::ops::rand::normal;
use crate::{DType, Device, Result, View};
use std::time::Duration;

/// Rows of the left operand by which a size is measured.
fn rows(size: Size) -> usize {
    match size {
        Size::Few => 1,
        Size::Narrow => 64,
        Size::Wide => 512,
    }
}

/// The dtypes and layouts that are measured: those of models, with weights stored row by row of their outputs or inputs.
const DTYPES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];
const TRANSPOSED: [[bool; 2]; 2] = [[false, true], [false, false]];

/// One comparison.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// What it stands for.
    pub class: Class,
    /// By rocBLAS.
    pub rocblas: Duration,
    /// By our own kernels.
    pub own: Duration,
    /// Who multiplies such products from now on.
    pub taken: Multiplier,
}

/// Measures products with a matrix of `(inner dimension, columns)` and remembers for each class which is the faster, for
/// this process at once and for later ones if there is a cache on disk. Nothing is measured where rocBLAS cannot work.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) if the result cannot be written, and the device's.
pub fn tune(device: &Device, (k, n): (usize, usize)) -> Result<Vec<Timing>> {
    let mut timings = Vec::new();
    if refusal(device).is_some() {
        return Ok(timings);
    }
    for dtype in DTYPES {
        for transposed in TRANSPOSED {
            for size in Size::ALL {
                timings.push(compare(device, dtype, transposed, (rows(size), n, k))?);
            }
        }
    }
    Ok(timings)
}

fn compare(
    device: &Device,
    dtype: DType,
    [_, right_transposed]: [bool; 2],
    (m, n, k): (usize, usize, usize),
) -> Result<Timing> {
    let left = normal(device, dtype, m * k, 0.0, 1.0)?;
    let right = normal(device, dtype, k * n, 0.0, 1.0)?;
    let out = device.alloc(m * n * dtype.size_in_bytes())?;
    let (dims, strides) = ([m, k], [k, 1]);
    let left = View::contiguous(&left, dtype, &dims, &strides);
    let right = View {
        buffer: &right,
        dtype,
        offset: 0,
        dims: &[k, n],
        strides: if right_transposed { &[1, k] } else { &[n, 1] },
    };
    let output = Output {
        buffer: &out,
        dtype,
        offset: 0,
        row_stride: n,
        batch_stride: m * n,
    };
    let time = |who| {
        fastest(device, || {
            multiply_by(device, Some(who), (1, m, n, k), &left, &right, &output)
        })
    };
    let (rocblas, own) = (time(Multiplier::Rocblas)?, time(Multiplier::Own)?);
    let taken = match own < rocblas {
        true => Multiplier::Own,
        false => Multiplier::Rocblas,
    };
    let class = Class::of(dtype, [false, right_transposed], m.min(n));
    Measured::of(device).insert(device.gpu(), class, taken)?;
    Ok(Timing {
        class,
        rocblas,
        own,
        taken,
    })
}

/// Forgets what was measured of a GPU.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) if the file cannot be removed.
pub fn forget(device: &Device) -> Result<()> {
    Measured::of(device).clear(device.gpu())
}
