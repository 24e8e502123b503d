//! Matrices of 8-bit floats times vectors of floats as they are: in one pass, a few by matrix instructions, in tiles.

use super::matmul::Experts;
use super::matrix::{check_u32, Epilogue, Output, QuantizedMatrix};
use super::matvec::{check_columns, check_pair, result_bytes};
use super::select::{floats_threads, FEW_MAX_COLUMNS, NARROW_COLUMNS};
use super::{Activation, Format, Path};
use crate::dtype::FLOATS;
use crate::kernels::kernels;
use crate::ops::copy::contiguous;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Only, Result, View};
use candle_rocm_kernels::shared::f8::{self as shared, Vectors};
use candle_rocm_kernels::shared::quantized::{Matmul, Matvec};
use std::ptr;

kernels! {
    /// In one pass, for up to so many vectors.
    multiply_once = "matvec_f8_e4m3_{dtype}_{columns}" [dtype: DType = FLOATS, columns: u32 = [1, 2, 4, 8]]
        in Family::MatvecF8, part dtype => (m: Matvec, x: Vectors, output: Output);

    /// By matrix instructions, for up to so many vectors.
    multiply_few = "matmul_few_{columns}_f8_e4m3_{dtype}" [columns: u32 = [16, 32], dtype: DType = FLOATS]
        in Family::MatmulF8, part dtype, only Only::Matrix => (m: Matmul, x: Vectors, output: Output);

    /// In tiles of one of two sizes.
    multiply_tiles = "matmul_{tiling}_f8_e4m3_{dtype}"
        [tiling: &'static str = ["wide", "narrow"], dtype: DType = FLOATS] in Family::MatmulF8, part dtype
        => (m: Matmul, x: Vectors, experts: Experts, output: Output);
}

const OP: &str = "product with 8-bit floats";

/// What vectors begin at multiples of, in bytes.
const ALIGNMENT: usize = 16;

/// Vectors as kernels take them: one behind the other, at an aligned address.
pub(in crate::ops) struct Packed {
    pub(in crate::ops) raw: Vectors,
    /// The copy, if one was needed.
    _copy: Option<Buffer>,
}

impl Packed {
    /// `x` of `[..., k]`, which was found to fit.
    pub(in crate::ops) fn new(device: &Device, x: &View, k: usize) -> Result<Self> {
        let outer = x.dims.split_last().map_or(x.dims, |(_, outer)| outer);
        let size = x.dtype.size_in_bytes();
        let start = x.buffer.as_ptr().wrapping_byte_add(x.offset * size);
        let lies_so = x.is_contiguous() && (start as usize).is_multiple_of(ALIGNMENT);
        let copy = match lies_so {
            true => None,
            false => Some(contiguous(device, x)?),
        };
        Ok(Packed {
            raw: Vectors {
                x: copy.as_ref().map_or(start, Buffer::as_ptr).cast_const(),
                stride: k as u32,
                columns: outer.iter().product::<usize>() as u32,
            },
            _copy: copy,
        })
    }
}

/// Verifies that a matrix of 8-bit floats and `x` of `[..., cols]` fit; gives the number of vectors.
fn check(device: &Device, weights: &QuantizedMatrix, x: &View) -> Result<usize> {
    x.check(OP)?;
    if weights.format != Format::F8E4M3 {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("the matrix is in {}, not in F8_E4M3", weights.format),
        });
    }
    if !FLOATS.contains(&x.dtype) {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: x.dtype,
        });
    }
    let Some((_, outer)) = x.dims.split_last().filter(|(k, _)| **k == weights.cols) else {
        return Err(Error::ShapeMismatch {
            op: OP,
            lhs: x.dims.to_vec(),
            rhs: vec![weights.rows, weights.cols],
        });
    };
    let buffers = [weights.buffer, x.buffer];
    if buffers.iter().any(|b| !b.device().same_device(device)) {
        return Err(Error::DeviceMismatch { op: OP });
    }
    let columns = outer.iter().product();
    check_u32(OP, "number of vectors", columns)?;
    Ok(columns)
}

/// `weights · xᵀ` in one pass over the matrix, `x` of `[..., cols]` (f32, f16 or bf16): `[columns, rows]` of x's dtype,
/// after the epilogue in f32. Products and sums are of f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for more than [`MATVEC_MAX_COLUMNS`](super::MATVEC_MAX_COLUMNS) vectors and for formats
/// other than F8_E4M3; [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::UnsupportedDType`],
/// [`Error::OutOfBounds`].
pub fn matvec_floats(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &View,
    epilogue: &Epilogue,
) -> Result<Buffer> {
    one_pass(device, weights, None, x, epilogue)
}

/// `activation(gate · xᵀ) * (up · xᵀ) + residual`, both matrices in one kernel: a feed-forward's first half. They have
/// one shape. Otherwise as [`matvec_floats`].
///
/// # Errors
/// Those of [`matvec_floats`].
pub fn gated_matvec_floats(
    device: &Device,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    x: &View,
    activation: Activation,
    residual: Option<View>,
) -> Result<Buffer> {
    check_pair(OP, gate, up)?;
    let epilogue = Epilogue {
        bias: None,
        activation: Some(activation),
        residual,
    };
    one_pass(device, gate, Some(up), x, &epilogue)
}

