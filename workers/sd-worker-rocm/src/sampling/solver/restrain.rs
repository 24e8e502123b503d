//! Bounds on the image that a network sees, for models in pixels.

use crate::sampling::quantile::quantiles;
use candle_core::{Result, Tensor};

/// How a predicted image is kept in bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Restrain {
    /// Cut at this size, on both sides of 0.
    Clip(f64),
    /// Cut at a quantile of each image's sizes, from 1 to `most`, and divided by it (Saharia et al. 2022).
    Threshold {
        /// The quantile, 0 to 1.
        quantile: f64,
        /// Largest size that is not cut.
        most: f64,
    },
}

impl Restrain {
    /// The image in bounds. A threshold reads the image's values.
    pub fn apply(self, image: &Tensor) -> Result<Tensor> {
        let (quantile, most) = match self {
            Self::Clip(range) => return image.clamp(-range, range),
            Self::Threshold { quantile, most } => (quantile, most),
        };
        let bound = quantiles(&image.abs()?.flatten_from(1)?, quantile)?;
        let mut shape = vec![1; image.rank()];
        shape[0] = image.dim(0)?;
        let bound = bound.clamp(1.0, most)?.reshape(shape)?;
        image.broadcast_div(&bound)?.clamp(-1.0, 1.0)
    }
}
