//! Rotations by which a language model knows where its tokens stand.

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use serde::Deserialize;
use serde_json::Value;
use std::f64::consts::PI;

/// Which frequencies turn with a token's time, row and column in a picture; for tokens of text the three are the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sections {
    sizes: [usize; 3],
    interleaved: bool,
}

impl Sections {
    /// So many frequencies each of a head's, one block after the other or by turns.
    ///
    /// # Errors
    /// If they do not make up a head.
    pub fn new(sizes: [usize; 3], interleaved: bool, head_dim: usize) -> Result<Self, String> {
        let sum: Option<usize> = sizes
            .iter()
            .try_fold(0usize, |sum, size| sum.checked_add(*size));
        match sum == Some(head_dim / 2) {
            true => Ok(Self { sizes, interleaved }),
            false => Err(format!(
                "mrope_section {sizes:?} does not make up half of head_dim {head_dim}"
            )),
        }
    }

    /// Of the frequency's number.
    fn axis(&self, i: usize) -> usize {
        let [time, row, _] = self.sizes;
        match self.interleaved {
            // Time has what the others leave.
            true => match i % 3 {
                axis if axis > 0 && i < 3 * self.sizes[axis] => axis,
                _ => 0,
            },
            false if i < time => 0,
            false if i < time + row => 1,
            false => 2,
        }
    }
}

/// How frequencies were stretched for longer texts.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scaling {
    None,
    /// All by one factor.
    Linear(f64),
    /// Llama 3's: long waves by a factor, short ones not at all.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original: f64,
    },
}

/// The frequencies of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    theta: f64,
    scaling: Scaling,
    sections: Option<Sections>,
}

#[derive(Deserialize)]
struct Long {
    factor: f64,
    low_freq_factor: f64,
    high_freq_factor: f64,
    original_max_position_embeddings: f64,
}

impl Rotation {
    /// Frequencies `theta^(-2i / head size)`, stretched as `parameters` says: the object of that name in configuration
    /// files, or null.
    ///
    /// # Errors
    /// Names a way of stretching that is not implemented, or what it lacks.
    pub fn new(theta: f64, parameters: &Value, sections: Option<Sections>) -> Result<Self, String> {
        if !theta.is_finite() || theta < 1.0 {
            return Err(format!("rope_theta {theta} is not possible"));
        }
        let kind = parameters.get("rope_type").or(parameters.get("type"));
        let bad = |e: serde_json::Error| format!("rope_scaling: {e}");
        let scaling = match kind.and_then(Value::as_str).unwrap_or("default") {
            // The second stands for sections.
            "default" | "mrope" => Scaling::None,
            "linear" => match parameters["factor"].as_f64() {
                Some(factor) if factor > 0.0 => Scaling::Linear(factor),
                _ => return Err("rope_scaling: linear without a factor".to_string()),
            },
            "llama3" => {
                let long = Long::deserialize(parameters).map_err(bad)?;
                let positive = long.factor > 0.0
                    && long.low_freq_factor > 0.0
                    && long.high_freq_factor > long.low_freq_factor
                    && long.original_max_position_embeddings > 0.0;
                if !positive {
                    return Err("rope_scaling: llama3 with impossible factors".to_string());
                }
                Scaling::Llama3 {
                    factor: long.factor,
                    low: long.low_freq_factor,
                    high: long.high_freq_factor,
                    original: long.original_max_position_embeddings,
                }
            }
            other => return Err(format!("rope_scaling of kind {other} is not implemented")),
        };
        Ok(Self {
            theta,
            scaling,
            sections,
        })
    }

    fn frequency(&self, i: usize, head_dim: usize) -> f64 {
        let frequency = self.theta.powf(-2.0 * i as f64 / head_dim as f64);
        match self.scaling {
            Scaling::None => frequency,
            Scaling::Linear(factor) => frequency / factor,
            Scaling::Llama3 {
                factor,
                low,
                high,
                original,
            } => {
                let turns = original * frequency / (2.0 * PI);
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (share + (1.0 - share) / factor)
            }
        }
    }

    /// Cosines and sines for tokens at these times, rows and columns, `(tokens, head_dim / 2)` each. Angles are computed
    /// in f64.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn turns(
        &self,
        positions: &[[usize; 3]],
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Turns> {
        let half = head_dim / 2;
        let frequencies: Vec<f64> = (0..half).map(|i| self.frequency(i, head_dim)).collect();
        let axis = |i| self.sections.map_or(0, |sections| sections.axis(i));
        let angles = positions.iter().flat_map(|position| {
            let frequencies = frequencies.iter().enumerate();
            frequencies.map(move |(i, frequency)| position[axis(i)] as f64 * frequency)
        });
        Turns::of_angles(angles.collect(), half, dtype, device)
    }
}

/// Cosines and sines of positions.
#[derive(Debug, Clone)]
pub struct Turns {
    cos: Tensor,
    sin: Tensor,
}

impl Turns {
    /// Those of so many angles a token.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn of_angles(
        angles: Vec<f64>,
        count: usize,
        dtype: DType,
        device: &Device,
    ) -> CandleResult<Self> {
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|angle| of(*angle) as f32).collect();
            Tensor::from_vec(values, (angles.len() / count, count), device)?.to_dtype(dtype)
        };
        Ok(Self {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }

    /// `x`, `(batch, heads, tokens, head_dim)`, with each channel of the first half turned together with its fellow of
    /// the second.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn apply(&self, x: &Tensor) -> CandleResult<Tensor> {
        candle_nn::rotary_emb::rope(&x.contiguous()?, &self.cos, &self.sin)
    }
}
