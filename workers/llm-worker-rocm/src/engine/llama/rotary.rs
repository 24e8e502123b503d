//! Rotary position embeddings: cosines and sines by position.
//!
//! "RoFormer: Enhanced Transformer with Rotary Position Embedding", Su et al., 2021.

use candle_core::{Device, Result, Tensor};

/// Positions that a table has at least; beyond, it doubles.
const FIRST_TABLE: usize = 512;

/// Tables of `(positions, head_dim / 2)` that grow with the sequence.
pub(super) struct Rotary {
    /// Radians per position for each pair of elements.
    frequencies: Vec<f64>,
    tables: Option<(Tensor, Tensor)>,
    device: Device,
}

impl Rotary {
    /// `factors` divide the frequencies, as Llama 3.1's scaling asks for.
    pub(super) fn new(
        head_dim: usize,
        base: f32,
        factors: Option<Vec<f32>>,
        device: &Device,
    ) -> Self {
        let frequencies = (0..head_dim / 2)
            .map(|pair| {
                let factor = factors.as_ref().map_or(1.0, |f| f64::from(f[pair]));
                f64::from(base).powf(-2.0 * pair as f64 / head_dim as f64) / factor
            })
            .collect();
        Self {
            frequencies,
            tables: None,
            device: device.clone(),
        }
    }

    /// Cosines and sines of `count` positions from `position` on.
    pub(super) fn tables(&mut self, position: usize, count: usize) -> Result<(Tensor, Tensor)> {
        let needed = position + count;
        let have = match &self.tables {
            Some((cos, _)) => cos.dim(0)?,
            None => 0,
        };
        if have < needed {
            let rows = needed.next_power_of_two().max(FIRST_TABLE);
            self.tables = Some((self.table(rows, f64::cos)?, self.table(rows, f64::sin)?));
        }
        let (cos, sin) = self.tables.as_ref().expect("made above");
        Ok((
            cos.narrow(0, position, count)?,
            sin.narrow(0, position, count)?,
        ))
    }

    fn table(&self, rows: usize, function: impl Fn(f64) -> f64) -> Result<Tensor> {
        let angles = (0..rows).flat_map(|row| self.frequencies.iter().map(move |f| row as f64 * f));
        let values: Vec<f32> = angles.map(|angle| function(angle) as f32).collect();
        Tensor::from_vec(values, (rows, self.frequencies.len()), &self.device)
    }
}
