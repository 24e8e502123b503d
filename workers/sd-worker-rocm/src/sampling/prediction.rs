//! What a network predicts, turned into the image that it sees behind the noise.

use super::NoiseLevel;
use candle_core::{Result, Tensor};

/// What the network's output means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prediction {
    /// The noise.
    Epsilon,
    /// `alpha · noise - sigma · image` (Salimans and Ho 2022).
    Velocity,
    /// `noise - image`, the direction of a straight path (rectified flow).
    Flow,
    /// The image.
    Sample,
}

impl Prediction {
    /// The image behind `x`, as the network's `output` at this noise level tells; all of the same shape and dtype.
    ///
    /// # Errors
    /// candle's.
    pub fn denoised(self, x: &Tensor, output: &Tensor, level: &NoiseLevel) -> Result<Tensor> {
        let NoiseLevel { alpha, sigma, .. } = *level;
        match self {
            Self::Epsilon => (x - (output * sigma)?)? / alpha,
            Self::Velocity => (x * alpha)? - (output * sigma)?,
            Self::Flow => x - (output * sigma)?,
            Self::Sample => Ok(output.clone()),
        }
    }
}
