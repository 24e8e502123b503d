//! Quantized matrices times a few vectors.

use super::matrix::{check_blocks_of_32, check_u32, Epilogue, QuantizedMatrix};
use super::select::{has_integers, matvec_threads};
use super::{Activation, GgmlType, QuantizedActivations};
use crate::ops::cast::cast;
use crate::ops::copy::contiguous;
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Most vectors that [`matvec`] and [`gated_matvec`] multiply at once.
pub const MATVEC_MAX_COLUMNS: usize = 8;

const OP: &str = "quantized matvec";

/// The fields are those of `Matvec` in `quantized/matvec.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Raw {
    weights: u64,
    up: u64,
    rows: u32,
    units: u32,
    row_bytes: u64,
    lanes: u32,
}

impl Raw {
    /// For a checked matrix of `row_bytes` a row.
    pub(super) fn new(weights: &QuantizedMatrix, row_bytes: usize, lanes: u32) -> Self {
        Raw {
            weights: weights.address(),
            up: 0,
            rows: weights.rows as u32,
            units: units(weights.format, weights.cols) as u32,
            row_bytes: row_bytes as u64,
            lanes,
        }
    }
}

/// Units of a row: what one thread reads at a time, as in `quantized/quants.h`.
pub(super) fn units(format: GgmlType, cols: usize) -> usize {
    match format {
        GgmlType::Q2K | GgmlType::Q3K => cols / 64,
        _ => cols / 32,
    }
}

/// Refuses formats without integer kernels, and activations that do not fit.
pub(super) fn check_product(
    op: &'static str,
    device: &Device,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
) -> Result<()> {
    if !has_integers(weights.format) {
        return Err(Error::InvalidArgument {
            op,
            reason: format!(
                "there is no integer kernel for {}; multiply floats by ops::quantized::linear instead",
                weights.format
            ),
        });
    }
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
    Ok(())
}

/// Bytes of `columns` by `rows` results.
pub(super) fn result_bytes(
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

fn check_columns(columns: usize) -> Result<()> {
    if columns <= MATVEC_MAX_COLUMNS {
        return Ok(());
    }
    Err(Error::InvalidArgument {
        op: OP,
        reason: format!("{columns} vectors; it takes at most {MATVEC_MAX_COLUMNS}, ops::quantized::matmul takes more"),
    })
}

/// `weights · xᵀ` in one pass over the matrix: `[columns, rows]` of `to` (f32, f16 or bf16), after the epilogue in f32. Products are exact
/// integers within a scale, and are summed in f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for more than [`MATVEC_MAX_COLUMNS`] vectors and for formats without an integer kernel;
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

/// `activation(gate · xᵀ) * (up · xᵀ) + residual`, both matrices in one kernel: a feed-forward's first half. They have one format
/// and shape. Otherwise as [`matvec`].
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
    let (block, lanes) = matvec_threads(device, weights.format, columns, units);
    let mut raw = Raw::new(weights, row_bytes, lanes);
    raw.up = up.map_or(0, QuantizedMatrix::address);
    let pairs = match up {
        Some(_) => weights.rows,
        None => weights.rows.div_ceil(2),
    };
    let blocks = pairs.div_ceil((block / lanes) as usize);
    let name = format!("matvec_{}_{columns}", weights.format);
    device
        .kernel(matvec_family(weights.format), &name)?
        .launch(
            LaunchConfig {
                grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
                block,
                shared_bytes: 0,
            },
            &Args::new().value(&raw).value(&x.raw()).value(&output),
        )?;
    Ok(y)
}

fn matvec_family(format: GgmlType) -> Family {
    match format.block_size() {
        32 => Family::MatvecSmall,
        _ => Family::MatvecK,
    }
}

/// Threads of a block of the float kernels. Small blocks spread the few rows of a small matrix over more compute units.
const FLOAT_BLOCK: usize = 64;
/// Threads that share one row of the matrix there, as in `quantized/matvec.hip`.
const FLOAT_LANES: usize = 16;

/// The same for formats without integers: floats times floats. `x` is `[..., cols]` of f32, f16 or bf16, the result `[..., rows]` of f32.
///
/// # Errors
/// As [`matvec`].
pub(super) fn float_matvec(device: &Device, weights: &QuantizedMatrix, x: &View) -> Result<Buffer> {
    let columns: usize = x.dims[..x.dims.len().saturating_sub(1)].iter().product();
    check_columns(columns)?;
    check_blocks_of_32(OP, weights.cols)?;
    weights.check(OP)?;
    let y = device.alloc(result_bytes(OP, (columns, weights.rows), DType::F32)?)?;
    if y.is_empty() {
        return Ok(y);
    }
    let x = float_vectors(device, x)?;
    let name = format!(
        "matvec_float_{}_{}",
        weights.format,
        if columns == 1 { 1 } else { MATVEC_MAX_COLUMNS }
    );
    device.kernel(Family::Matvec, &name)?.launch(
        float_config(weights.rows),
        &Args::new()
            .u32(weights.rows as u32)
            .u32(weights.cols as u32)
            .u32(columns as u32)
            .ptr(weights.buffer, weights.offset)
            .ptr(&x, 0)
            .ptr(&y, 0),
    )?;
    Ok(y)
}

/// Blocks of the float kernels for `rows` products.
pub(super) fn float_config(rows: usize) -> LaunchConfig {
    let blocks = rows.div_ceil(FLOAT_BLOCK / FLOAT_LANES);
    LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block: FLOAT_BLOCK as u32,
        shared_bytes: 0,
    }
}

/// A contiguous f32 copy.
pub(super) fn float_vectors(device: &Device, x: &View) -> Result<Buffer> {
    check_u32(OP, "number of elements", x.elem_count())?;
    match x.dtype {
        DType::F32 => contiguous(device, x),
        DType::F16 | DType::BF16 => cast(device, x, DType::F32),
        dtype => Err(Error::UnsupportedDType { op: OP, dtype }),
    }
}
