//! Activations in 8 bits.

use super::matrix::{check_blocks_of_32, check_u32};
use crate::ops::copy::contiguous;
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Vectors are padded with zeros to a multiple of this, the step of the tiled product (`K_STEP` in `quantized/matmul.h`).
const PADDING: usize = 128;

/// Bytes of a block's scale and sums.
const SCALE_BYTES: usize = 8;

/// Vectors in 8 bits, to be multiplied with quantized matrices: made once for all matrices of a layer that share an input.
///
/// Each 32 neighbours share a scale, the largest magnitude over 127 in binary32, so that the error of an element is at most half of
/// that. A block with NaN or an infinity makes every product of its vector NaN.
#[derive(Debug)]
pub struct QuantizedActivations {
    /// Quants of all vectors, then scales of all.
    buffer: Buffer,
    columns: usize,
    len: usize,
}

/// The kernels' view of them; the fields are those of `Activations` in `quantized/q8_1.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::ops) struct Raw {
    quants: u64,
    scales: u64,
    stride: u32,
    columns: u32,
}

impl QuantizedActivations {
    /// Elements of a block, which share a scale.
    pub(in crate::ops) const BLOCK: usize = 32;

    /// Quantizes `x` of `[..., k]`, f32, f16 or bf16, with `k` a multiple of 32.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for other dtypes, [`Error::InvalidArgument`] for other `k`, [`Error::TooLarge`] beyond 2^32 - 1
    /// vectors or elements of one, or 2^34 elements of all.
    pub fn quantize(device: &Device, x: &View) -> Result<Self> {
        const OP: &str = "quantize activations";
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
        let (stride, quants) = (quantized.stride(), quantized.quants());
        if quants == 0 {
            return Ok(quantized);
        }
        let packed;
        let (source, offset) = if x.is_contiguous() {
            (x.buffer, x.offset * x.dtype.size_in_bytes())
        } else {
            packed = contiguous(device, x)?;
            (&packed, 0)
        };
        device
            .kernel(
                Family::QuantizeActivations,
                &format!("quantize_{}", x.dtype.as_str()),
            )?
            .launch(
                LaunchConfig::for_elements(quants / 4),
                &Args::new()
                    .u32(columns as u32)
                    .u32(len as u32)
                    .u32(stride as u32)
                    .ptr(source, offset)
                    .ptr(&quantized.buffer, 0)
                    .ptr(&quantized.buffer, quants),
            )?;
        Ok(quantized)
    }

    /// Room for `columns` vectors of `len` values.
    pub(in crate::ops) fn alloc(
        op: &'static str,
        device: &Device,
        columns: usize,
        len: usize,
    ) -> Result<Self> {
        check_blocks_of_32(op, len)?;
        check_u32(op, "number of vectors", columns)?;
        check_u32(op, "length of a vector", len.next_multiple_of(PADDING))?;
        // Both are below 2^32. A thread handles four elements and counts them in 32 bits.
        let quants = columns * len.next_multiple_of(PADDING);
        if quants / 4 > u32::MAX as usize {
            return Err(Error::TooLarge {
                op,
                what: "number of elements, with padding,",
                value: quants,
                limit: 4 * u32::MAX as usize,
            });
        }
        let buffer = device.alloc(quants + quants / Self::BLOCK * SCALE_BYTES)?;
        Ok(QuantizedActivations {
            buffer,
            columns,
            len,
        })
    }

    /// Elements between the starts of vectors.
    pub(in crate::ops) fn stride(&self) -> usize {
        self.len.next_multiple_of(PADDING)
    }

    /// Bytes of all quants, behind which the scales lie.
    pub(in crate::ops) fn quants(&self) -> usize {
        self.columns * self.stride()
    }

    /// Number of vectors.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements of a vector, without padding.
    pub fn vector_len(&self) -> usize {
        self.len
    }

    /// The device memory that holds them.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(in crate::ops) fn raw(&self) -> Raw {
        let quants = self.buffer.as_ptr() as u64;
        Raw {
            quants,
            scales: quants + self.quants() as u64,
            stride: self.stride() as u32,
            columns: self.columns as u32,
        }
    }
}
