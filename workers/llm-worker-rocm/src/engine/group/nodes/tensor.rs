//! Tensors in messages: rows that stand in for pictures. What crosses between stages goes by the collective's own
//! connections.

use super::wire::Bytes;
use candle_core::{bail, DType, Device, Error, Result, Tensor};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A tensor of f32, f16 or bf16.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WireTensor {
    dtype: String,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl WireTensor {
    /// A copy.
    ///
    /// # Errors
    /// If the device fails, and for other dtypes.
    pub(super) fn of(tensor: &Tensor) -> Result<Self> {
        let flat = tensor.flatten_all()?;
        let bytes: Vec<u8> = match tensor.dtype() {
            DType::F32 => (flat.to_vec1::<f32>()?.iter())
                .flat_map(|x| x.to_le_bytes())
                .collect(),
            DType::F16 => (flat.to_vec1::<half::f16>()?.iter())
                .flat_map(|x| x.to_le_bytes())
                .collect(),
            DType::BF16 => (flat.to_vec1::<half::bf16>()?.iter())
                .flat_map(|x| x.to_le_bytes())
                .collect(),
            dtype => bail!("rows of {dtype:?} are not sent to other nodes"),
        };
        Ok(Self {
            dtype: tensor.dtype().as_str().to_string(),
            shape: tensor.dims().to_vec(),
            bytes: Bytes(bytes),
        })
    }

    /// The tensor, on a device.
    ///
    /// # Errors
    /// If the device fails, and for a shape that the bytes do not have.
    pub(super) fn on(&self, device: &Device) -> Result<Tensor> {
        let dtype = DType::from_str(&self.dtype).map_err(Error::wrap)?;
        let count = self
            .shape
            .iter()
            .try_fold(1usize, |all, &n| all.checked_mul(n));
        let fits = count.and_then(|count| count.checked_mul(dtype.size_in_bytes()));
        if fits != Some(self.bytes.0.len()) {
            bail!(
                "{} bytes for rows of shape {:?}",
                self.bytes.0.len(),
                self.shape
            )
        }
        Tensor::from_raw_buffer(&self.bytes.0, dtype, &self.shape, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let tensor = Tensor::new(&[[1f32, -2.5, 0.0], [3.0, 1e4, -7.0]], &Device::Cpu);
            let tensor = tensor.and_then(|t| t.to_dtype(dtype)).unwrap();
            let copy = WireTensor::of(&tensor).unwrap().on(&Device::Cpu).unwrap();
            assert_eq!((copy.dtype(), copy.dims()), (dtype, tensor.dims()));
            let values = |t: &Tensor| {
                t.to_dtype(DType::F32)
                    .and_then(|t| t.to_vec2::<f32>())
                    .unwrap()
            };
            assert_eq!(values(&copy), values(&tensor));
        }
        let ids = Tensor::new(&[1u32], &Device::Cpu).unwrap();
        assert!(WireTensor::of(&ids).is_err());
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        for shape in [vec![3], vec![usize::MAX, 8], vec![]] {
            let tensor = WireTensor {
                dtype: "f32".to_string(),
                shape,
                bytes: Bytes(vec![0; 8]),
            };
            assert!(tensor.on(&Device::Cpu).is_err());
        }
    }
}
