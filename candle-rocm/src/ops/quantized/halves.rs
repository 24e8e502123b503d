//! Quantized matrices times a few vectors, by matrix instructions on f16.

use super::matrix::{Activation, Epilogue, QuantizedMatrix};
use super::matvec::{check_pair, check_product, raw, result_bytes};
use super::select::{halves_in_low_tiles, FEW_MAX_COLUMNS};
use super::{Format, QuantizedActivations};
use crate::kernels::kernels;
use crate::{Buffer, DType, Device, Error, Family, Generation, LaunchConfig, Only, Result};
use candle_rocm_kernels::shared::quantized::{self as shared, Activations, Matvec, Output};

/// The formats that have kernels.
const FORMATS: [Format; 3] = [Format::Q4K, Format::Q5K, Format::Q6K];

kernels! {
    /// In tiles of one of two heights, for up to so many vectors.
    multiply = "matmul_halves_{tiles}_{columns}_{format}"
        [tiles: &'static str = ["tall", "low"], columns: u32 = [8, 16, 32], format: Format = FORMATS]
        in Family::MatmulHalves, part format, only Only::Matrix
        => (m: Matvec, x: Activations, output: Output);
}

const OP: &str = "quantized matmul";

/// What rows begin at multiples of, in bytes: they are copied as they lie.
const ALIGNMENT: usize = 16;

/// What a block of threads computes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiles {
    /// 64 rows, or 32 of two matrices each.
    Tall,
    /// 32 rows, in fewer steps.
    Low,
}

impl Tiles {
    fn name(self) -> &'static str {
        match self {
            Tiles::Tall => "tall",
            Tiles::Low => "low",
        }
    }

    fn rows(self) -> usize {
        match self {
            Tiles::Tall => 64,
            Tiles::Low => 32,
        }
    }

    /// Waves of a block: as many as it has parts of a step.
    fn waves(self, is_nvptx: bool) -> u32 {
        match self {
            Tiles::Low if !is_nvptx => 4,
            _ => 8,
        }
    }

    /// Dynamic LDS of a block on NVIDIA GPUs.
    fn nvptx_shared_bytes(self, columns: u32) -> u32 {
        match (self, columns) {
            (Tiles::Tall, 8) => shared::TALL_BYTES_8,
            (Tiles::Tall, 16) => shared::TALL_BYTES_16,
            (Tiles::Tall, _) => shared::TALL_BYTES_32,
            (Tiles::Low, 8) => shared::LOW_BYTES_8,
            (Tiles::Low, 16) => shared::LOW_BYTES_16,
            (Tiles::Low, _) => shared::LOW_BYTES_32,
        }
    }
}

/// Columns of the kernel for so many vectors.
fn columns_of(vectors: usize) -> u32 {
    match vectors {
        0..=8 => 8,
        9..=16 => 16,
        _ => 32,
    }
}

/// Why there is no kernel for a matrix, if there is none.
fn refusal(weights: &QuantizedMatrix) -> Result<Option<String>> {
    let row_bytes = weights.check(OP)?;
    let is_aligned = |bytes: usize| bytes.is_multiple_of(ALIGNMENT);
    Ok(if !FORMATS.contains(&weights.format) {
        Some(format!("{} is not multiplied as f16", weights.format))
    } else if !is_aligned(row_bytes) || !is_aligned(weights.address() as usize) {
        Some(format!(
            "rows of {row_bytes} bytes do not begin at multiples of {ALIGNMENT}"
        ))
    } else {
        None
    })
}

/// Whether a block may have as much LDS as the kernels want: some NVIDIA GPUs leave it 99 KiB (CUDA C++ Programming
/// Guide, "Compute Capabilities").
fn has_room(device: &Device) -> bool {
    let arch = device.properties().arch.to_string();
    !["sm_86", "sm_89", "sm_120", "sm_121"].contains(&arch.as_str())
}

/// The tiles for a matrix and so many vectors.
fn tiles_of(device: &Device, rows: usize, vectors: usize) -> Tiles {
    match halves_in_low_tiles(device, rows, vectors) {
        true => Tiles::Low,
        false => Tiles::Tall,
    }
}

