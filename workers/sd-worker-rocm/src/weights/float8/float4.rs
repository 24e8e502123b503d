//! Matrices of 4-bit floats (e2m1) with a scale for each 16 in a row and one for all: ComfyUI's nvfp4.

use super::tiles::untiled;
use crate::weights::file::Float8;
use candle_core::quantized::GgmlDType;
use candle_core::{bail, Result};
use rayon::prelude::*;

/// The format of matrices that stay 4 bits. Its scales are for 16, too; the one for all is beside it.
const FORMAT: GgmlDType = GgmlDType::NVFP4;

/// Elements that share a scale.
const GROUP: usize = 16;

/// What four bits stand for, without the sign.
const LEVELS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The scales of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Float4 {
    /// For all.
    factor: f32,
    /// For each 16 elements, row by row: 8-bit floats that are not negative.
    scales: Vec<u8>,
}

impl Float4 {
    /// The scales of a matrix of `rows` by `columns` elements, those of groups in tiles.
    ///
    /// # Errors
    /// If they do not fit, or are not positive numbers; of groups of zeros the scale may be zero.
    pub fn new(
        factor: f32,
        tiled: &[u8],
        [rows, columns]: [usize; 2],
    ) -> std::result::Result<Self, String> {
        if !factor.is_finite() || factor <= 0.0 {
            return Err(format!(
                "the scale for all is {factor}, which is not a positive number"
            ));
        }
        if !columns.is_multiple_of(GROUP) {
            return Err(format!("rows of {columns} are no groups of {GROUP}"));
        }
        let scales = untiled(tiled, [rows, columns / GROUP])?;
        match scales.iter().find(|bits| **bits >= 0x7f) {
            None => Ok(Self { factor, scales }),
            Some(bits) => Err(format!(
                "a scale is {}, which is not a positive number",
                Float8::E4m3.value(*bits)
            )),
        }
    }

    /// By what the blocks' numbers are multiplied.
    pub fn factor(&self) -> f32 {
        self.factor
    }

    /// The format of whole blocks, if rows of so many elements are such.
    pub fn format(&self, columns: usize) -> Option<GgmlDType> {
        let whole = columns > 0 && columns.is_multiple_of(FORMAT.block_size());
        whole.then_some(FORMAT)
    }

    /// Scales of the groups in a row.
    fn row(&self, row: usize, columns: usize) -> &[u8] {
        let groups = columns / GROUP;
        &self.scales[row * groups..(row + 1) * groups]
    }

    /// Rows as blocks, the first of them row `first`; `bits` are whole rows of `columns` elements, two in a byte, of
    /// which the first is the high half.
    ///
    /// # Errors
    /// If rows are no whole blocks.
    pub fn blocks(&self, bits: &[u8], first: usize, columns: usize) -> Result<Vec<u8>> {
        let (elements, bytes) = (FORMAT.block_size(), FORMAT.type_size());
        if self.format(columns).is_none() {
            bail!("rows of {columns} are no blocks of {FORMAT:?}")
        }
        let mut blocks = vec![0; 2 * bits.len() / elements * bytes];
        if blocks.is_empty() {
            return Ok(blocks);
        }
        let groups = elements / GROUP;
        let rows = blocks.par_chunks_exact_mut(columns / elements * bytes);
        let rows = rows.zip(bits.par_chunks_exact(columns / 2)).enumerate();
        rows.for_each(|(row, (blocks, bits))| {
            let scales = self.row(first + row, columns).chunks_exact(groups);
            let parts = blocks.chunks_exact_mut(bytes).zip(scales);
            for ((block, scales), bits) in parts.zip(bits.chunks_exact(elements / 2)) {
                let (to, halves) = block.split_at_mut(groups);
                to.copy_from_slice(scales);
                let parts = halves.chunks_exact_mut(GROUP / 2);
                for (halves, bits) in parts.zip(bits.chunks_exact(GROUP / 2)) {
                    // Low halves of a group's bytes are its first half there.
                    let element = |i: usize| bits[i / 2] >> (4 - i % 2 * 4) & 15;
                    for (i, byte) in halves.iter_mut().enumerate() {
                        *byte = element(i) | element(i + GROUP / 2) << 4;
                    }
                }
            }
        });
        Ok(blocks)
    }

    /// Rows as numbers, the first of them row `first`; `bits` as for [`Float4::blocks`].
    pub fn values(&self, bits: &[u8], first: usize, columns: usize) -> Vec<f32> {
        let mut values = vec![0.0; 2 * bits.len()];
        if values.is_empty() {
            return values;
        }
        let rows = values.par_chunks_exact_mut(columns);
        let rows = rows.zip(bits.par_chunks_exact(columns / 2)).enumerate();
        rows.for_each(|(row, (values, bits))| {
            let scales = self.row(first + row, columns);
            for (i, value) in values.iter_mut().enumerate() {
                let bits = bits[i / 2] >> (4 - i % 2 * 4);
                let level = LEVELS[usize::from(bits & 7)];
                let level = if bits & 8 == 0 { level } else { -level };
                *value = level * Float8::E4m3.value(scales[i / GROUP]) * self.factor;
            }
        });
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::{QStorage, QTensor};
    use candle_core::Device;

    #[test]
    fn blocks_hold_the_same_numbers() {
        let (rows, columns) = (3, 128);
        let tiled: Vec<u8> = (0..1024).map(|i| ((i * 7 + 56) % 127) as u8).collect();
        // A power of two, so that the order of factors does not matter.
        let scaled = Float4::new(0.25, &tiled, [rows, columns]).unwrap();
        let bits: Vec<u8> = (0..rows * columns / 2)
            .map(|i| (i * 37 % 256) as u8)
            .collect();
        let values = scaled.values(&bits, 0, columns);
        // 0x25 and 0x4a are the second and the third byte: 1, 3, 2, -1.
        assert_eq!(bits[1..3], [0x25, 0x4a]);
        let scale = Float8::E4m3.value(tiled[0]) * 0.25;
        assert_eq!(
            values[2..6],
            [1.0, 3.0, 2.0, -1.0].map(|level| level * scale)
        );
        let blocks = scaled.blocks(&bits, 0, columns).unwrap();
        let some = scaled.blocks(&bits[columns / 2..], 1, columns).unwrap();
        assert_eq!(some, blocks[72..]);
        assert_eq!(
            scaled.values(&bits[columns / 2..], 1, columns),
            values[columns..]
        );
        let storage = QStorage::from_data(blocks.into(), &Device::Cpu, FORMAT).unwrap();
        let matrix = QTensor::new(storage, (rows, columns)).unwrap();
        let matrix = matrix.dequantize(&Device::Cpu).unwrap();
        let matrix = (matrix * f64::from(scaled.factor())).unwrap();
        assert_eq!(
            matrix.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
            values
        );
        assert!(scaled.format(96).is_none());
        assert!(scaled.blocks(&bits, 0, 96).is_err());
    }

    #[test]
    fn bad_scales_are_refused() {
        let of = |factor, scale: u8, size| Float4::new(factor, &[scale; 512], size).unwrap_err();
        assert!(of(0.0, 1, [1, 64]).contains("positive"));
        assert!(of(f32::NAN, 1, [1, 64]).contains("positive"));
        assert!(of(1.0, 0x7f, [1, 64]).contains("positive"));
        assert!(of(1.0, 0x81, [1, 64]).contains("positive"));
        assert!(of(1.0, 1, [129, 64]).contains("do not fit"));
        assert!(of(1.0, 1, [1, 72]).contains("groups"));
        assert!(Float4::new(1.0, &[0; 512], [128, 64]).is_ok());
    }
}
