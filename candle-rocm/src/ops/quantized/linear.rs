//! Quantized matrices times vectors of floats, by whichever path is the fastest.

use super::few::{self, few};
use super::float8::{float8, multiplies_float8};
use super::float_activations::{FloatActivations, Scaling};
use super::floats;
use super::halves::{self, gated_halves, halves};
use super::matrix::{check_blocks_of_32, Epilogue, QuantizedMatrix};
use super::matvec::check_pair;
use super::select::{
    choose, choose_floats, few_gain, float8_gain, halves_gain, Path, FEW_MAX_COLUMNS,
    MATVEC_MAX_COLUMNS,
};
use super::{dequantize, gated_matvec, gated_matvec_floats, matmul, matvec};
use super::{Activation, Format, QuantizedActivations};
use crate::blas::{matmul_into, Output};
use crate::ops::binary::{binary, BinaryOp};
use crate::ops::cast::cast;
use crate::ops::unary::{unary, UnaryOp};
use crate::{contiguous_strides, Buffer, DType, Device, Error, Result, View};

const OP: &str = "quantized matmul";

/// `x · weightsᵀ` for `x` of `[..., cols]`, f32, f16 or bf16: `[..., rows]` in x's dtype, after the epilogue.
/// `CANDLE_ROCM_QMATMUL` forces a path.
///
/// # Errors
/// [`Error::ShapeMismatch`], [`Error::UnsupportedDType`], [`Error::OutOfBounds`]; [`Error::InvalidArgument`] if the
/// forced path does not exist or cannot take the format or number of vectors.
pub fn linear(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &View,
    epilogue: &Epilogue,
) -> Result<Buffer> {
    let columns = check(weights, x)?;
    let path = path(device, weights, columns, x.dtype)?;
    linear_by(device, path, weights, (x, columns), epilogue)
}

/// [`linear`] by a path that can take the operands; [`check`] has given the number of vectors.
pub(super) fn linear_by(
    device: &Device,
    path: Path,
    weights: &QuantizedMatrix,
    (x, columns): (&View, usize),
    epilogue: &Epilogue,
) -> Result<Buffer> {
    match path {
        by @ (Path::Dequantize | Path::Bf16) => {
            let operands = match by {
                Path::Bf16 => DType::BF16,
                _ => x.dtype,
            };
            let y = multiply_dequantized(device, weights, x, columns, operands)?;
            finish(device, y, x.dtype, (columns, weights.rows), epilogue)
        }
        Path::Float8 => {
            let x8 = FloatActivations::quantize(device, x, scaling(weights.format)?)?;
            float8(device, weights, &x8, epilogue, x.dtype)
        }
        path if !weights.format.has_integers() => {
            floats::multiply_by(device, path, weights, x, epilogue)
        }
        path => {
            let quantized = QuantizedActivations::quantize(device, x)?;
            linear_quantized_by(device, path, weights, &quantized, epilogue, x.dtype)
        }
    }
}

/// Whether [`linear`] multiplies `columns` vectors of a dtype as floats, so that there is nothing to share by
/// quantizing them before.
///
/// # Errors
/// [`Error::InvalidArgument`] if the forced path does not exist or cannot take the format or number of vectors.
pub fn multiplies_floats(
    device: &Device,
    weights: &QuantizedMatrix,
    columns: usize,
    dtype: DType,
) -> Result<bool> {
    let path = path(device, weights, columns, dtype)?;
    let floats = !weights.format.has_integers();
    Ok(floats || matches!(path, Path::Dequantize | Path::Bf16 | Path::Float8))
}

/// Whether [`linear`] multiplies `columns` vectors as 8-bit floats, so that matrices with a common input share the work
/// by [`linear_float8`].
///
/// # Errors
/// Those of [`multiplies_float8`].
pub fn takes_float8(device: &Device, weights: &QuantizedMatrix, columns: usize) -> Result<bool> {
    if columns <= MATVEC_MAX_COLUMNS {
        return Ok(false);
    }
    let wanted = match device.config().quantized {
        Some(forced) => forced == Path::Float8,
        None => float8_gain(device, weights.format, columns),
    };
    Ok(wanted && multiplies_float8(device, weights.format)?)
}

