//! Matrices of 8-bit floats, and of 4-bit floats, with their scales.
//!
//! | Module       | Gives                                                                      |
//! |--------------|----------------------------------------------------------------------------|
//! | `companions` | the scales of each matrix, found by the names that makers give them        |
//! | `comfy`      | what ComfyUI's files say about their layers                                |
//! | `config`     | what a folder's `quantization_config` says                                 |
//! | `float4`     | matrices of 4-bit floats                                                   |
//! | `tiles`      | scales in the order in which others' tensor cores read them                |
//!
//! A matrix whose scales are those of 64 neighbours in a row or of more becomes blocks of [`GgmlDType::F8E4M3`], which
//! hold the same numbers. Everything else becomes floating-point numbers when it is loaded. Names of models play no
//! part: whatever network has its tensors here may have them in 8 bits.

mod comfy;
mod companions;
mod config;
mod float4;
mod tiles;

pub use companions::find;
pub use config::Layout;

use super::file::Float8;
use candle_core::quantized::GgmlDType;
use candle_core::{bail, Result};
use float4::Float4;
use rayon::prelude::*;

/// How a tensor of fewer than 16 bits becomes numbers.
#[derive(Debug, Clone, PartialEq)]
pub enum Small {
    /// Of 8-bit floats.
    Eight(Scaled),
    /// Of 4-bit floats.
    Four(Float4),
}

impl Small {
    /// Elements in a byte.
    pub fn in_byte(&self) -> usize {
        match self {
            Self::Eight(_) => 1,
            Self::Four(_) => 2,
        }
    }

    /// The format of whole blocks that hold the same numbers, if rows of so many elements are such.
    pub fn format(&self, columns: usize) -> Option<GgmlDType> {
        match self {
            Self::Eight(scaled) => scaled.is_blocks(columns).then_some(FORMAT),
            Self::Four(scaled) => scaled.format(columns),
        }
    }

    /// By what the blocks' numbers are multiplied.
    pub fn factor(&self) -> f32 {
        match self {
            Self::Eight(_) => 1.0,
            Self::Four(scaled) => scaled.factor(),
        }
    }

    /// Rows as blocks, the first of them row `first` of the matrix. `bits` are whole rows of `columns` elements.
    ///
    /// # Errors
    /// If one of the floats is not a number, or rows are no whole blocks.
    pub fn blocks(&self, bits: &[u8], first: usize, columns: usize) -> Result<Vec<u8>> {
        match self {
            Self::Eight(scaled) => scaled.blocks(bits, first, columns),
            Self::Four(scaled) => scaled.blocks(bits, first, columns),
        }
    }

    /// Rows as numbers; arguments are those of [`Small::blocks`].
    ///
    /// # Errors
    /// If one of the floats is not a finite number.
    pub fn values(&self, bits: &[u8], first: usize, columns: usize) -> Result<Vec<f32>> {
        match self {
            Self::Eight(scaled) => scaled.values(bits, first, columns),
            Self::Four(scaled) => Ok(scaled.values(bits, first, columns)),
        }
    }
}

/// The format of matrices that stay 8 bits.
const FORMAT: GgmlDType = GgmlDType::F8E4M3;

/// Bytes of a block's scale, which lies before its elements.
const SCALE: usize = 4;

/// How the 8-bit floats of a tensor become numbers. A tensor counts as a matrix here whose rows are all but the first
/// dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct Scaled {
    kind: Float8,
    scales: Vec<f32>,
    /// Rows and columns that one scale is for; the last ones of a row or column of scales may be for fewer.
    area: [usize; 2],
    /// Scales for each row of areas.
    across: usize,
}

impl Scaled {
    /// Floats of which every one is what it stands for.
    pub fn plain(kind: Float8) -> Self {
        Self::whole(kind, 1.0)
    }

    /// Floats with one scale for all.
    fn whole(kind: Float8, scale: f32) -> Self {
        Self {
            kind,
            scales: vec![scale],
            area: [usize::MAX; 2],
            across: 1,
        }
    }