fn one_pass(
    device: &Device,
    weights: &QuantizedMatrix,
    up: Option<&QuantizedMatrix>,
    x: &View,
    epilogue: &Epilogue,
) -> Result<Buffer> {
    let columns = check(device, weights, x)?;
    check_columns(columns)?;
    let row_bytes = weights.check(OP)?;
    if let Some(up) = up {
        check(device, up, x)?;
        up.check(OP)?;
    }
    let shape = (columns, weights.rows);
    let y = device.alloc(result_bytes(OP, shape, x.dtype)?)?;
    let output = epilogue.raw(OP, device, &y, x.dtype, shape)?;
    if y.is_empty() {
        return Ok(y);
    }
    let columns = columns.next_power_of_two();
    let matrices = if up.is_some() { 2 } else { 1 };
    let groups = weights.rows.div_ceil(rows_at_once(columns) / matrices);
    let (raw, config) = pass(device, weights, row_bytes, columns, (groups, 1));
    let raw = Matvec {
        up: up.map_or(ptr::null(), QuantizedMatrix::address),
        ..raw
    };
    let x_raw = Packed::new(device, x, weights.cols)?;
    let kernel = multiply_once::of(x.dtype, columns as u32)?;
    // SAFETY: matrices and vectors were checked to fit together and to be on this device, as was what the output takes
    // along.
    unsafe { kernel.launch(device, config, raw, x_raw.raw, output)? };
    Ok(y)
}

/// Rows that lanes share in one pass over the matrix for so many vectors.
pub(in crate::ops) fn rows_at_once(columns: usize) -> usize {
    match columns {
        0..=2 => shared::F8_ROWS as usize,
        _ => shared::F8_ROWS_OF_MANY as usize,
    }
}

/// One pass over a matrix, or over one for each of so many slots, whose rows make so many groups.
pub(in crate::ops) fn pass(
    device: &Device,
    weights: &QuantizedMatrix,
    row_bytes: usize,
    columns: usize,
    (groups, slots): (usize, usize),
) -> (Matvec, LaunchConfig) {
    let units = weights.cols / shared::F8_UNIT as usize;
    let all = groups.saturating_mul(slots);
    let (block, lanes) = floats_threads(device, columns, all, units);
    let blocks = groups
        .div_ceil((block / lanes) as usize)
        .saturating_mul(slots);
    let raw = Matvec {
        weights: weights.address(),
        up: ptr::null(),
        rows: weights.rows as u32,
        units: units as u32,
        row_bytes: row_bytes as u64,
        lanes,
    };
    let config = LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block,
        shared_bytes: 0,
    };
    (raw, config)
}

/// The kernel of a few vectors for so many.
fn kernel_of_few(dtype: DType, columns: usize) -> Result<multiply_few> {
    multiply_few::of(if columns <= 16 { 16 } else { 32 }, dtype)
}

/// `weights · xᵀ` for up to [`FEW_MAX_COLUMNS`] vectors on a GPU with matrix instructions, whose sums are f32. Vectors
/// of f32 are multiplied as two numbers of bf16 each, which leave less than a 2^16th part of it; infinities among them
/// give NaN. Otherwise as [`matvec_floats`].
///
/// # Errors
/// Those of [`matvec_floats`], for more vectors and for GPUs without matrix instructions.
pub fn few_floats(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &View,
    epilogue: &Epilogue,
) -> Result<Buffer> {
    let columns = check(device, weights, x)?;
    let refused = match columns {
        columns if columns > FEW_MAX_COLUMNS => Some(format!(
            "{columns} vectors; the kernel for few takes at most {FEW_MAX_COLUMNS}, ops::quantized::matmul_floats takes more"
        )),
        _ if device.matrix()?.is_none() => Some(format!(
            "{} has no matrix instructions, or they are switched off; use ops::quantized::matmul_floats",
            device.properties().arch
        )),
        _ => None,
    };
    if let Some(reason) = refused {
        return Err(Error::InvalidArgument { op: OP, reason });
    }
    let row_bytes = weights.check(OP)?;
    let shape = (columns, weights.rows);
    let y = device.alloc(result_bytes(OP, shape, x.dtype)?)?;
    let output = epilogue.raw(OP, device, &y, x.dtype, shape)?;
    if y.is_empty() {
        return Ok(y);
    }
    let blocks = weights.rows.div_ceil(shared::F8_FEW_ROWS as usize);
    let config = LaunchConfig {
        grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
        block: shared::F8_FEW_WAVES * device.properties().wave_size,
        shared_bytes: 0,
    };
    let x_raw = Packed::new(device, x, weights.cols)?;
    let raw = tiles_of(weights, row_bytes, 1);
    // SAFETY: matrix and vectors were checked to fit together and to be on this device, as was what the output takes
    // along.
    unsafe {
        kernel_of_few(x.dtype, columns)?.launch(device, config, raw, x_raw.raw, output)?;
    }
    Ok(y)
}