/// Whether the GPU has the kernels for a matrix and so many vectors, and they give right results.
pub(super) fn works(device: &Device, weights: &QuantizedMatrix, vectors: usize) -> Result<bool> {
    let fits = vectors <= FEW_MAX_COLUMNS && refusal(weights)?.is_none();
    if !fits || device.matrix()?.is_none() || !has_room(device) {
        return Ok(false);
    }
    let kernel = |tiles: Tiles| multiply::of(tiles.name(), columns_of(vectors), weights.format);
    let tiles = tiles_of(device, weights.rows, vectors);
    // Two matrices at once are in tall ones.
    Ok(kernel(tiles)?.works(device)? && kernel(Tiles::Tall)?.works(device)?)
}

/// `weights · xᵀ` for up to [`FEW_MAX_COLUMNS`] vectors on a GPU with matrix instructions: `[columns, rows]` of `to`
/// (f32, f16 or bf16), after the epilogue in f32. Weights are rounded to f16, as are activations in their 8 bits, each
/// divided by a power of two that keeps it in f16's range; sums are in f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for more vectors, formats other than Q4_K, Q5_K and Q6_K, rows that do not begin at
/// multiples of 16 bytes, and GPUs without matrix instructions; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`],
/// [`Error::UnsupportedDType`], [`Error::OutOfBounds`].
pub fn halves(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let tiles = tiles_of(device, weights.rows, x.columns());
    in_tiles(device, tiles, (weights, None), x, epilogue, to)
}

/// `activation(gate · xᵀ) * (up · xᵀ)`, both matrices in one kernel: a feed-forward's first half. They have one format
/// and shape. Otherwise as [`halves`].
///
/// # Errors
/// Those of [`halves`].
pub fn gated_halves(
    device: &Device,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    x: &QuantizedActivations,
    activation: Activation,
    to: DType,
) -> Result<Buffer> {
    check_pair(OP, gate, up)?;
    let epilogue = Epilogue {
        activation: Some(activation),
        ..Epilogue::default()
    };
    in_tiles(device, Tiles::Tall, (gate, Some(up)), x, &epilogue, to)
}

/// [`halves`] in given tiles, of two matrices in tall ones only.
pub(crate) fn in_tiles(
    device: &Device,
    tiles: Tiles,
    (weights, up): (&QuantizedMatrix, Option<&QuantizedMatrix>),
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let refused = match x.columns() {
        columns if columns > FEW_MAX_COLUMNS => Some(format!(
            "{columns} vectors; the kernel for f16 takes at most {FEW_MAX_COLUMNS}, ops::quantized::matmul takes more"
        )),
        _ if device.matrix()?.is_none() => Some(format!(
            "{} has no matrix instructions, or they are switched off; use ops::quantized::matmul",
            device.properties().arch
        )),
        _ if !has_room(device) => Some(format!(
            "{} has less LDS for a block than the kernel for f16 needs; use ops::quantized::few",
            device.properties().arch
        )),
        _ => refusal(weights)?.or(up.map(refusal).transpose()?.flatten()),
    };
    if let Some(reason) = refused {
        return Err(Error::InvalidArgument { op: OP, reason });
    }
    check_product(OP, device, weights, x)?;
    if let Some(up) = up {
        check_product(OP, device, up, x)?;
    }
    let row_bytes = weights.check(OP)?;
    let shape = (x.columns(), weights.rows);
    let y = device.alloc(result_bytes(OP, shape, to)?)?;
    let output = epilogue.raw(OP, device, &y, to, shape)?;
    if y.is_empty() {
        return Ok(y);
    }
    let mut raw = raw(weights, row_bytes, 0);
    let mut rows = tiles.rows();
    if let Some(up) = up {
        raw.up = up.address();
        rows /= 2;
    }
    let columns = columns_of(x.columns());
    let is_nvptx = device.properties().arch.generation() == Generation::Nvptx;
    let blocks = weights.rows.div_ceil(rows);
    let config = LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block: tiles.waves(is_nvptx) * device.properties().wave_size,
        shared_bytes: match is_nvptx {
            true => tiles.nvptx_shared_bytes(columns),
            false => 0,
        },
    };
    let kernel = multiply::of(tiles.name(), columns, weights.format)?;
    // SAFETY: matrices and vectors were checked to fit together and to be on this device, as was what the output takes
    // along.
    unsafe { kernel.launch(device, config, raw, x.raw(), output)? };
    Ok(y)
}
