//! candle's element types, scalars and host storages in the device layer's terms.

use candle_rocm::{DType as DeviceDType, Scalar as DeviceScalar};

use super::RocmError;
use crate::scalar::Scalar;
use crate::{CpuStorage, DType, Result};

/// The device layer's name for `dtype`; an error naming `op` for the formats that candle only stores.
pub(super) fn device_dtype(dtype: DType, op: &'static str) -> Result<DeviceDType> {
    Ok(match dtype {
        DType::U8 => DeviceDType::U8,
        DType::U32 => DeviceDType::U32,
        DType::I16 => DeviceDType::I16,
        DType::I32 => DeviceDType::I32,
        DType::I64 => DeviceDType::I64,
        DType::F16 => DeviceDType::F16,
        DType::BF16 => DeviceDType::BF16,
        DType::F32 => DeviceDType::F32,
        DType::F64 => DeviceDType::F64,
        DType::F8E4M3 => DeviceDType::F8E4M3,
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0 => {
            return Err(RocmError::UnsupportedDType { op, dtype }.into())
        }
    })
}

/// As [`device_dtype`], for operations that move elements and do not look at them. Elements of f8e8m0 are bytes; those
/// of f4, f6e2m3 and f6e3m2 are parts of bytes, which no operation addresses.
pub(super) fn stored_dtype(dtype: DType, op: &'static str) -> Result<DeviceDType> {
    match dtype {
        DType::F8E8M0 => Ok(DeviceDType::U8),
        dtype => device_dtype(dtype, op),
    }
}

pub(super) fn device_scalar(scalar: Scalar) -> DeviceScalar {
    match scalar {
        Scalar::U8(v) => v.into(),
        Scalar::U32(v) => v.into(),
        Scalar::I16(v) => v.into(),
        Scalar::I32(v) => v.into(),
        Scalar::I64(v) => v.into(),
        Scalar::F16(v) => v.into(),
        Scalar::BF16(v) => v.into(),
        Scalar::F32(v) => v.into(),
        Scalar::F64(v) => v.into(),
        Scalar::F8E4M3(v) => v.into(),
    }
}

/// Bytes of plain numbers.
pub(super) fn bytes_of<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: called with number types only, which have no padding; any initialised memory may be read as bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}

/// `count` numbers of `T` whose bytes `fill` provides.
fn from_bytes<T: Copy + Default>(
    count: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<Vec<T>> {
    let mut values = vec![T::default(); count];
    let size = std::mem::size_of_val(values.as_slice());
    // SAFETY: called with number types only: every bit pattern is a value and there is no padding.
    fill(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size) })?;
    Ok(values)
}

/// The raw bytes, dtype and number of elements of a host storage. The formats that candle only stores count bytes.
pub(super) fn host_bytes(storage: &CpuStorage) -> (&[u8], DType, usize) {
    macro_rules! parts {
        ($($variant:ident),*) => {
            match storage {
                $(CpuStorage::$variant(v) => (bytes_of(v), DType::$variant, v.len()),)*
            }
        };
    }
    parts!(U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F6E2M3, F6E3M2, F4, F8E8M0)
}

/// A host storage of `count` elements whose bytes `fill` provides.
pub(super) fn host_storage(
    dtype: DType,
    count: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<CpuStorage> {
    macro_rules! build {
        ($($variant:ident),*) => {
            match dtype {
                $(DType::$variant => CpuStorage::$variant(from_bytes(count, fill)?),)*
            }
        };
    }
    Ok(build!(
        U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3, F6E2M3, F6E3M2, F4, F8E8M0
    ))
}
