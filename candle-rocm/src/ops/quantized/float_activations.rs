//! Activations in 8-bit floats.

use super::activations::vectors_of;
use super::matrix::check_u32;
use super::Format;
use crate::dtype::FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::ops::cast::cast;
use crate::ops::copy::contiguous;
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::float8::{FloatActivations as Raw, MxActivations, FLOAT8_STEP};
use float8::F8E4M3;

kernels! {
    /// Four elements each, `fours` times.
    quantize_floats = "quantize_float8_{dtype}" [dtype: DType = FLOATS] in Family::QuantizeFloats
        => (fours: u32, x: Ptr, bits: Ptr, scales: Ptr);

    /// The same with MX scales, of `columns` vectors of `k` elements.
    quantize_mx = "quantize_mx_{dtype}" [dtype: DType = FLOATS] in Family::QuantizeFloats
        => (columns: u32, k: u32, stride: u32, x: Ptr, bits: Ptr, scales: Ptr);
}

/// How 8-bit floats are scaled, which the format of the matrix decides that they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// Each 64 neighbours share a scale, the largest magnitude over 448 in binary32: for [`Format::F8E4M3`].
    Steps,
    /// Each 32 share a power of two (e8m0), the smallest that leaves no magnitude above 448: for [`Format::MXFP4`].
    Mx,
}

impl Scaling {
    /// What matrices of a format are multiplied with, if there are such products.
    pub fn of(format: Format) -> Option<Self> {
        match format {
            Format::F8E4M3 => Some(Scaling::Steps),
            Format::MXFP4 => Some(Scaling::Mx),
            _ => None,
        }
    }

    /// Elements that share a scale.
    pub fn block(self) -> usize {
        match self {
            Scaling::Steps => FLOAT8_STEP as usize,
            Scaling::Mx => 32,
        }
    }

    /// Bytes of a scale.
    fn scale_bytes(self) -> usize {
        match self {
            Scaling::Steps => size_of::<f32>(),
            Scaling::Mx => 1,
        }
    }

    /// What vectors are padded to a multiple of, with zeros.
    fn padding(self) -> usize {
        match self {
            Scaling::Steps => self.block(),
            Scaling::Mx => 128,
        }
    }

    /// Where an element lies in its block.
    fn place(self, element: usize) -> usize {
        match self {
            Scaling::Steps => element,
            Scaling::Mx => element % 16 * 2 + element / 16,
        }
    }

    /// The value of the scale in these bytes.
    fn value(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Scaling::Steps, bytes) => bytes.first_chunk().map_or(0.0, |b| f32::from_le_bytes(*b)),
            (Scaling::Mx, [255, ..]) => f32::NAN,
            (Scaling::Mx, [exponent, ..]) => 2f32.powi(i32::from(*exponent) - 127),
            (Scaling::Mx, []) => 0.0,
        }
    }

    /// Whether the GPU has the instructions, and they are not switched off.
    pub(in crate::ops) fn is_there(self, device: &Device) -> Result<bool> {
        let arch = &device.properties().arch;
        let has = match self {
            Scaling::Steps => arch.has_float8(),
            Scaling::Mx => arch.has_mx(),
        };
        Ok(has && device.matrix()?.is_some())
    }
}

/// Vectors of 8-bit floats (e4m3), to be multiplied with matrices of floats: made once for all matrices of a layer that
/// share an input.
///
/// The error of an element is at most its 16th part, or half a step of the smallest numbers that its block's scale
/// leaves. Elements with NaN or an infinity beside them make every product of their vector NaN.
#[derive(Debug)]
pub struct FloatActivations {
    /// Floats of all vectors, then scales of all.
    buffer: Buffer,
    scaling: Scaling,
    columns: usize,
    len: usize,
}

