//! Tensors in the host's memory as bytes.

use candle::{CpuStorage, DType, Result, Shape, Storage, Tensor};

/// The bytes of a contiguous tensor of the CPU, least significant first.
pub fn to_bytes(x: &Tensor) -> Result<Vec<u8>> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle::bail!(
            "a tensor of {:?} where one of the CPU is needed",
            x.device().location()
        );
    };
    let Some((begin, end)) = layout.contiguous_offsets() else {
        candle::bail!("a tensor with gaps where none is expected");
    };
    macro_rules! bytes {
        ($($variant:ident),*) => {
            match storage {
                $(CpuStorage::$variant(values) => raw(&values[begin..end]).to_vec(),)*
                other => candle::bail!("{:?} tensors do not move between processes", dtype_of(other)),
            }
        };
    }
    Ok(bytes!(U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3))
}

/// A tensor of the CPU from what [`to_bytes`] gave.
pub fn from_bytes(bytes: &[u8], dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
    let shape = shape.into();
    let expected = shape.elem_count() * dtype.size_in_bytes();
    if bytes.len() != expected {
        candle::bail!(
            "{} bytes for {dtype:?} {shape:?}, which has {expected}",
            bytes.len()
        );
    }
    Tensor::from_raw_buffer(bytes, dtype, shape.dims(), &candle::Device::Cpu)
}

fn dtype_of(storage: &CpuStorage) -> DType {
    use candle::backend::BackendStorage;
    storage.dtype()
}

/// Memory of numbers as it is.
fn raw<T: Copy>(values: &[T]) -> &[u8] {
    // SAFETY: called with number types only, which have no padding; any initialised memory may be read as bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back_as_they_went() -> Result<()> {
        let x = Tensor::arange(0f32, 24., &candle::Device::Cpu)?.reshape((4, 6))?;
        for dtype in [
            DType::U8,
            DType::U32,
            DType::I16,
            DType::I32,
            DType::I64,
            DType::BF16,
            DType::F16,
            DType::F32,
            DType::F64,
            DType::F8E4M3,
        ] {
            let part = x.to_dtype(dtype)?.narrow(0, 1, 2)?;
            let bytes = to_bytes(&part)?;
            assert_eq!(bytes.len(), 12 * dtype.size_in_bytes());
            let back = from_bytes(&bytes, dtype, part.shape())?;
            let (back, part) = (back.to_dtype(DType::F32)?, part.to_dtype(DType::F32)?);
            assert_eq!(back.to_vec2::<f32>()?, part.to_vec2::<f32>()?, "{dtype:?}");
            assert!(from_bytes(&bytes[1..], dtype, part.shape()).is_err());
        }
        assert!(to_bytes(&x.t()?).is_err());
        Ok(())
    }
}
