//! Scales of adapters where graphs find them: a table on the device, which a step's numbers point into.

use super::super::decode::in_memory;
use candle_core::{bail, DType, Device, Result, Tensor};

/// Scales that are at hand at once: far more than a step has.
const MOST: usize = 1024;

/// The table. Its first scale is 0; it stays where it is, so that what was recorded finds new ones.
pub(in crate::engine::decoder) struct Scales {
    known: Vec<f32>,
    table: Tensor,
}

impl Scales {
    pub(in crate::engine::decoder) fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            known: vec![0.0],
            table: Tensor::zeros(MOST, DType::F32, device)?,
        })
    }

    /// The scales on the device, f32.
    pub(in crate::engine::decoder) fn table(&self) -> &Tensor {
        &self.table
    }

    /// The places of a step's scales.
    ///
    /// # Errors
    /// If there are more than the table takes, or the device fails.
    pub(in crate::engine::decoder) fn places(&mut self, scales: &[f32]) -> Result<Vec<u32>> {
        let before = self.known.len();
        let mut places = Vec::with_capacity(scales.len());
        for scale in scales {
            let same = |known: &f32| known.to_bits() == scale.to_bits() || known == scale;
            places.push(match self.known.iter().position(same) {
                Some(place) => place as u32,
                None => {
                    self.known.push(*scale);
                    self.known.len() as u32 - 1
                }
            });
        }
        if self.known.len() > MOST {
            // Those of earlier steps go, if that helps.
            let others = before > 1;
            self.known.truncate(1);
            return match others {
                true => self.places(scales),
                false => bail!("a step wants adapters at more than {MOST} scales"),
            };
        }
        if self.known.len() > before || before == 1 {
            let bytes: Vec<u8> = self.known.iter().flat_map(|s| s.to_le_bytes()).collect();
            in_memory(&self.table, |table| {
                Ok(table.device().upload_into(&bytes, table, 0)?)
            })?;
        }
        Ok(places)
    }
}
