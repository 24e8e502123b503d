//! 8-bit floats times 8-bit floats: activations, and matrices in blocks of floats times them.

use super::matrix::{check_u32, Epilogue, QuantizedMatrix};
use super::matvec::result_bytes;
use super::Format;
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::ops::cast::cast;
use crate::ops::copy::contiguous;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Only, Result, View};
use candle_rocm_kernels::shared::float8::{
    FloatActivations as Raw, FloatBlocks, FLOAT8_LARGE, FLOAT8_SMALL, FLOAT8_STEP, FLOAT8_THREADS,
};
use candle_rocm_kernels::shared::quantized::Output;
use float8::F8E4M3;

kernels! {
    /// Four elements each, `fours` times.
    quantize_floats = "quantize_float8_{dtype}" [dtype: DType = FLOATS] in Family::QuantizeFloats
        => (fours: u32, x: Ptr, bits: Ptr, scales: Ptr);

    /// In tiles of so many rows and columns.
    multiply = "matmul_float8_{edge}" [edge: u32 = [FLOAT8_LARGE, FLOAT8_SMALL]]
        in Family::MatmulFloat8, only Only::Float8 => (w: FloatBlocks, x: Raw, output: Output);
}

const OP: &str = "matmul of 8-bit floats";

/// The format whose matrices are multiplied.
pub(super) const FORMAT: Format = Format::F8E4M3;

/// Vectors of 8-bit floats (e4m3), to be multiplied with matrices of them: made once for all matrices of a layer that
/// share an input.
///
/// Each 64 neighbours share a scale, the largest magnitude over 448 in binary32, so that the error of an element is at
/// most its 16th part. Elements with NaN or an infinity beside them make every product of their vector NaN.
#[derive(Debug)]
pub struct FloatActivations {
    /// Floats of all vectors, then scales of all.
    buffer: Buffer,
    columns: usize,
    len: usize,
}

impl FloatActivations {
    /// Elements that share a scale.
    pub const BLOCK: usize = FLOAT8_STEP as usize;

    /// Quantizes `x` of `[..., k]`, f32, f16 or bf16, with `k` a multiple of 64.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for other dtypes, [`Error::InvalidArgument`] for other `k`, [`Error::TooLarge`]
    /// beyond 2^32 - 1 vectors or elements of one, or 2^34 elements of all.
    pub fn quantize(device: &Device, x: &View) -> Result<Self> {
        const OP: &str = "quantize to 8-bit floats";
        x.check(OP)?;
        if !matches!(x.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(Error::UnsupportedDType {
                op: OP,
                dtype: x.dtype,
            });
        }
        let Some((&len, outer)) = x.dims.split_last() else {
            return Err(Error::InvalidArgument {
                op: OP,
                reason: "a tensor without dimensions holds no vectors; give it at least one".into(),
            });
        };
        let columns: usize = outer.iter().product();
        let quantized = Self::alloc(OP, device, columns, len)?;
        let count = quantized.count();
        if count == 0 {
            return Ok(quantized);
        }
        let packed;
        let (source, offset) = if x.is_contiguous() {
            (x.buffer, x.offset * x.dtype.size_in_bytes())
        } else {
            packed = contiguous(device, x)?;
            (&packed, 0)
        };
        // SAFETY: the source has the vectors behind each other, and there is room for their floats and scales.
        unsafe {
            quantize_floats::of(x.dtype)?.launch(
                device,
                LaunchConfig::for_elements(count / 4),
                (count / 4) as u32,
                Ptr::at(source, offset),
                Ptr::to(&quantized.buffer),
                Ptr::at(&quantized.buffer, count),
            )?;
        }
        Ok(quantized)
    }

