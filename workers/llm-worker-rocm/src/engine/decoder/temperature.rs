//! Factors of queries by position.

use super::traits::Temperature;
use candle_core::{DType, Device, Result, Tensor};
use candle_rocm_flash_attn::paged::PagedBatch;

/// Positions that a table has at least; beyond, it doubles.
const FIRST_TABLE: usize = 512;

impl Temperature {
    /// The factor at a position.
    fn at(self, position: usize) -> f64 {
        let step = (position + self.offset as usize) / self.length.max(1) as usize;
        1.0 + f64::from(self.scale) * (step as f64).ln_1p()
    }
}

/// A table of factors that grows with the longest sequence.
pub(super) struct Temperatures {
    of: Option<Temperature>,
    dtype: DType,
    table: Option<Tensor>,
}

impl Temperatures {
    pub(super) fn new(of: Option<Temperature>, dtype: DType) -> Self {
        Self {
            of,
            dtype,
            table: None,
        }
    }

    /// The factor of each row of a batch, `(rows, 1, 1)`, if there are any.
    pub(super) fn rows(&mut self, batch: &PagedBatch, device: &Device) -> Result<Option<Tensor>> {
        let Some(of) = self.of else { return Ok(None) };
        let have = self.table.as_ref().map_or(0, |table| table.elem_count());
        if have < batch.positions() || have == 0 {
            let count = batch.positions().next_power_of_two().max(FIRST_TABLE);
            let factors: Vec<f32> = (0..count).map(|i| of.at(i) as f32).collect();
            let table = Tensor::from_vec(factors, count, device)?;
            self.table = Some(table.to_dtype(self.dtype)?);
        }
        let Some(table) = &self.table else {
            return Ok(None);
        };
        let rows = table.index_select(&batch.position_ids(device)?, 0)?;
        Ok(Some(rows.reshape((batch.tokens(), 1, 1))?))
    }

    /// The table, if there is one yet.
    pub(super) fn get(&self) -> Option<&Tensor> {
        self.table.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_grow_by_steps() {
        let of = Temperature {
            scale: 0.1,
            length: 8,
            offset: 1,
        };
        assert_eq!(of.at(0), 1.0);
        assert_eq!(of.at(6), 1.0);
        assert!((of.at(7) - (1.0 + 0.1 * 2f64.ln())).abs() < 1e-7);
        assert_eq!(of.at(7), of.at(14));
        assert!((of.at(23) - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-7);
    }
}
