//! Quantized matrices times a few vectors.

use super::GgmlType;
use crate::ops::copy::copy_strided;
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Most vectors that [`matvec`] multiplies at once. Beyond, dequantizing the matrix once pays.
pub const MATVEC_MAX_COLUMNS: usize = 8;

/// Threads of a block of the matrix-vector kernels. Small blocks spread the few rows of a small matrix over more compute units.
const MATVEC_BLOCK: usize = 64;

/// Threads that share one row of the matrix, as in `quantized/matvec.hip`.
const MATVEC_LANES: usize = 16;

/// `x · weightsᵀ` for a quantized matrix of `rows` by `cols` and up to [`MATVEC_MAX_COLUMNS`] vectors: f32 `x` of
/// `[..., cols]` gives f32 `[..., rows]`. Products are summed in f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for plain formats, rows that end inside a block, or more vectors;
/// [`Error::ShapeMismatch`] if the last dimension of `x` is not `cols`; [`Error::UnsupportedDType`] if `x` is not f32.
pub fn matvec(
    device: &Device,
    format: GgmlType,
    weights: &Buffer,
    rows: usize,
    cols: usize,
    x: &View,
) -> Result<Buffer> {
    const OP: &str = "quantized matvec";
    x.check(OP)?;
    if x.dtype != DType::F32 {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: x.dtype,
        });
    }
    if x.dims.last() != Some(&cols) {
        return Err(Error::ShapeMismatch {
            op: OP,
            lhs: x.dims.to_vec(),
            rhs: vec![rows, cols],
        });
    }
    let columns: usize = x.dims[..x.dims.len() - 1].iter().product();
    if columns > MATVEC_MAX_COLUMNS || format.plain().is_some() {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!(
                "a {format} matrix times {columns} vectors; it takes block formats and at most {MATVEC_MAX_COLUMNS} vectors, dequantize and multiply instead"
            ),
        });
    }
    for (what, value) in [("row count", rows), ("column count", cols)] {
        if value > u32::MAX as usize {
            return Err(Error::TooLarge {
                op: OP,
                what,
                value,
                limit: u32::MAX as usize,
            });
        }
    }
    // Rows are whole blocks, so that each starts at a block.
    let row_bytes = format.size_of(OP, cols)?;
    // Both factors are below 2^32.
    format.check(OP, weights, rows * cols)?;
    let bytes = columns * rows * size_of::<f32>();
    if bytes == 0 || row_bytes == 0 {
        return device.alloc_zeroed(bytes);
    }
    let output = device.alloc(bytes)?;
    let packed;
    let (x_buffer, x_offset) = if x.is_contiguous() {
        (x.buffer, x.offset * size_of::<f32>())
    } else {
        packed = device.alloc(x.elem_count() * size_of::<f32>())?;
        copy_strided(device, x, &packed, 0)?;
        (&packed, 0)
    };
    let name = format!("matvec_{format}_{}", columns.next_power_of_two());
    let blocks = rows.div_ceil(MATVEC_BLOCK / MATVEC_LANES);
    device.kernel(Family::Matvec, &name)?.launch(
        LaunchConfig {
            grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: MATVEC_BLOCK as u32,
            shared_bytes: 0,
        },
        &Args::new()
            .u32(rows as u32)
            .u32(cols as u32)
            .u32(columns as u32)
            .ptr(weights, 0)
            .ptr(x_buffer, x_offset)
            .ptr(&output, 0),
    )?;
    Ok(output)
}
