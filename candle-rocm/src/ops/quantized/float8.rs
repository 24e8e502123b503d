//! Matrices of 8-bit floats, or of 4-bit floats in MX blocks, times vectors of 8-bit floats.

use super::float_activations::{FloatActivations, Scaling};
use super::matrix::{Epilogue, QuantizedMatrix};
use super::matvec::result_bytes;
use super::Format;
use crate::kernels::kernels;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Only, Result};
use candle_rocm_kernels::shared::float8::{
    FloatActivations as Raw, FloatBlocks, MxActivations, FLOAT8_LARGE, FLOAT8_SMALL, FLOAT8_THREADS,
};
use candle_rocm_kernels::shared::quantized::Output;

kernels! {
    /// In tiles of so many rows and columns.
    multiply = "matmul_float8_{edge}" [edge: u32 = [FLOAT8_LARGE, FLOAT8_SMALL]]
        in Family::MatmulFloat8, only Only::Float8 => (w: FloatBlocks, x: Raw, output: Output);

    /// The same of 4-bit floats, with MX scales.
    multiply_mx = "matmul_mx_{edge}" [edge: u32 = [FLOAT8_LARGE, FLOAT8_SMALL]]
        in Family::MatmulMx, only Only::Mx => (w: FloatBlocks, x: MxActivations, output: Output);
}

const OP: &str = "matmul of 8-bit floats";

/// Blocks of threads for each compute unit that hide each other's waiting.
const BLOCKS_PER_UNIT: usize = 2;

/// Rows and columns of the tiles that suit a product.
fn edge(device: &Device, rows: usize, columns: usize) -> u32 {
    let tiles = |edge: usize| rows.div_ceil(edge).saturating_mul(columns.div_ceil(edge));
    let is_wide = rows.min(columns) > FLOAT8_SMALL as usize;
    let wanted = device.properties().units() * BLOCKS_PER_UNIT;
    match is_wide && tiles(FLOAT8_LARGE as usize) >= wanted {
        true => FLOAT8_LARGE,
        false => FLOAT8_SMALL,
    }
}

/// Whether the GPU multiplies matrices of a format as 8-bit floats, with right results.
///
/// # Errors
/// Those of compiling and verifying kernels.
pub fn multiplies_float8(device: &Device, format: Format) -> Result<bool> {
    let Some(scaling) = Scaling::of(format) else {
        return Ok(false);
    };
    let works = |edge| match scaling {
        Scaling::Steps => multiply::of(edge)?.works(device),
        Scaling::Mx => multiply_mx::of(edge)?.works(device),
    };
    Ok(scaling.is_there(device)? && works(FLOAT8_LARGE)? && works(FLOAT8_SMALL)?)
}

/// `weights · xᵀ` by matrix instructions on 8-bit floats, or on 4-bit floats times these: `[columns, rows]` of `to`
/// (f32, f16 or bf16), after the epilogue in f32. Products are exact; sums of 64 are the instructions', then scaled and
/// added in f32. MX scales are the instructions' as well.
///
/// # Errors
/// [`Error::InvalidArgument`] for formats other than [`Format::F8E4M3`] and [`Format::MXFP4`], vectors scaled for
/// another one, and GPUs without such instructions; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`],
/// [`Error::UnsupportedDType`], [`Error::OutOfBounds`].
pub fn float8(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &FloatActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let edge = edge(device, weights.rows, x.columns());
    in_tiles(device, edge, weights, x, epilogue, to)
}

/// [`float8`] in given tiles.
pub(crate) fn in_tiles(
    device: &Device,
    edge: u32,
    weights: &QuantizedMatrix,
    x: &FloatActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let format = weights.format;
    let refused = match Scaling::of(format) {
        None => Some(format!("{format} is not multiplied as 8-bit floats")),
        Some(scaling) if scaling != x.scaling() => {
            Some(format!("{format} is multiplied with vectors in {scaling:?}, not in {:?}", x.scaling()))
        }
        Some(scaling) if !scaling.is_there(device)? => Some(format!(
            "{} has no matrix instructions on 8-bit floats for {format}, or they are switched off; use ops::quantized::linear",
            device.properties().arch
        )),
        _ => None,
    };
    if let Some(reason) = refused {
        return Err(Error::InvalidArgument { op: OP, reason });
    }
    if x.vector_len() != weights.cols {
        return Err(Error::ShapeMismatch {
            op: OP,
            lhs: vec![x.columns(), x.vector_len()],
            rhs: vec![weights.rows, weights.cols],
        });
    }
    let buffers = [weights.buffer, x.buffer()];
    if buffers.iter().any(|b| !b.device().same_device(device)) {
        return Err(Error::DeviceMismatch { op: OP });
    }
    let row_bytes = weights.check(OP)?;
    let shape = (x.columns(), weights.rows);
    let y = device.alloc(result_bytes(OP, shape, to)?)?;
    let output = epilogue.raw(OP, device, &y, to, shape)?;
    if y.is_empty() {
        return Ok(y);
    }
    let raw = FloatBlocks {
        weights: weights.address(),
        row_bytes: row_bytes as u64,
        rows: weights.rows as u32,
        blocks: (weights.cols / x.scaling().block()) as u32,
    };
    let side = |count: usize| count.div_ceil(edge as usize);
    let blocks = side(weights.rows).saturating_mul(side(x.columns()));
    let config = LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block: FLOAT8_THREADS,
        shared_bytes: 0,
    };
    // SAFETY: matrix and vectors were checked to fit together and to be on this device, as was what the output takes
    // along.
    unsafe {
        match x.scaling() {
            Scaling::Steps => multiply::of(edge)?.launch(device, config, raw, x.raw(), output)?,
            Scaling::Mx => {
                multiply_mx::of(edge)?.launch(device, config, raw, x.raw_mx(), output)?
            }
        }
    }
    Ok(y)
}