/// A checked matrix of `row_bytes` a row, in so many tiles of columns.
fn tiles_of(weights: &QuantizedMatrix, row_bytes: usize, column_tiles: usize) -> Matmul {
    Matmul {
        weights: weights.address(),
        row_bytes: row_bytes as u64,
        rows: weights.rows as u32,
        units: (weights.cols / weights.format.block_size()) as u32,
        column_tiles: column_tiles as u32,
    }
}

/// A kernel's tile of columns.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Tiling {
    name: &'static str,
    pub(in crate::ops) columns: usize,
}

impl Tiling {
    /// For so many columns of one matrix.
    pub(in crate::ops) fn of(dtype: DType, columns: usize) -> Self {
        let (name, columns) = match dtype {
            _ if columns <= NARROW_COLUMNS => ("narrow", shared::F8_NARROW_COLUMNS),
            DType::F32 => ("wide", shared::F8_WIDE_COLUMNS_F32),
            _ => ("wide", shared::F8_WIDE_COLUMNS),
        };
        Tiling {
            name,
            columns: columns as usize,
        }
    }

    /// Whether its kernel gives right results.
    pub(in crate::ops) fn works(self, device: &Device, dtype: DType) -> Result<bool> {
        multiply_tiles::of(self.name, dtype)?.works(device)
    }

    /// Multiplies with `column_tiles` tiles of columns, with experts at most so many. `weights` and `x` were checked,
    /// and `output` has a row for each column.
    pub(in crate::ops) fn launch(
        self,
        device: &Device,
        (weights, row_bytes): (&QuantizedMatrix, usize),
        (x, dtype): (&Packed, DType),
        (column_tiles, experts): (usize, Experts),
        output: &Output,
    ) -> Result<()> {
        let tiles = weights
            .rows
            .div_ceil(shared::F8_TILE_ROWS as usize)
            .saturating_mul(column_tiles);
        let config = LaunchConfig {
            grid: tiles.min(LaunchConfig::MAX_GRID as usize) as u32,
            block: shared::F8_TILE_THREADS,
            shared_bytes: 0,
        };
        let raw = tiles_of(weights, row_bytes, column_tiles);
        let kernel = multiply_tiles::of(self.name, dtype)?;
        // SAFETY: matrix and vectors were checked to fit together and to be on this device, as was what the output
        // takes along.
        unsafe { kernel.launch(device, config, raw, x.raw, experts, *output) }
    }
}

/// `weights · xᵀ` for any number of vectors, in tiles: by matrix instructions as [`few_floats`] on CDNA2, RDNA3 and
/// later, in f32 elsewhere. Otherwise as [`matvec_floats`].
///
/// # Errors
/// Those of [`matvec_floats`], but for the number of vectors.
pub fn matmul_floats(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &View,
    epilogue: &Epilogue,
) -> Result<Buffer> {
    let columns = check(device, weights, x)?;
    let row_bytes = weights.check(OP)?;
    let shape = (columns, weights.rows);
    let y = device.alloc(result_bytes(OP, shape, x.dtype)?)?;
    let output = epilogue.raw(OP, device, &y, x.dtype, shape)?;
    if !y.is_empty() {
        let tiling = Tiling::of(x.dtype, columns);
        let packed = Packed::new(device, x, weights.cols)?;
        let work = (columns.div_ceil(tiling.columns), Experts::NONE);
        let matrix = (weights, row_bytes);
        tiling.launch(device, matrix, (&packed, x.dtype), work, &output)?;
    }
    Ok(y)
}

/// Whether a path's kernel for so many vectors of a dtype is there and gives right results.
pub(super) fn works(device: &Device, path: Path, columns: usize, dtype: DType) -> Result<bool> {
    match path {
        _ if columns == 0 => Ok(true),
        Path::Matvec => multiply_once::of(dtype, columns.next_power_of_two() as u32)?.works(device),
        Path::Few => {
            Ok(device.matrix()?.is_some() && kernel_of_few(dtype, columns)?.works(device)?)
        }
        Path::Matmul => Tiling::of(dtype, columns).works(device, dtype),
        Path::Halves | Path::Float8 => Ok(false),
        Path::Dequantize | Path::Bf16 => Ok(true),
    }
}

/// The product by one of the paths that have kernels here.
///
/// # Errors
/// Those of the path, and [`Error::InvalidArgument`] for another one.
pub(super) fn multiply_by(
    device: &Device,
    path: Path,
    weights: &QuantizedMatrix,
    x: &View,
    epilogue: &Epilogue,
) -> Result<Buffer> {
    match path {
        Path::Matvec => matvec_floats(device, weights, x, epilogue),
        Path::Few => few_floats(device, weights, x, epilogue),
        Path::Matmul => matmul_floats(device, weights, x, epilogue),
        path => Err(Error::InvalidArgument {
            op: OP,
            reason: format!("{path} has no kernels for F8_E4M3"),
        }),
    }
}
