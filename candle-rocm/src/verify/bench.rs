//! What the checks share: numbers, tensors of them on the device, and comparison.

use super::admit::Finding;
use crate::{contiguous_strides, Buffer, DType, Device, Result, View};
use float8::F8E4M3;
use half::{bf16, f16};

/// Reproducible random numbers: SplitMix64.
pub(super) struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `low..high`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn vec(&mut self, count: usize, low: f64, high: f64) -> Vec<f64> {
        (0..count).map(|_| self.uniform(low, high)).collect()
    }
}

/// The values in a dtype: integers truncate and saturate.
pub(super) fn encode(dtype: DType, values: &[f64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * dtype.size_in_bytes());
    for &v in values {
        match dtype {
            DType::U8 => bytes.push(v as u8),
            DType::U32 => bytes.extend((v as u32).to_le_bytes()),
            DType::I16 => bytes.extend((v as i16).to_le_bytes()),
            DType::I32 => bytes.extend((v as i32).to_le_bytes()),
            DType::I64 => bytes.extend((v as i64).to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(v).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(v).to_le_bytes()),
            DType::F32 => bytes.extend((v as f32).to_le_bytes()),
            DType::F64 => bytes.extend(v.to_le_bytes()),
            DType::F8E4M3 => bytes.push(F8E4M3::from_f64(v).to_bits()),
        }
    }
    bytes
}

/// The values of bytes in a dtype.
pub(super) fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let value = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_le_bytes(word);
        match dtype {
            DType::U8 => bits as f64,
            DType::U32 => bits as f64,
            DType::I16 => f64::from(bits as i16),
            DType::I32 => f64::from(bits as i32),
            DType::I64 => bits as i64 as f64,
            DType::F16 => f16::from_bits(bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
            DType::F32 => f64::from(f32::from_bits(bits as u32)),
            DType::F64 => f64::from_bits(bits),
            DType::F8E4M3 => F8E4M3::from_bits(bits as u8).to_f64(),
        }
    };
    bytes
        .chunks_exact(dtype.size_in_bytes())
        .map(value)
        .collect()
}

/// A tensor on the device, and the values that it has there.
pub(super) struct Tensor {
    pub values: Vec<f64>,
    buffer: Buffer,
    dtype: DType,
    dims: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
}

impl Tensor {
    /// Contiguous.
    pub fn new(device: &Device, dtype: DType, dims: &[usize], values: &[f64]) -> Result<Self> {
        Self::behind(device, dtype, dims, values, 0)
    }

    /// Contiguous, so many elements behind the start of its buffer.
    pub fn behind(
        device: &Device,
        dtype: DType,
        dims: &[usize],
        values: &[f64],
        offset: usize,
    ) -> Result<Self> {
        let mut bytes = vec![0; offset * dtype.size_in_bytes()];
        bytes.extend(encode(dtype, values));
        let rounded = decode(dtype, &bytes[offset * dtype.size_in_bytes()..]);
        Ok(Tensor {
            values: rounded,
            buffer: device.upload(&bytes)?,
            dtype,
            dims: dims.to_vec(),
            strides: contiguous_strides(dims),
            offset,
        })
    }

    /// Of random numbers.
    pub fn random(
        device: &Device,
        dtype: DType,
        dims: &[usize],
        (low, high): (f64, f64),
    ) -> Result<Self> {
        let count: usize = dims.iter().product();
        let values = Numbers::new(count as u64).vec(count, low, high);
        Self::new(device, dtype, dims, &values)
    }

    pub fn view(&self) -> View<'_> {
        View {
            offset: self.offset,
            ..View::contiguous(&self.buffer, self.dtype, &self.dims, &self.strides)
        }
    }

    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

/// Leaves something that is no result in the memory that the next buffer of this size gets, so that what a kernel does
/// not write is seen.
pub(super) fn spoil_memory(device: &Device, bytes: usize) -> Result<()> {
    device.upload(&vec![0xb5; bytes]).map(drop)
}

