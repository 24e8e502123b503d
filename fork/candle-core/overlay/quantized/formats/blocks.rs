//! Blocks of a tensor on the CPU.

use half::f16;
use rayon::prelude::*;

use super::{product, Codec};
use crate::quantized::in_place::Data;
use crate::quantized::{GgmlDType, QuantizedType};
use crate::{CpuStorage, Result};

/// The blocks of a tensor, as they lie in a file.
pub struct Blocks {
    codec: &'static Codec,
    data: Data,
}

impl Blocks {
    pub(super) fn new(codec: &'static Codec, data: Data) -> Self {
        Self { codec, data }
    }

    /// Encodes `values`; the importance repeats for every row.
    fn write(&mut self, values: &[f32], importance: Option<&[f32]>) {
        let Codec {
            elements, write, ..
        } = *self.codec;
        self.data
            .bytes_mut()
            .par_chunks_exact_mut(self.codec.bytes)
            .zip(values.par_chunks_exact(elements))
            .enumerate()
            .for_each(|(i, (block, values))| {
                let importance = importance.map(|row| {
                    let start = i * elements % row.len();
                    &row[start..start + elements]
                });
                write(values, importance, block);
            });
    }
}

impl QuantizedType for Blocks {
    fn dtype(&self) -> GgmlDType {
        self.codec.dtype
    }

    fn matmul_t(
        &self,
        (m, k, n): (usize, usize, usize),
        lhs: &[f32],
        dst: &mut [f32],
    ) -> Result<()> {
        let Codec {
            dtype,
            elements,
            bytes,
            ..
        } = *self.codec;
        let row_bytes = k / elements * bytes;
        if !k.is_multiple_of(elements)
            || lhs.len() != m * k
            || dst.len() != m * n
            || self.data.bytes().len() != n * row_bytes
        {
            crate::bail!(
                "{dtype:?} matmul: {} bytes of weights, {} inputs and {} outputs do not fit ({m}, {k}, {n})",
                self.data.bytes().len(),
                lhs.len(),
                dst.len()
            )
        }
        if m == 0 || k == 0 || n == 0 {
            dst.fill(0.);
            return Ok(());
        }
        product::matmul(self.codec, (m, k, n), lhs, self.data.bytes(), dst);
        Ok(())
    }

    fn matmul_t_f16(&self, mkn: (usize, usize, usize), lhs: &[f16], dst: &mut [f16]) -> Result<()> {
        let lhs: Vec<f32> = lhs.iter().map(|v| v.to_f32()).collect();
        let mut wide = vec![0f32; dst.len()];
        self.matmul_t(mkn, &lhs, &mut wide)?;
        for (dst, wide) in dst.iter_mut().zip(wide) {
            *dst = f16::from_f32(wide);
        }
        Ok(())
    }

    fn embedding(&self, ids: &[u32], rows: usize, hidden: usize) -> Result<CpuStorage> {
        let Codec {
            dtype,
            elements,
            bytes,
            ..
        } = *self.codec;
        let row_bytes = hidden / elements * bytes;
        if !hidden.is_multiple_of(elements) || self.data.bytes().len() != rows * row_bytes {
            crate::bail!(
                "{dtype:?} embedding: {} bytes are not {rows} rows of {hidden} elements",
                self.data.bytes().len()
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
            let blocks = &self.data.bytes()[row * row_bytes..(row + 1) * row_bytes];
            product::read(
                self.codec,
                blocks,
                &mut values[i * hidden..(i + 1) * hidden],
            );
        }
        Ok(CpuStorage::F32(values))
    }

    fn dequantize(&self, elem_count: usize) -> Result<CpuStorage> {
        let Codec {
            dtype,
            elements,
            bytes,
            read,
            ..
        } = *self.codec;
        if self.data.bytes().len() / bytes * elements != elem_count {
            crate::bail!(
                "{dtype:?} dequantize: {} bytes are not {elem_count} elements",
                self.data.bytes().len()
            )
        }
        let mut values = vec![0f32; elem_count];
        values
            .par_chunks_exact_mut(elements)
            .zip(self.data.bytes().par_chunks_exact(bytes))
            .for_each(|(values, block)| read(block, values));
        Ok(CpuStorage::F32(values))
    }

    fn storage_size_in_bytes(&self) -> usize {
        self.data.bytes().len()
    }

    fn as_ptr(&self) -> *const u8 {
        self.data.bytes().as_ptr()
    }

    fn block_size(&self) -> usize {
        self.codec.elements
    }

    fn from_float(&mut self, xs: &[f32]) {
        self.write(xs, None)
    }

    fn from_float_imatrix(&mut self, xs: &[f32], imatrix_weights: &[f32], n_per_row: usize) {
        self.write(xs, Some(&imatrix_weights[..n_per_row]))
    }

    fn size(&self) -> usize {
        self.data.bytes().len()
    }
}