    /// Scales of `shape` for a tensor of `rows` by `columns`: one, one for each row, or one for each area of `area`
    /// rows and columns, without which areas are 128 by 128 or equal parts.
    ///
    /// # Errors
    /// If the shapes do not fit, or a scale is not a positive number.
    fn new(
        kind: Float8,
        scales: Vec<f32>,
        shape: &[usize],
        [rows, columns]: [usize; 2],
        area: Option<[usize; 2]>,
    ) -> std::result::Result<Self, String> {
        if let Some(bad) = scales.iter().find(|s| !s.is_finite() || **s <= 0.0) {
            return Err(format!("a scale is {bad}, which is not a positive number"));
        }
        if let [scale] = scales[..] {
            return Ok(Self::whole(kind, scale));
        }
        let of_rows = shape.first() == Some(&rows) && shape[1..].iter().all(|dim| *dim == 1);
        let (area, across) = match (shape, area) {
            _ if of_rows => ([1, usize::MAX], 1),
            ([down, across], area) => {
                let fits = |[height, width]: &[usize; 2]| {
                    *height > 0
                        && *width > 0
                        && rows.div_ceil(*height) == *down
                        && columns.div_ceil(*width) == *across
                };
                let equal = match (rows.checked_rem(*down), columns.checked_rem(*across)) {
                    (Some(0), Some(0)) => Some([rows / down, columns / across]),
                    _ => None,
                };
                let choices = match area {
                    Some(area) => vec![area],
                    None => [Some([128; 2]), equal].into_iter().flatten().collect(),
                };
                let found = choices.into_iter().find(fits);
                let found = found.ok_or_else(|| misfit(shape, rows, columns, area))?;
                (found, *across)
            }
            _ => return Err(misfit(shape, rows, columns, area)),
        };
        Ok(Self {
            kind,
            scales,
            area,
            across,
        })
    }

    /// Whether rows of so many columns are whole blocks of [`FORMAT`].
    pub fn is_blocks(&self, columns: usize) -> bool {
        let width = self.area[1];
        self.kind == Float8::E4m3
            && columns > 0
            && columns.is_multiple_of(FORMAT.block_size())
            && (width.is_multiple_of(FORMAT.block_size()) || width >= columns)
    }

    fn scale(&self, row: usize, column: usize) -> f32 {
        self.scales[row / self.area[0] * self.across + column / self.area[1]]
    }

    /// Rows as blocks of [`FORMAT`], the first of them row `first` of the matrix. `bits` are whole rows of `columns`.
    ///
    /// # Errors
    /// If one of the floats is not a number, or rows are no whole blocks.
    pub fn blocks(&self, bits: &[u8], first: usize, columns: usize) -> Result<Vec<u8>> {
        let (elements, bytes) = (FORMAT.block_size(), FORMAT.type_size());
        if !self.is_blocks(columns) {
            bail!("rows of {columns} are no blocks of {FORMAT:?}")
        }
        let mut blocks = vec![0; bits.len() / elements * bytes];
        if blocks.is_empty() {
            return Ok(blocks);
        }
        let rows = blocks.par_chunks_exact_mut(columns / elements * bytes);
        let rows = rows.zip(bits.par_chunks_exact(columns)).enumerate();
        rows.try_for_each(|(row, (blocks, bits))| {
            let parts = blocks.chunks_exact_mut(bytes);
            for (i, (block, bits)) in parts.zip(bits.chunks_exact(elements)).enumerate() {
                let (scale, block) = block.split_at_mut(SCALE);
                scale.copy_from_slice(&self.scale(first + row, i * elements).to_le_bytes());
                let mut has_nan = false;
                for (to, bits) in block.iter_mut().zip(bits) {
                    has_nan |= bits & 0x7f == 0x7f;
                    // There is no -0 in the format.
                    *to = if *bits == 0x80 { 0 } else { *bits };
                }
                if has_nan {
                    bail!("row {} has a NaN", first + row)
                }
            }
            Ok(())
        })?;
        Ok(blocks)
    }

    /// Rows as numbers, the first of them row `first` of the matrix.
    ///
    /// # Errors
    /// If one of the floats is not a finite number.
    pub fn values(&self, bits: &[u8], first: usize, columns: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; bits.len()];
        if values.is_empty() {
            return Ok(values);
        }
        let table: [f32; 256] = std::array::from_fn(|bits| self.kind.value(bits as u8));
        let rows = values.par_chunks_exact_mut(columns);
        let rows = rows.zip(bits.par_chunks_exact(columns)).enumerate();
        rows.try_for_each(|(row, (values, bits))| {
            for (column, (value, bits)) in values.iter_mut().zip(bits).enumerate() {
                let number = table[usize::from(*bits)];
                if !number.is_finite() {
                    bail!("row {} has a float that is {number}", first + row)
                }
                *value = number * self.scale(first + row, column);
            }
            Ok(())
        })?;
        Ok(values)
    }
}

