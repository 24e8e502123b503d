//! Rotary position embeddings: cosines and sines by position.
//!
//! "RoFormer: Enhanced Transformer with Rotary Position Embedding", Su et al., 2021; "YaRN: Efficient Context Window
//! Extension of Large Language Models", Peng et al., 2023.

use crate::engine::media::Turn;
use candle_core::{Device, Result, Tensor};
use candle_nn::rotary_emb::rope_thd;
use candle_rocm_flash_attn::paged::{PagedBatch, Rotary};

/// Positions that a table has at least; beyond, it doubles.
const FIRST_TABLE: usize = 512;

/// Multiples of so many pairs of halves are turned by the kernel that writes keys.
const EVEN_PAIRS: usize = 8;

/// How frequencies are changed for contexts longer than those of training.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Scaling {
    None,
    /// All are divided.
    Linear(f32),
    Yarn(Yarn),
}

/// Slow pairs are divided, fast ones are not.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Yarn {
    pub factor: f32,
    pub original_context: usize,
    /// Turns in the original context from which pairs count as fast, and up to which as slow.
    pub beta_fast: f32,
    pub beta_slow: f32,
    /// The first pair that changes and the last one are whole numbers.
    pub whole_pairs: bool,
}

/// Radians per position for each pair of `dims` elements. `factors` divide them further.
pub(super) fn frequencies(
    dims: usize,
    base: f32,
    scaling: &Scaling,
    factors: Option<&[f32]>,
) -> Vec<f64> {
    let base = f64::from(base);
    (0..dims / 2)
        .map(|pair| {
            let factor = factors.map_or(1.0, |f| f64::from(f[pair]));
            let plain = base.powf(-2.0 * pair as f64 / dims as f64) / factor;
            match scaling {
                Scaling::None => plain,
                Scaling::Linear(factor) => plain / f64::from(*factor),
                Scaling::Yarn(yarn) => {
                    let slow = yarn.slowness(pair, dims, base);
                    plain / f64::from(yarn.factor) * slow + plain * (1.0 - slow)
                }
            }
        })
        .collect()
}

impl Yarn {
    /// From 0, fast, to 1, slow.
    fn slowness(&self, pair: usize, dims: usize, base: f64) -> f64 {
        // The pair that turns so often in the original context.
        let pair_of = |turns: f32| {
            let wavelength =
                self.original_context as f64 / (f64::from(turns) * std::f64::consts::TAU);
            dims as f64 * wavelength.ln() / (2.0 * base.ln())
        };
        let most = dims as f64 - 1.0;
        let (first, last) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        let (first, last) = match self.whole_pairs {
            true => (first.floor(), last.ceil()),
            false => (first, last),
        };
        let (first, last) = (first.clamp(0.0, most), last.clamp(0.0, most));
        ((pair as f64 - first) / (last - first).max(1e-3)).clamp(0.0, 1.0)
    }
}

/// Cosines and sines of each row of a pass, f32 `(rows, pairs)`.
pub(super) struct TurnedRows {
    cos: Tensor,
    sin: Tensor,
}

impl TurnedRows {
    /// Turns `(rows, heads, size)`: halves of the first elements of each head.
    pub(super) fn turn(&self, x: &Tensor) -> Result<Tensor> {
        let (size, dims) = (x.dim(2)?, 2 * self.cos.dim(1)?);
        let (cos, sin) = (self.cos.to_dtype(x.dtype())?, self.sin.to_dtype(x.dtype())?);
        let head = x.narrow(2, 0, dims)?.contiguous()?.unsqueeze(0)?;
        let turned = rope_thd(&head, &cos, &sin)?.squeeze(0)?;
        match dims == size {
            true => Ok(turned),
            // Rows without gaps, as caches take them.
            false => Tensor::cat(&[turned, x.narrow(2, dims, size - dims)?], 2)?.contiguous(),
        }
    }
}

/// Tables that grow with the longest sequence.
pub(super) struct Tables {
    frequencies: Vec<f64>,
    magnitude: f64,
    interleaved: bool,
    device: Device,
    tables: Option<Rotary>,
}

