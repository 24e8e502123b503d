//! Activations in 8 bits.

use super::matrix::{check_blocks_of_32, check_u32};
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::ops::cast::cast;
use crate::ops::copy::contiguous;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::quantized::{ActivationScale, Activations, K_STEP};

kernels! {
    /// `columns` vectors of `k` elements.
    quantize = "quantize_{dtype}" [dtype: DType = FLOATS] in Family::QuantizeActivations
        => (columns: u32, k: u32, stride: u32, x: Ptr, quants: Ptr, scales: Ptr);
}

/// Vectors are padded with zeros to a multiple of this, the step of the tiled product.
const PADDING: usize = K_STEP as usize;

/// Bytes of a block's scale and sums.
const SCALE_BYTES: usize = size_of::<ActivationScale>();

/// The number of vectors that floats of `[..., k]` are, and their length.
///
/// # Errors
/// [`Error::UnsupportedDType`] unless they are f32, f16 or bf16, [`Error::InvalidArgument`] without a dimension,
/// [`Error::OutOfBounds`].
pub(super) fn vectors_of(op: &'static str, x: &View) -> Result<(usize, usize)> {
    x.check(op)?;
    if !FLOATS.contains(&x.dtype) {
        return Err(Error::UnsupportedDType { op, dtype: x.dtype });
    }
    match x.dims.split_last() {
        Some((&len, outer)) => Ok((outer.iter().product(), len)),
        None => Err(Error::InvalidArgument {
            op,
            reason: "a tensor without dimensions holds no vectors; give it at least one".into(),
        }),
    }
}

/// Vectors in 8 bits, to be multiplied with quantized matrices: made once for all matrices of a layer that share an
/// input.
///
/// Each 32 neighbours share a scale, the largest magnitude over 127 in binary32, so that the error of an element is at
/// most half of that. A block with NaN or an infinity makes every product of its vector NaN.
#[derive(Debug)]
pub struct QuantizedActivations {
    /// Quants of all vectors, then scales of all.
    buffer: Buffer,
    columns: usize,
    len: usize,
}

impl QuantizedActivations {
    /// Elements of a block, which share a scale.
    pub(in crate::ops) const BLOCK: usize = 32;

    /// Quantizes `x` of `[..., k]`, f32, f16 or bf16, with `k` a multiple of 32.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for other dtypes, [`Error::InvalidArgument`] for other `k`, [`Error::TooLarge`]
    /// beyond 2^32 - 1 vectors or elements of one, or 2^34 elements of all.
    pub fn quantize(device: &Device, x: &View) -> Result<Self> {
        const OP: &str = "quantize activations";
        let (columns, len) = vectors_of(OP, x)?;
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
        // SAFETY: the source has the vectors behind each other, and there is room for their quants and scales.
        unsafe {
            quantize::of(x.dtype)?.launch(
                device,
                LaunchConfig::for_elements(quants / 4),
                columns as u32,
                len as u32,
                stride as u32,
                Ptr::at(source, offset),
                Ptr::to(&quantized.buffer),
                Ptr::at(&quantized.buffer, quants),
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

    /// The vectors as floats of a dtype, by way of the host: for where no kernel multiplies 8 bits rightly.
    pub(super) fn to_floats(&self, device: &Device, to: DType) -> Result<Buffer> {
        let mut bytes = vec![0; self.buffer.len()];
        device.download(&self.buffer, 0, &mut bytes)?;
        let (quants, scales) = bytes.split_at(self.quants());
        let mut floats = Vec::with_capacity(self.columns * self.len * size_of::<f32>());
        for column in 0..self.columns {
            for i in column * self.stride()..column * self.stride() + self.len {
                let scale = scales[i / Self::BLOCK * SCALE_BYTES..].first_chunk();
                let scale = scale.map_or(0.0, |bytes| f32::from_le_bytes(*bytes));
                floats.extend((f32::from(quants[i] as i8) * scale).to_le_bytes());
            }
        }
        let floats = device.upload(&floats)?;
        let dims = [self.columns * self.len];
        cast(
            device,
            &View::contiguous(&floats, DType::F32, &dims, &[1]),
            to,
        )
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

    /// As products take them.
    pub(in crate::ops) fn raw(&self) -> Activations {
        let quants = self.buffer.as_ptr().cast_const();
        Activations {
            quants: quants.cast(),
            scales: quants.wrapping_byte_add(self.quants()).cast(),
            stride: self.stride() as u32,
            columns: self.columns as u32,
        }
    }
}