/// How vectors are scaled that meet a matrix of a format as 8-bit floats.
fn scaling(format: Format) -> Result<Scaling> {
    Scaling::of(format).ok_or_else(|| Error::InvalidArgument {
        op: OP,
        reason: format!("{format} is not multiplied as 8-bit floats"),
    })
}

/// [`linear`] for vectors of 8-bit floats made before; the result is of `to`. As other floats where that is not the path
/// any more.
///
/// # Errors
/// Those of [`linear`].
pub fn linear_float8(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &FloatActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    if Scaling::of(weights.format) == Some(x.scaling())
        && multiplies_float8(device, weights.format)?
    {
        return float8(device, weights, x, epilogue, to);
    }
    let floats = x.to_floats(device, to)?;
    let dims = [x.columns(), x.vector_len()];
    let strides = contiguous_strides(&dims);
    let view = View::contiguous(&floats, to, &dims, &strides);
    linear(device, weights, &view, epilogue)
}

/// [`linear`] for vectors quantized before, so that matrices with a common input share the work; the result is of `to`.
/// Not for plain formats.
///
/// # Errors
/// Those of [`linear`].
pub fn linear_quantized(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let path = path(device, weights, x.columns(), to)?;
    linear_quantized_by(device, path, weights, x, epilogue, to)
}

fn linear_quantized_by(
    device: &Device,
    path: Path,
    weights: &QuantizedMatrix,
    x: &QuantizedActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let as_floats = || {
        let floats = x.to_floats(device, to)?;
        let dims = [x.columns(), x.vector_len()];
        let strides = contiguous_strides(&dims);
        let view = View::contiguous(&floats, to, &dims, &strides);
        linear_by(device, path, weights, (&view, x.columns()), epilogue)
    };
    match path {
        _ if !weights.format.has_integers() => as_floats(),
        Path::Matvec => matvec(device, weights, x, epilogue, to),
        Path::Few => few(device, weights, x, epilogue, to),
        Path::Halves => halves(device, weights, x, epilogue, to),
        Path::Dequantize | Path::Bf16 | Path::Float8
            if !matmul::works(device, weights.format, x.columns())? =>
        {
            as_floats()
        }
        // There are no floats to multiply any more.
        Path::Matmul | Path::Dequantize | Path::Bf16 | Path::Float8 => {
            matmul(device, weights, x, epilogue, to)
        }
    }
}

/// `activation(x · gateᵀ) * (x · upᵀ)`, in x's dtype: a feed-forward's first half. One kernel where one pass over the
/// matrices takes all vectors.
///
/// # Errors
/// Those of [`linear`].
pub fn gated(
    device: &Device,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    x: &View,
    activation: Activation,
) -> Result<Buffer> {
    check_pair(OP, gate, up)?;
    let columns = check(gate, x)?;
    if !multiplies_floats(device, gate, columns, x.dtype)? {
        let quantized = QuantizedActivations::quantize(device, x)?;
        return gated_quantized(device, gate, up, &quantized, activation, x.dtype);
    }
    if path(device, gate, columns, x.dtype)? == Path::Matvec {
        return gated_matvec_floats(device, gate, up, x, activation, None);
    }
    if takes_float8(device, gate, columns)? {
        let x8 = FloatActivations::quantize(device, x, scaling(gate.format)?)?;
        return gated_float8(device, gate, up, &x8, activation, x.dtype);
    }
    let activated = Epilogue {
        activation: Some(activation),
        ..Epilogue::default()
    };
    let gate = linear(device, gate, x, &activated)?;
    let shape = (columns, up.rows);
    let up = linear(device, up, x, &Epilogue::default())?;
    multiply(device, &gate, &up, shape, x.dtype)
}

/// [`gated`] for vectors of 8-bit floats made before; the result is of `to`. Otherwise as [`linear_float8`].
///
/// # Errors
/// Those of [`linear`].
pub fn gated_float8(
    device: &Device,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    x: &FloatActivations,
    activation: Activation,
    to: DType,
) -> Result<Buffer> {
    check_pair(OP, gate, up)?;
    let activated = Epilogue {
        activation: Some(activation),
        ..Epilogue::default()
    };
    let shape = (x.columns(), up.rows);
    let gate = linear_float8(device, gate, x, &activated, to)?;
    let up = linear_float8(device, up, x, &Epilogue::default(), to)?;
    multiply(device, &gate, &up, shape, to)
}

