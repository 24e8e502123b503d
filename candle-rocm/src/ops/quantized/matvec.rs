//! Quantized matrices times a few vectors.

use super::matrix::{Epilogue, QuantizedMatrix};
use super::select::{families, matvec_threads, Families, MATVEC_MAX_COLUMNS};
use super::{Activation, Format, QuantizedActivations, INTEGERS};
use crate::kernels::kernels;
use crate::{Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::quantized::{Activations, Matvec, Output};
use std::ptr;

kernels! {
    /// For up to so many vectors.
    multiply = "matvec_{format}_{columns}" [format: Format = INTEGERS, columns: u32 = [1, 2, 4, 8]]
        in families(format).expect("it is quantized").matvec, part format => (m: Matvec, x: Activations,
            output: Output);
}

const OP: &str = "quantized matvec";

/// As the kernels take a checked matrix of `row_bytes` a row.
pub(in crate::ops) fn raw(weights: &QuantizedMatrix, row_bytes: usize, lanes: u32) -> Matvec {
    Matvec {
        weights: weights.address(),
        up: ptr::null(),
        rows: weights.rows as u32,
        units: units(weights.format, weights.cols) as u32,
        row_bytes: row_bytes as u64,
        lanes,
    }
}

/// Units of a row: what one thread reads at a time.
pub(in crate::ops) fn units(format: Format, cols: usize) -> usize {
    match format {
        Format::Q2K | Format::Q3K => cols / 64,
        _ => cols / 32,
    }
}

/// The format's kernels, if the operands fit.
pub(in crate::ops) fn check_product(
    op: &'static str,
    device: &Device,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
) -> Result<Families> {
    let Some(families) = families(weights.format) else {
        return Err(Error::InvalidArgument {
            op,
            reason: format!(
                "{} is not a quantized format; multiply floats by ops::quantized::linear instead",
                weights.format
            ),
        });
    };
    if x.vector_len() != weights.cols {
        return Err(Error::ShapeMismatch {
            op,
            lhs: vec![x.columns(), x.vector_len()],
            rhs: vec![weights.rows, weights.cols],
        });
    }
    let buffers = [weights.buffer, x.buffer()];
    if buffers.iter().any(|b| !b.device().same_device(device)) {
        return Err(Error::DeviceMismatch { op });
    }
    Ok(families)
}

/// Bytes of `columns` by `rows` results.
pub(in crate::ops) fn result_bytes(
    op: &'static str,
    (columns, rows): (usize, usize),
    dtype: DType,
) -> Result<usize> {
    columns
        .checked_mul(rows)
        .and_then(|n| n.checked_mul(dtype.size_in_bytes()))
        .ok_or(Error::TooLarge {
            op,
            what: "number of results",
            value: columns.saturating_mul(rows),
            limit: usize::MAX / dtype.size_in_bytes(),
        })
}

/// Whether the kernel for so many vectors gives right results.
pub(super) fn works(device: &Device, format: Format, columns: usize) -> Result<bool> {
    multiply::of(format, columns.next_power_of_two() as u32)?.works(device)
}

pub(super) fn check_columns(columns: usize) -> Result<()> {
    if columns <= MATVEC_MAX_COLUMNS {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        op: OP,
        reason: format!("{columns} vectors; it takes at most {MATVEC_MAX_COLUMNS}, ops::quantized::matmul takes more"),
    })
}

/// `weights · xᵀ` in one pass over the matrix: `[columns, rows]` of `to` (f32, f16 or bf16), after the epilogue in f32.
/// Products are exact integers within a scale, and are summed in f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for more than [`MATVEC_MAX_COLUMNS`] vectors and for plain formats;
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::OutOfBounds`].
pub fn matvec(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    launch(device, weights, None, x, epilogue, to)
}

/// `activation(gate · xᵀ) * (up · xᵀ) + residual`, both matrices in one kernel: a feed-forward's first half. They have
/// one format and shape. Otherwise as [`matvec`].
///
/// # Errors
/// Those of [`matvec`].
pub fn gated_matvec(
    device: &Device,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    x: &QuantizedActivations,
    activation: Activation,
    residual: Option<View>,
    to: DType,
) -> Result<Buffer> {
    check_pair(OP, gate, up)?;
    let epilogue = Epilogue {
        bias: None,
        activation: Some(activation),
        residual,
    };
    launch(device, gate, Some(up), x, &epilogue, to)
}

/// Verifies that gate and up agree.
pub(super) fn check_pair(
    op: &'static str,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
) -> Result<()> {
    if (gate.rows, gate.cols) != (up.rows, up.cols) {
        return Err(Error::ShapeMismatch {
            op,
            lhs: vec![gate.rows, gate.cols],
            rhs: vec![up.rows, up.cols],
        });
    }
    if gate.format != up.format {
        return Err(Error::InvalidArgument {
            op,
            reason: format!(
                "gate is {} and up {}; they need one format, multiply them separately otherwise",
                gate.format, up.format
            ),
        });
    }
    Ok(())
}

fn launch(
    device: &Device,
    weights: &QuantizedMatrix,
    up: Option<&QuantizedMatrix>,
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    check_columns(x.columns())?;
    check_product(OP, device, weights, x)?;
    let row_bytes = weights.check(OP)?;
    if let Some(up) = up {
        up.check(OP)?;
        check_product(OP, device, up, x)?;
    }
    let shape = (x.columns(), weights.rows);
    let y = device.alloc(result_bytes(OP, shape, to)?)?;
    let output = epilogue.raw(OP, device, &y, to, shape)?;
    if y.is_empty() {
        return Ok(y);
    }
    let columns = x.columns().next_power_of_two();
    let units = units(weights.format, weights.cols);
    let pairs = match up {
        Some(_) => weights.rows,
        None => weights.rows.div_ceil(2),
    };
    let (block, lanes) = matvec_threads(device, weights.format, columns, pairs, units);
    let mut raw = raw(weights, row_bytes, lanes);
    raw.up = up.map_or(ptr::null(), QuantizedMatrix::address);
    let blocks = pairs.div_ceil((block / lanes) as usize);
    let config = LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block,
        shared_bytes: 0,
    };
    let kernel = multiply::of(weights.format, columns as u32)?;
    // SAFETY: matrices and vectors were checked to fit together and to be on this device, as was what the output takes
    // along.
    unsafe { kernel.launch(device, config, raw, x.raw(), output)? };
    Ok(y)
}