impl Tables {
    pub(super) fn new(
        frequencies: Vec<f64>,
        magnitude: f32,
        interleaved: bool,
        device: &Device,
    ) -> Self {
        Self {
            frequencies,
            magnitude: magnitude.into(),
            interleaved,
            device: device.clone(),
            tables: None,
        }
    }

    /// Tables of at least `positions` rows, if anything turns by them.
    pub(super) fn rows(&mut self, positions: usize) -> Result<Option<&Rotary>> {
        if self.frequencies.is_empty() {
            return Ok(None);
        }
        let have = match &self.tables {
            Some(tables) => tables.cos.dim(0)?,
            None => 0,
        };
        if have < positions || self.tables.is_none() {
            let rows = positions.next_power_of_two().max(FIRST_TABLE);
            self.tables = Some(Rotary {
                cos: self.table(rows, f64::cos)?,
                sin: self.table(rows, f64::sin)?,
                interleaved: self.interleaved,
            });
        }
        Ok(self.tables.as_ref())
    }

    /// Cosines and sines of a batch's rows, if these turn on a GPU by a number of elements that its kernel does not take.
    pub(super) fn uneven_rows(&mut self, batch: &PagedBatch) -> Result<Option<TurnedRows>> {
        let pairs = self.frequencies.len();
        if self.interleaved || !self.device.is_rocm() || pairs.is_multiple_of(EVEN_PAIRS) {
            return Ok(None);
        }
        let ids = batch.position_ids(&self.device)?;
        let Some(tables) = self.rows(batch.positions())? else {
            return Ok(None);
        };
        Ok(Some(TurnedRows {
            cos: tables.cos.index_select(&ids, 0)?,
            sin: tables.sin.index_select(&ids, 0)?,
        }))
    }

    /// Where the tables are.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Cosines and sines of rows, each pair turned by one of three numbers: which one, `axes` tells; by the first where
    /// it does not.
    pub(super) fn turned(&self, turns: &[Turn], axes: &[u8]) -> Result<TurnedRows> {
        let angles = |turn: &Turn| {
            let axes = axes.iter().chain(std::iter::repeat(&0));
            let pairs = self.frequencies.iter().zip(axes);
            let by = pairs.map(|(f, axis)| f64::from(turn[usize::from(*axis)]) * f);
            by.collect::<Vec<f64>>()
        };
        let angles: Vec<f64> = turns.iter().flat_map(angles).collect();
        let table = |function: fn(f64) -> f64| {
            let values = angles
                .iter()
                .map(|a| (function(*a) * self.magnitude) as f32);
            let values: Vec<f32> = values.collect();
            Tensor::from_vec(values, (turns.len(), self.frequencies.len()), &self.device)
        };
        Ok(TurnedRows {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }

    /// The tables, if there are any yet.
    pub(super) fn get(&self) -> Option<&Rotary> {
        self.tables.as_ref()
    }

    fn table(&self, rows: usize, function: impl Fn(f64) -> f64) -> Result<Tensor> {
        let angles = (0..rows).flat_map(|row| self.frequencies.iter().map(move |f| row as f64 * f));
        let values: Vec<f32> = angles
            .map(|angle| (function(angle) * self.magnitude) as f32)
            .collect();
        Tensor::from_vec(values, (rows, self.frequencies.len()), &self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_leaves_fast_pairs_and_divides_slow_ones() {
        let scaling = Scaling::Yarn(Yarn {
            factor: 4.0,
            original_context: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole_pairs: true,
        });
        let scaled = frequencies(128, 10_000.0, &scaling, None);
        let plain = frequencies(128, 10_000.0, &Scaling::None, None);
        // 32 turns in 4096 positions are those of pair 20.9, one turn that of pair 45.03.
        for (pair, (scaled, plain)) in scaled.iter().zip(&plain).enumerate() {
            let ratio = plain / scaled;
            match pair {
                0..=20 => assert!((ratio - 1.0).abs() < 1e-12, "{pair}: {ratio}"),
                46.. => assert!((ratio - 4.0).abs() < 1e-12, "{pair}: {ratio}"),
                _ => assert!(ratio > 1.0 && ratio < 4.0, "{pair}: {ratio}"),
            }
        }
    }
}
