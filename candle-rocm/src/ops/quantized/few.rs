//! Quantized matrices times a few vectors, by matrix instructions.

use super::matrix::{Epilogue, QuantizedMatrix};
use super::matvec::{check_product, result_bytes, units};
use super::select::{families, FEW_MAX_COLUMNS};
use super::{Format, QuantizedActivations, INTEGERS};
use crate::kernels::kernels;
use crate::{Buffer, DType, Device, Error, LaunchConfig, Only, Result};
use candle_rocm_kernels::shared::quantized::{Activations, Matmul, Output, FEW_WAVES};

kernels! {
    /// For up to so many vectors.
    multiply = "matmul_few_{columns}_{format}" [columns: u32 = [16, 32], format: Format = INTEGERS]
        in families(format).expect("it is quantized").matmul, part format, only Only::Matrix
        => (m: Matmul, x: Activations, output: Output);
}

const OP: &str = "quantized matmul";

/// Rows of the matrix that a block multiplies.
const ROWS: usize = 16;

/// The kernel for so many vectors.
fn kernel(format: Format, columns: usize) -> Result<multiply> {
    multiply::of(if columns <= 16 { 16 } else { 32 }, format)
}

/// Whether the GPU has the kernel for so many vectors and it gives right results.
pub(super) fn works(device: &Device, format: Format, columns: usize) -> Result<bool> {
    Ok(device.matrix()?.is_some() && kernel(format, columns)?.works(device)?)
}

/// `weights · xᵀ` for up to [`FEW_MAX_COLUMNS`] vectors on a GPU with matrix instructions: `[columns, rows]` of `to`
/// (f32, f16 or bf16), after the epilogue in f32. Products are exact integers within a scale, and are summed in f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for more vectors, plain formats, and GPUs without matrix instructions;
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::OutOfBounds`].
pub fn few(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let refused = match x.columns() {
        columns if columns > FEW_MAX_COLUMNS => Some(format!(
            "{columns} vectors; the kernel for few takes at most {FEW_MAX_COLUMNS}, ops::quantized::matmul takes more"
        )),
        _ if device.matrix()?.is_none() => Some(format!(
            "{} has no matrix instructions, or they are switched off; use ops::quantized::matmul",
            device.properties().arch
        )),
        _ => None,
    };
    if let Some(reason) = refused {
        return Err(Error::InvalidArgument { op: OP, reason });
    }
    check_product(OP, device, weights, x)?;
    let row_bytes = weights.check(OP)?;
    let shape = (x.columns(), weights.rows);
    let y = device.alloc(result_bytes(OP, shape, to)?)?;
    let output = epilogue.raw(OP, device, &y, to, shape)?;
    if y.is_empty() {
        return Ok(y);
    }
    let raw = Matmul {
        weights: weights.address(),
        row_bytes: row_bytes as u64,
        rows: weights.rows as u32,
        units: units(weights.format, weights.cols) as u32,
        column_tiles: 1,
    };
    let blocks = weights.rows.div_ceil(ROWS);
    let config = LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block: FEW_WAVES * device.properties().wave_size,
        shared_bytes: 0,
    };
    // SAFETY: matrix and vectors were checked to fit together and to be on this device, as was what the output takes
    // along.
    unsafe { kernel(weights.format, x.columns())?.launch(device, config, raw, x.raw(), output)? };
    Ok(y)
}