fn misfit(shape: &[usize], rows: usize, columns: usize, area: Option<[usize; 2]>) -> String {
    let area = match area {
        Some([height, width]) => format!("areas of {height} by {width}"),
        None => "areas of 128 by 128 or of equal size".to_string(),
    };
    format!(
        "scales of shape {shape:?} do not fit {rows} rows of {columns}: there may be one, one for each row, or one for each of {area}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::quantized::{QStorage, QTensor};
    use candle_core::Device;

    const ROWS: usize = 6;
    const COLUMNS: usize = 128;

    /// Every number of the format, again and again.
    fn bits() -> Vec<u8> {
        let numbers = (0..=255u8).filter(|bits| bits & 0x7f != 0x7f);
        numbers.cycle().take(ROWS * COLUMNS).collect()
    }

    fn scaled(scales: &[f32], shape: &[usize], area: Option<[usize; 2]>) -> Scaled {
        let size = [ROWS, COLUMNS];
        Scaled::new(Float8::E4m3, scales.to_vec(), shape, size, area).unwrap()
    }

    #[test]
    fn blocks_hold_the_same_numbers() {
        let bits = bits();
        let six = [0.5, 1.5, 2.0, 0.1, 7e-3, 1e5];
        for scaled in [
            Scaled::plain(Float8::E4m3),
            scaled(&[0.3], &[], None),
            scaled(&[0.3], &[1, 1], None),
            scaled(&six, &[6], None),
            scaled(&six, &[6, 1], None),
            scaled(&six[..3], &[3, 1], None),
            scaled(&six[..4], &[2, 2], Some([4, 64])),
            scaled(&six, &[3, 2], None),
        ] {
            let values = scaled.values(&bits, 0, COLUMNS).unwrap();
            assert!(scaled.is_blocks(COLUMNS) && !scaled.is_blocks(96));
            let blocks = scaled.blocks(&bits, 0, COLUMNS).unwrap();
            assert_eq!(blocks.len(), ROWS * 2 * 68);
            // Rows by themselves are what they are among the others.
            let (from, to) = (2 * COLUMNS, 4 * COLUMNS);
            let some = scaled.values(&bits[from..to], 2, COLUMNS).unwrap();
            assert_eq!(some, values[from..to]);
            let some = scaled.blocks(&bits[from..to], 2, COLUMNS).unwrap();
            assert_eq!(some, blocks[2 * 136..4 * 136]);
            let storage = QStorage::from_data(blocks.into(), &Device::Cpu, FORMAT).unwrap();
            let matrix = QTensor::new(storage, (ROWS, COLUMNS)).unwrap();
            let matrix = matrix.dequantize(&Device::Cpu).unwrap();
            assert_eq!(
                matrix.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
                values
            );
        }
        let areas = scaled(&six[..4], &[2, 2], Some([4, 64]));
        for (row, column, scale) in [(0, 0, 0.5), (3, 64, 1.5), (4, 63, 2.0), (5, 127, 0.1)] {
            assert_eq!(areas.scale(row, column), scale);
        }
    }

    #[test]
    fn what_are_no_blocks_is_numbers_all_the_same() {
        let narrow = scaled(&[1.0, 2.0, 3.0, 4.0], &[1, 4], None);
        assert!(!narrow.is_blocks(COLUMNS));
        assert!(narrow.blocks(&bits(), 0, COLUMNS).is_err());
        assert_eq!(narrow.scale(5, 95), 3.0);
        let wide = Scaled::plain(Float8::E5m2);
        assert!(!wide.is_blocks(COLUMNS));
        assert_eq!(
            wide.values(&[0x3c, 0xbd, 0x7b], 0, 3).unwrap(),
            [1.0, -1.25, 57344.0]
        );
        assert!(wide.values(&[], 0, 0).unwrap().is_empty());
        let plain = Scaled::plain(Float8::E4m3);
        assert!(plain.blocks(&[], 0, COLUMNS).unwrap().is_empty());
        assert!(!plain.is_blocks(0));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        let plain = Scaled::plain(Float8::E4m3);
        for bad in [0x7f, 0xff] {
            let mut bits = bits();
            bits[3 * COLUMNS + 77] = bad;
            let refused = plain.blocks(&bits, 0, COLUMNS).unwrap_err().to_string();
            assert!(refused.contains("row 3"), "{refused}");
            let refused = plain.values(&bits, 0, COLUMNS).unwrap_err().to_string();
            assert!(refused.contains("row 3"), "{refused}");
        }
        let wide = Scaled::plain(Float8::E5m2);
        for bad in [0x7c, 0x7d, 0xfc] {
            assert!(wide.values(&[bad], 0, 1).is_err());
        }
        let of = |scales: &[f32], shape: &[usize], area| {
            let size = [ROWS, COLUMNS];
            Scaled::new(Float8::E4m3, scales.to_vec(), shape, size, area).unwrap_err()
        };
        for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert!(of(&[1.0, bad], &[2], None).contains("positive"));
        }
        for (shape, area) in [
            (&[4][..], None),
            (&[2, 2], Some([4, 128])),
            (&[2, 2], Some([0, 64])),
            (&[4, 1], None),
            (&[1, 1, 4], None),
            (&[0, 0], None),
        ] {
            let count = shape.iter().product();
            assert!(
                of(&vec![1.0; count], shape, area).contains("do not fit"),
                "{shape:?}"
            );
        }
    }
}
