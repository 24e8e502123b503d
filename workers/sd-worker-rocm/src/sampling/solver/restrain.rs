//! Bounds on the image that a network sees, for models in pixels.

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
        let sizes = image.abs()?.flatten_from(1)?.to_vec2::<f32>()?;
        let bounds = sizes.into_iter().map(|mut sizes| {
            sizes.sort_by(f32::total_cmp);
            let place = quantile * (sizes.len() - 1) as f64;
            let (low, high) = (sizes[place.floor() as usize], sizes[place.ceil() as usize]);
            let between = f64::from(low) + place.fract() * f64::from(high - low);
            between.min(most).max(1.0) as f32
        });
        let mut shape = vec![1; image.rank()];
        shape[0] = image.dim(0)?;
        let bounds: Vec<f32> = bounds.collect();
        let bound = Tensor::from_vec(bounds, shape, image.device())?;
        image.broadcast_div(&bound)?.clamp(-1.0, 1.0)
    }
}
