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
    /// What the image is more than its share that the state tells (Karras et al. 2022), in units of the data's spread.
    EdmNoise,
    /// The same with the other sign.
    EdmVelocity,
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
            Self::EdmNoise | Self::EdmVelocity => {
                // The data's spread is what data² alpha² + sigma² = 1 leaves.
                let data = (1.0 - sigma * sigma).max(0.0).sqrt() / alpha;
                let sign = if self == Self::EdmNoise { 1.0 } else { -1.0 };
                (x * (data * data * alpha))? + (output * (sign * data * sigma))?
            }
        }
    }
}
