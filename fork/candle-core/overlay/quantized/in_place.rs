//! Blocks on the CPU that stay where they are: in a mapped file, for one.

use std::borrow::Cow;
use std::marker::PhantomData;

use half::f16;

use super::k_quants::*;
use super::{formats, GgmlDType, QStorage, QuantizedType};
use crate::mended::blocks;
use crate::{CpuStorage, Result};

/// Bytes of blocks: somebody else's, until they are written.
pub(super) enum Data {
    Own(Vec<u8>),
    Shared(Box<dyn AsRef<[u8]> + Send + Sync>),
}

impl Data {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => (**bytes).as_ref(),
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if let Self::Shared(bytes) = self {
            *self = Self::Own((**bytes).as_ref().to_vec());
        }
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(_) => unreachable!("copied above"),
        }
    }
}

impl QStorage {
    /// Blocks on the CPU that are read where they are; `data` gives the same bytes each time. None if they do not begin
    /// where the type's blocks may, or are no whole number of them: [`QStorage::from_data`] copies.
    pub fn in_place(
        data: impl AsRef<[u8]> + Send + Sync + 'static,
        dtype: GgmlDType,
    ) -> Option<Self> {
        if !data.as_ref().len().is_multiple_of(dtype.type_size()) {
            return None;
        }
        if let Some(codec) = formats::ALL.iter().find(|codec| codec.dtype == dtype) {
            return Some(Self::Cpu(codec.over(Data::Shared(Box::new(data)))));
        }
        let storage = match dtype {
            GgmlDType::F32 => InPlace::<f32>::new(data),
            GgmlDType::F16 => InPlace::<f16>::new(data),
            GgmlDType::BF16 => InPlace::<half::bf16>::new(data),
            GgmlDType::Q4_0 => InPlace::<BlockQ4_0>::new(data),
            GgmlDType::Q4_1 => InPlace::<BlockQ4_1>::new(data),
            GgmlDType::Q5_0 => InPlace::<BlockQ5_0>::new(data),
            GgmlDType::Q5_1 => InPlace::<BlockQ5_1>::new(data),
            GgmlDType::Q8_0 => InPlace::<BlockQ8_0>::new(data),
            GgmlDType::Q8_1 => InPlace::<BlockQ8_1>::new(data),
            GgmlDType::Q2K => InPlace::<BlockQ2K>::new(data),
            GgmlDType::Q3K => InPlace::<BlockQ3K>::new(data),
            GgmlDType::Q4K => InPlace::<BlockQ4K>::new(data),
            GgmlDType::Q5K => InPlace::<BlockQ5K>::new(data),
            GgmlDType::Q6K => InPlace::<BlockQ6K>::new(data),
            GgmlDType::Q8K => InPlace::<BlockQ8K>::new(data),
            _ => None,
        };
        storage.map(Self::Cpu)
    }
}

/// Blocks of one of upstream's types.
struct InPlace<T> {
    data: Data,
    of: PhantomData<fn() -> T>,
}

impl<T: GgmlType + 'static> InPlace<T> {
    fn new(data: impl AsRef<[u8]> + Send + Sync + 'static) -> Option<Box<dyn QuantizedType>> {
        if !data.as_ref().as_ptr().cast::<T>().is_aligned() {
            return None;
        }
        Some(Box::new(Self {
            data: Data::Shared(Box::new(data)),
            of: PhantomData,
        }))
    }

    fn blocks(&self) -> Cow<'_, [T]> {
        let bytes = self.data.bytes();
        blocks::of_bytes(bytes, bytes.len())
    }

    fn write(&mut self, write: impl FnOnce(&mut [T])) {
        let mut blocks = self.blocks().into_owned();
        write(&mut blocks);
        self.data = Data::Own(blocks::bytes(&blocks).to_vec());
    }
}

impl<T: GgmlType + 'static> QuantizedType for InPlace<T> {
    fn dtype(&self) -> GgmlDType {
        T::DTYPE
    }

    fn matmul_t(&self, mkn: (usize, usize, usize), lhs: &[f32], dst: &mut [f32]) -> Result<()> {
        matmul(mkn, lhs, &self.blocks(), dst)
    }

    fn matmul_t_f16(&self, mkn: (usize, usize, usize), lhs: &[f16], dst: &mut [f16]) -> Result<()> {
        matmul_f16(mkn, lhs, &self.blocks(), dst)
    }

    fn embedding(&self, ids: &[u32], rows: usize, hidden: usize) -> Result<CpuStorage> {
        let blocks = self.blocks();
        let of_row = hidden / T::BLCK_SIZE;
        if !hidden.is_multiple_of(T::BLCK_SIZE) || blocks.len() != rows * of_row {
            crate::bail!(
                "{:?} embedding: {} blocks are not {rows} rows of {hidden} elements",
                T::DTYPE,
                blocks.len()
            )
        }
        let mut values = vec![0f32; ids.len() * hidden];
        for (i, &id) in ids.iter().enumerate() {
            let row = id as usize;
            if crate::mended::ids::names_nothing(id) {
                continue;
            }
            if row >= rows {
                crate::bail!("embedding id {row} is out of range for {rows} rows")
            }
            let to = &mut values[i * hidden..(i + 1) * hidden];
            T::to_float(&blocks[row * of_row..(row + 1) * of_row], to);
        }
        Ok(CpuStorage::F32(values))
    }

    fn dequantize(&self, elem_count: usize) -> Result<CpuStorage> {
        let mut values = vec![0f32; elem_count];
        T::to_float(&self.blocks(), &mut values);
        Ok(CpuStorage::F32(values))
    }

    fn storage_size_in_bytes(&self) -> usize {
        self.data.bytes().len()
    }

    fn as_ptr(&self) -> *const u8 {
        self.data.bytes().as_ptr()
    }

    fn block_size(&self) -> usize {
        T::BLCK_SIZE
    }

    fn from_float(&mut self, xs: &[f32]) {
        self.write(|blocks| T::from_float(xs, blocks))
    }

    fn from_float_imatrix(&mut self, xs: &[f32], imatrix_weights: &[f32], n_per_row: usize) {
        self.write(|blocks| T::from_float_imatrix(xs, blocks, imatrix_weights, n_per_row))
    }

    fn size(&self) -> usize {
        self.data.bytes().len()
    }
}