    /// Room for `columns` vectors of `len` values.
    pub(in crate::ops) fn alloc(
        op: &'static str,
        device: &Device,
        columns: usize,
        len: usize,
    ) -> Result<Self> {
        if !len.is_multiple_of(Self::BLOCK) {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "vectors of {len} elements; 8-bit floats have a scale for each {}",
                    Self::BLOCK
                ),
            });
        }
        check_u32(op, "number of vectors", columns)?;
        check_u32(op, "length of a vector", len)?;
        // Both are below 2^32. A thread handles four elements and counts them in 32 bits.
        let count = columns * len;
        if count / 4 > u32::MAX as usize {
            return Err(Error::TooLarge {
                op,
                what: "number of elements",
                value: count,
                limit: 4 * u32::MAX as usize,
            });
        }
        let buffer = device.alloc(count + count / Self::BLOCK * size_of::<f32>())?;
        Ok(FloatActivations {
            buffer,
            columns,
            len,
        })
    }

    /// The vectors as floats of a dtype, by way of the host: for where no kernel multiplies 8 bits rightly.
    pub(super) fn to_floats(&self, device: &Device, to: DType) -> Result<Buffer> {
        let mut bytes = vec![0; self.buffer.len()];
        device.download(&self.buffer, 0, &mut bytes)?;
        let (bits, scales) = bytes.split_at(self.count());
        let mut floats = Vec::with_capacity(bits.len() * size_of::<f32>());
        for (i, bits) in bits.iter().enumerate() {
            let scale = scales[i / Self::BLOCK * size_of::<f32>()..].first_chunk();
            let scale = scale.map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
            floats.extend((F8E4M3::from_bits(*bits).to_f32() * scale).to_le_bytes());
        }
        let floats = device.upload(&floats)?;
        let dims = [self.count()];
        cast(
            device,
            &View::contiguous(&floats, DType::F32, &dims, &[1]),
            to,
        )
    }

    /// Elements of all vectors, behind whose bytes the scales lie.
    fn count(&self) -> usize {
        self.columns * self.len
    }

    /// Number of vectors.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements of a vector.
    pub fn vector_len(&self) -> usize {
        self.len
    }

    /// The device memory that holds them.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    fn raw(&self) -> Raw {
        let bits = self.buffer.as_ptr().cast_const();
        Raw {
            bits: bits.cast(),
            scales: bits.wrapping_byte_add(self.count()).cast(),
            k: self.len as u32,
            columns: self.columns as u32,
        }
    }
}

/// Blocks of threads for each compute unit that hide each other's waiting.
const BLOCKS_PER_UNIT: usize = 2;

/// Rows and columns of the tiles for a product, and how many there are.
fn tiles(device: &Device, rows: usize, columns: usize) -> (u32, usize) {
    let of = |edge: u32| rows.div_ceil(edge as usize) * columns.div_ceil(edge as usize);
    let is_wide = rows.min(columns) > FLOAT8_SMALL as usize;
    let wanted = device.properties().units() * BLOCKS_PER_UNIT;
    match is_wide && of(FLOAT8_LARGE) >= wanted {
        true => (FLOAT8_LARGE, of(FLOAT8_LARGE)),
        false => (FLOAT8_SMALL, of(FLOAT8_SMALL)),
    }
}

/// Whether the GPU has instructions on 8-bit floats, and they are not switched off.
fn is_there(device: &Device) -> Result<bool> {
    Ok(device.properties().arch.has_float8() && device.matrix()?.is_some())
}

/// Whether the GPU multiplies matrices of a format as 8-bit floats, with right results.
///
/// # Errors
/// Those of compiling and verifying kernels.
pub fn multiplies_float8(device: &Device, format: Format) -> Result<bool> {
    let works = |edge| multiply::of(edge)?.works(device);
    Ok(format == FORMAT && is_there(device)? && works(FLOAT8_LARGE)? && works(FLOAT8_SMALL)?)
}

/// `weights · xᵀ` of 8-bit floats on a GPU with matrix instructions for them: `[columns, rows]` of `to` (f32, f16 or
/// bf16), after the epilogue in f32. Products are exact; sums of 64 are the instructions', then scaled and added in f32.
///
/// # Errors
/// [`Error::InvalidArgument`] for formats other than [`Format::F8E4M3`] and GPUs without such instructions;
/// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`], [`Error::UnsupportedDType`], [`Error::OutOfBounds`].
pub fn float8(
    device: &Device,
    weights: &QuantizedMatrix,
    x: &FloatActivations,
    epilogue: &Epilogue,
    to: DType,
) -> Result<Buffer> {
    let (edge, _) = tiles(device, weights.rows, x.columns());
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
    let refused = if weights.format != FORMAT {
        Some(format!(
            "{} is not multiplied as 8-bit floats",
            weights.format
        ))
    } else if !is_there(device)? {
        Some(format!(
            "{} has no matrix instructions on 8-bit floats, or they are switched off; use ops::quantized::linear",
            device.properties().arch
        ))
    } else {
        None
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
    unsafe { multiply::of(edge)?.launch(device, config, raw, x.raw(), output)? };
    Ok(y)
}