/// What a buffer holds.
pub(super) fn read(device: &Device, buffer: &Buffer, dtype: DType) -> Result<Vec<f64>> {
    Ok(decode(dtype, &bytes_of(device, buffer)?))
}

pub(super) fn bytes_of(device: &Device, buffer: &Buffer) -> Result<Vec<u8>> {
    let mut bytes = vec![0; buffer.len()];
    device.download(buffer, 0, &mut bytes)?;
    Ok(bytes)
}

/// By how much results may differ, as a share of their magnitude: several roundings of the dtype.
pub(super) fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 1e-4,
        DType::F16 => 5e-3,
        DType::BF16 => 4e-2,
        DType::F8E4M3 => 0.15,
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => 0.0,
    }
}

/// What is wrong with `got`, if anything: elements that are further from `want` than a share of their magnitude and of
/// that of all.
pub(super) fn difference(got: &[f64], want: &[f64], tolerance: f64) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} results instead of {}", got.len(), want.len()));
    }
    let squares: f64 = want.iter().map(|w| w * w).sum();
    let magnitude = (squares / want.len().max(1) as f64).sqrt();
    let is_wrong = |(g, w): (&f64, &f64)| {
        let near = (g - w).abs() <= tolerance * (w.abs() + magnitude);
        !(near || g == w || (g.is_nan() && w.is_nan()))
    };
    let wrong = got.iter().zip(want).filter(|&pair| is_wrong(pair)).count();
    let first = got.iter().zip(want).position(is_wrong)?;
    Some(format!(
        "{wrong} of {} results are wrong, the first at {first}: {:e} instead of {:e}",
        want.len(),
        got[first],
        want[first]
    ))
}

/// What is wrong with results of a library beside those of own kernels, as bytes. Each may round in ways of its own:
/// Winograd's convolutions lose several bits where many channels cancel out.
pub(crate) fn difference_of(dtype: DType, got: &[u8], want: &[u8]) -> Option<String> {
    let tolerance = match dtype {
        DType::F32 => 5e-3,
        DType::F16 => 0.1,
        _ => 0.25,
    };
    difference_within(dtype, got, want, tolerance)
}

/// The same within a share of the magnitude that the caller knows.
pub(crate) fn difference_within(
    dtype: DType,
    got: &[u8],
    want: &[u8],
    tolerance: f64,
) -> Option<String> {
    difference(&decode(dtype, got), &decode(dtype, want), tolerance)
}

/// Compares a buffer with what it should hold.
pub(super) fn compare(device: &Device, buffer: &Buffer, dtype: DType, want: &[f64]) -> Finding {
    Ok(difference(
        &read(device, buffer, dtype)?,
        want,
        tolerance(dtype),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_values_again() {
        for dtype in DType::ALL {
            let values = [0.0, 1.0, 2.0, 3.0, 12.0];
            assert_eq!(decode(dtype, &encode(dtype, &values)), values);
        }
        let signed = [-3.0, 7.0];
        for dtype in [DType::I16, DType::I32, DType::I64, DType::BF16] {
            assert_eq!(decode(dtype, &encode(dtype, &signed)), signed);
        }
    }

    #[test]
    fn what_differs_is_named() {
        let want = [1.0, -2.0, 0.0, 4.0];
        assert_eq!(difference(&want, &want, 0.0), None);
        assert_eq!(difference(&[1.001, -2.0, 0.001, 4.0], &want, 1e-2), None);
        for wrong in [4.1, f64::NAN, f64::INFINITY] {
            let text = difference(&[1.0, -2.0, 0.0, wrong], &want, 1e-3).unwrap();
            assert!(
                text.starts_with("1 of 4 results are wrong, the first at 3"),
                "{text}"
            );
        }
        assert!(difference(&want[..3], &want, 1.0).is_some());
    }
}
