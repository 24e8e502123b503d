//! Quantized matrices times many vectors, in tiles of 8-bit integers.

use super::matrix::{Epilogue, QuantizedMatrix};
use super::matvec::{check_product, result_bytes, units};
use super::select::families;
use super::select::NARROW_COLUMNS;
use super::QuantizedActivations;
use super::{Format, INTEGERS};
use crate::kernels::kernels;
use crate::{Buffer, DType, Device, Generation, LaunchConfig, Result};
pub(in crate::ops) use candle_rocm_kernels::shared::quantized::Experts;
use candle_rocm_kernels::shared::quantized::{self as shared, Activations, Matmul, Output};

kernels! {
    /// In tiles of one of two sizes.
    multiply = "matmul_{tiling}_{format}" [tiling: &'static str = ["wide", "narrow"], format: Format = INTEGERS]
        in families(format).expect("it is quantized").matmul, part format
        => (m: Matmul, x: Activations, experts: Experts, output: Output);
}

const OP: &str = "quantized matmul";

/// A kernel's tile: rows of the matrix by columns, and waves that work on it.
pub(in crate::ops) struct Tiling {
    name: &'static str,
    rows: usize,
    pub(in crate::ops) columns: usize,
    waves: u32,
    /// Dynamic LDS of a block, on NVIDIA GPUs only.
    nvptx_shared_bytes: u32,
}

const WIDE: Tiling = Tiling {
    name: "wide",
    rows: shared::WIDE_ROWS as usize,
    columns: shared::WIDE_COLUMNS as usize,
    waves: shared::WIDE_WAVES,
    nvptx_shared_bytes: 0,
};
/// [`WIDE`] on NVIDIA GPUs.
const WIDER: Tiling = Tiling {
    name: "wide",
    rows: shared::WIDE_ROWS as usize,
    columns: shared::MMA_WIDE_COLUMNS as usize,
    waves: shared::MMA_WIDE_WAVES,
    nvptx_shared_bytes: shared::MMA_WIDE_BYTES,
};
const NARROW: Tiling = Tiling {
    name: "narrow",
    rows: shared::NARROW_ROWS as usize,
    columns: shared::NARROW_COLUMNS as usize,
    waves: shared::NARROW_WAVES,
    nvptx_shared_bytes: shared::MMA_NARROW_BYTES,
};

impl Tiling {
    /// For so many columns of one matrix.
    pub(in crate::ops) fn of(device: &Device, columns: usize) -> &'static Self {
        match columns <= NARROW_COLUMNS {
            true => &NARROW,
            false if device.properties().arch.generation() == Generation::Nvptx => &WIDER,
            false => &WIDE,
        }
    }
}

/// Whether the kernel for so many vectors gives right results.
pub(in crate::ops) fn works(device: &Device, format: Format, columns: usize) -> Result<bool> {
    multiply::of(Tiling::of(device, columns).name, format)?.works(device)
}

/// `weights · xᵀ` for any number of vectors: `[columns, rows]` of `to` (f32, f16 or bf16), after the epilogue in f32.
/// Uses matrix instructions on CDNA2, RDNA3 and later.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for plain formats;
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::OutOfBounds`](crate::Error::OutOfBounds).
pub fn matmul(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    check_product(OP, device, weights, x)?;
    let row_bytes = weights.check(OP)?;
    let shape = (x.columns(), weights.rows);
    let y = device.alloc(result_bytes(OP, shape, to)?)?;
    let tiling = Tiling::of(device, x.columns());
    let column_tiles = x.columns().div_ceil(tiling.columns);
    let output = epilogue.raw(OP, device, &y, to, shape)?;
    if !y.is_empty() {
        let work = Work {
            tiling,
            column_tiles,
            experts: Experts::NONE,
        };
        work.launch(device, weights, row_bytes, x, &output)?;
    }
    Ok(y)
}

/// A launch of the tiled kernel: with experts, `column_tiles` is how many there are at most.
pub(in crate::ops) struct Work<'a> {
    pub(in crate::ops) tiling: &'a Tiling,
    pub(in crate::ops) column_tiles: usize,
    pub(in crate::ops) experts: Experts,
}

impl Work<'_> {
    /// `weights` and `x` were checked, and `output` has a row for each column.
    pub(in crate::ops) fn launch(
        &self,
        device: &Device,
        weights: &QuantizedMatrix,
        row_bytes: usize,
        x: &QuantizedActivations,
        output: &Output,
    ) -> Result<()> {
        let tiling = self.tiling;
        let raw = Matmul {
            weights: weights.address(),
            row_bytes: row_bytes as u64,
            rows: weights.rows as u32,
            units: units(weights.format, weights.cols) as u32,
            column_tiles: self.column_tiles as u32,
        };
        let tiles = weights
            .rows
            .div_ceil(tiling.rows)
            .saturating_mul(self.column_tiles);
        let config = LaunchConfig {
            grid: tiles.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: tiling.waves * device.properties().wave_size,
            shared_bytes: match device.properties().arch.generation() == Generation::Nvptx {
                true => tiling.nvptx_shared_bytes,
                false => 0,
            },
        };
        let kernel = multiply::of(tiling.name, weights.format)?;
        // SAFETY: matrix and vectors were checked to fit together and to be on this device, as was what the output
        // takes along.
        unsafe { kernel.launch(device, config, raw, x.raw(), self.experts, *output) }
    }
}