/// [`gated`] for vectors quantized before; the result is of `to`. Not for plain formats.
///
/// # Errors
/// Those of [`linear`].
pub fn gated_quantized(
    device: &Device,
    gate: &QuantizedMatrix,
    up: &QuantizedMatrix,
    x: &QuantizedActivations,
    activation: Activation,
    to: DType,
) -> Result<Buffer> {
    check_pair(OP, gate, up)?;
    match path(device, gate, x.columns(), to)? {
        _ if !gate.format.has_integers() => {}
        Path::Matvec => return gated_matvec(device, gate, up, x, activation, None, to),
        Path::Halves => return gated_halves(device, gate, up, x, activation, to),
        _ => {}
    }
    let activated = Epilogue {
        activation: Some(activation),
        ..Epilogue::default()
    };
    let shape = (x.columns(), up.rows);
    let gate = linear_quantized(device, gate, x, &activated, to)?;
    let up = linear_quantized(device, up, x, &Epilogue::default(), to)?;
    multiply(device, &gate, &up, shape, to)
}

fn multiply(
    device: &Device,
    gate: &Buffer,
    up: &Buffer,
    (columns, rows): (usize, usize),
    dtype: DType,
) -> Result<Buffer> {
    let shape = [columns, rows];
    let strides = contiguous_strides(&shape);
    let view = |buffer| View::contiguous(buffer, dtype, &shape, &strides);
    binary(device, BinaryOp::Mul, &view(gate), &view(up))
}

/// Verifies that the operands fit; gives the number of vectors.
pub(super) fn check(weights: &QuantizedMatrix, x: &View) -> Result<usize> {
    x.check(OP)?;
    if !matches!(x.dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: x.dtype,
        });
    }
    let Some((&len, outer)) = x.dims.split_last().filter(|(len, _)| **len == weights.cols) else {
        return Err(Error::ShapeMismatch {
            op: OP,
            lhs: x.dims.to_vec(),
            rhs: vec![weights.rows, weights.cols],
        });
    };
    weights.check(OP)?;
    if weights.format.block_size() > 1 {
        check_blocks_of_32(OP, len)?;
    }
    Ok(outer.iter().product())
}

/// The path that is forced, if it can take the operands, or else the one that is chosen.
fn path(device: &Device, weights: &QuantizedMatrix, columns: usize, dtype: DType) -> Result<Path> {
    if takes_float8(device, weights, columns)? {
        return Ok(Path::Float8);
    }
    path_without_float8(device, weights, columns, dtype)
}

/// The same as if there were no products of 8-bit floats.
pub(super) fn path_without_float8(
    device: &Device,
    weights: &QuantizedMatrix,
    columns: usize,
    dtype: DType,
) -> Result<Path> {
    let forced = device.config().quantized;
    let Some(forced) = forced.filter(|forced| *forced != Path::Float8) else {
        let format = weights.format;
        if format.block_size() > 1 && !format.has_integers() {
            let chosen = choose_floats(device, columns, dtype);
            return usable_floats(device, chosen, columns, dtype);
        }
        if halves_gain(device, format, weights.rows, columns)
            && halves::works(device, weights, columns)?
        {
            return Ok(Path::Halves);
        }
        if few_gain(device, format, columns) && few::works(device, format, columns)? {
            return Ok(Path::Few);
        }
        let chosen = choose(device, weights.format, columns, dtype);
        return usable(device, chosen, weights.format, columns, dtype);
    };
    let plain = weights.format.block_size() == 1;
    let reason = match forced {
        Path::Matvec if columns > super::MATVEC_MAX_COLUMNS => format!(
            "{columns} vectors, and matvec takes at most {}",
            super::MATVEC_MAX_COLUMNS
        ),
        Path::Few | Path::Halves if columns > FEW_MAX_COLUMNS => {
            format!("{columns} vectors, and {forced} takes at most {FEW_MAX_COLUMNS}")
        }
        Path::Matvec | Path::Few | Path::Halves | Path::Matmul if plain => {
            format!("{} is not a quantized format", weights.format)
        }
        Path::Halves if !weights.format.has_integers() => {
            format!("{} has no integers", weights.format)
        }
        _ => return Ok(forced),
    };
    Err(Error::InvalidArgument {
        op: OP,
        reason: format!(
            "{} forces a path that cannot do this: {reason}; set it to auto",
            Path::VARIABLE
        ),
    })
}