impl FloatActivations {
    /// Quantizes `x` of `[..., k]`, f32, f16 or bf16, with `k` a multiple of [`Scaling::block`].
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for other dtypes, [`Error::InvalidArgument`] for other `k`, [`Error::TooLarge`]
    /// beyond 2^32 - 1 vectors or elements of one, or 2^34 elements of all.
    pub fn quantize(device: &Device, x: &View, scaling: Scaling) -> Result<Self> {
        const OP: &str = "quantize to 8-bit floats";
        let (columns, len) = vectors_of(OP, x)?;
        let quantized = Self::alloc(OP, device, columns, len, scaling)?;
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
        let (from, config) = (
            Ptr::at(source, offset),
            LaunchConfig::for_elements(count / 4),
        );
        let (bits, scales) = (
            Ptr::to(&quantized.buffer),
            Ptr::at(&quantized.buffer, count),
        );
        // SAFETY: the source has the vectors behind each other, and there is room for their floats and scales.
        unsafe {
            match scaling {
                Scaling::Steps => {
                    let fours = (count / 4) as u32;
                    quantize_floats::of(x.dtype)?
                        .launch(device, config, fours, from, bits, scales)?
                }
                Scaling::Mx => quantize_mx::of(x.dtype)?.launch(
                    device,
                    config,
                    columns as u32,
                    len as u32,
                    quantized.stride() as u32,
                    from,
                    bits,
                    scales,
                )?,
            }
        }
        Ok(quantized)
    }

    /// Room for `columns` vectors of `len` values.
    pub(in crate::ops) fn alloc(
        op: &'static str,
        device: &Device,
        columns: usize,
        len: usize,
        scaling: Scaling,
    ) -> Result<Self> {
        let block = scaling.block();
        if !len.is_multiple_of(block) {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "vectors of {len} elements; 8-bit floats have a scale for each {block}"
                ),
            });
        }
        let stride = len.next_multiple_of(scaling.padding());
        check_u32(op, "number of vectors", columns)?;
        check_u32(op, "length of a vector", stride)?;
        // Both are below 2^32. A thread handles four elements and counts them in 32 bits.
        let count = columns * stride;
        if count / 4 > u32::MAX as usize {
            return Err(Error::TooLarge {
                op,
                what: "number of elements, with padding,",
                value: count,
                limit: 4 * u32::MAX as usize,
            });
        }
        let buffer = device.alloc(count + count / block * scaling.scale_bytes())?;
        Ok(FloatActivations {
            buffer,
            scaling,
            columns,
            len,
        })
    }

    /// What bytes of the device's memory that these are in say, vector after vector.
    ///
    /// # Panics
    /// If there are not as many bytes as [`Self::buffer`] has.
    pub fn values(&self, bytes: &[u8]) -> Vec<f32> {
        let (bits, scales) = bytes.split_at(self.count());
        let (block, size) = (self.scaling.block(), self.scaling.scale_bytes());
        let value = |at: usize, i: usize| {
            let first = at + i / block * block;
            let bits = bits[first + self.scaling.place(i % block)];
            let scale = self.scaling.value(&scales[first / block * size..][..size]);
            F8E4M3::from_bits(bits).to_f32() * scale
        };
        (0..self.columns)
            .flat_map(|column| (0..self.len).map(move |i| (column * self.stride(), i)))
            .map(|(at, i)| value(at, i))
            .collect()
    }

    /// The vectors as floats of a dtype, by way of the host: for where no kernel multiplies 8 bits rightly.
    pub(super) fn to_floats(&self, device: &Device, to: DType) -> Result<Buffer> {
        let mut bytes = vec![0; self.buffer.len()];
        device.download(&self.buffer, 0, &mut bytes)?;
        let floats: Vec<u8> = (self.values(&bytes).iter())
            .flat_map(|value| value.to_le_bytes())
            .collect();
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
        self.len.next_multiple_of(self.scaling.padding())
    }

    /// Elements of all vectors, with padding, behind whose bytes the scales lie.
    fn count(&self) -> usize {
        self.columns * self.stride()
    }

    /// How they are scaled.
    pub fn scaling(&self) -> Scaling {
        self.scaling
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

    fn addresses(&self) -> (*const u8, *const u8) {
        let bits = self.buffer.as_ptr().cast_const().cast::<u8>();
        (bits, bits.wrapping_add(self.count()))
    }

    /// In steps.
    pub(super) fn raw(&self) -> Raw {
        let (bits, scales) = self.addresses();
        Raw {
            bits,
            scales: scales.cast(),
            k: self.len as u32,
            columns: self.columns as u32,
        }
    }

    /// With MX scales.
    pub(super) fn raw_mx(&self) -> MxActivations {
        let (bits, scales) = self.addresses();
        MxActivations {
            bits,
            scales,
            stride: self.stride() as u32,
            columns: self.columns as u32,
        }
    }
}