/// The path that is chosen, or the next whose kernels are not switched off.
fn usable(
    device: &Device,
    chosen: Path,
    format: Format,
    columns: usize,
    dtype: DType,
) -> Result<Path> {
    if columns == 0 || chosen == Path::Matvec && matvec::works(device, format, columns)? {
        return Ok(chosen);
    }
    let by_tiles = matches!(chosen, Path::Matvec | Path::Matmul);
    if by_tiles && matmul::works(device, format, columns)? {
        return Ok(Path::Matmul);
    }
    Ok(match (by_tiles, dtype) {
        (false, _) => chosen,
        (true, DType::F32) => Path::Bf16,
        (true, _) => Path::Dequantize,
    })
}

/// The same of a matrix of 8-bit floats.
fn usable_floats(device: &Device, chosen: Path, columns: usize, dtype: DType) -> Result<Path> {
    for path in [chosen, Path::Matmul] {
        if floats::works(device, path, columns, dtype)? {
            return Ok(path);
        }
    }
    Ok(Path::Dequantize)
}

/// Most bytes of a matrix that are floats at a time: large enough for rocBLAS to fill a device, small beside a model.
const FLOATS_BYTES: usize = 128 << 20;
/// Rows of rocBLAS's largest tiles, of which a part of a matrix has a whole number.
const TILE: usize = 256;

/// Matrix and vectors as `operands`, then rocBLAS: `[columns, rows]` in x's dtype.
fn multiply_dequantized(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &View,
    columns: usize,
    operands: DType,
) -> Result<Buffer> {
    let (rows, k) = (weights.rows, weights.cols);
    let row_bytes = weights.check(OP)?;
    let bytes = columns * rows * x.dtype.size_in_bytes();
    if bytes == 0 || k == 0 {
        return device.alloc_zeroed(bytes);
    }
    let y = device.alloc(bytes)?;
    let packed = cast(device, x, operands)?;
    let (shape, strides) = ([columns, k], [k, 1]);
    let lhs = View::contiguous(&packed, operands, &shape, &strides);
    let step = (FLOATS_BYTES / (k * operands.size_in_bytes())).max(TILE) / TILE * TILE;
    for first in (0..rows).step_by(step) {
        let n = step.min(rows - first);
        let offset = weights.offset + first * row_bytes;
        let floats = dequantize(
            device,
            weights.format,
            weights.buffer,
            offset,
            n * k,
            operands,
        )?;
        let rhs = View {
            buffer: &floats,
            dtype: operands,
            offset: 0,
            dims: &[k, n],
            strides: &[1, k],
        };
        let output = Output {
            buffer: &y,
            dtype: x.dtype,
            offset: first,
            row_stride: rows,
            batch_stride: columns * rows,
        };
        matmul_into(device, (1, columns, n, k), &lhs, &rhs, &output)?;
    }
    Ok(y)
}

/// The epilogue by separate kernels.
fn finish(
    device: &Device,
    mut y: Buffer,
    dtype: DType,
    (columns, rows): (usize, usize),
    epilogue: &Epilogue,
) -> Result<Buffer> {
    // For its checks; the addresses are not used.
    epilogue.raw(OP, device, &y, dtype, (columns, rows))?;
    let shape = [columns, rows];
    let strides = contiguous_strides(&shape);
    if let Some(bias) = epilogue.bias {
        let repeated = View {
            dims: &shape,
            strides: &[0, 1],
            ..bias
        };
        let sum = View::contiguous(&y, dtype, &shape, &strides);
        y = binary(device, BinaryOp::Add, &sum, &repeated)?;
    }
    if let Some(activation) = epilogue.activation {
        let op = match activation {
            Activation::Silu => UnaryOp::Silu,
            Activation::Gelu => UnaryOp::Gelu,
            Activation::GeluErf => UnaryOp::GeluErf,
        };
        y = unary(device, op, &View::contiguous(&y, dtype, &shape, &strides))?;
    }
    if let Some(residual) = epilogue.residual {
        let residual = View {
            dims: &shape,
            strides: &strides,
            ..residual
        };
        let sum = View::contiguous(&y, dtype, &shape, &strides);
        y = binary(device, BinaryOp::Add, &sum, &residual)?;
    }
    Ok(y)
}
