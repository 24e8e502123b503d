//! How the prompt's prediction and the negative prompt's are brought together.

use crate::sampling::quantile::quantiles;
use candle_core::{Result, Tensor};

/// Classifier-free guidance and its kin.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Form {
    /// The difference, scaled (Ho and Salimans 2022).
    #[default]
    Plain,
    /// CFG-Zero*: the negative prompt's prediction is scaled to lie as near as it can to the prompt's (Fan et al. 2025).
    ZeroStar,
    /// Adaptive projected guidance (Sadat et al. 2024).
    Projected(Projection),
    /// Dynamic thresholding of the "mimic" kind: the values of a lower guidance bound those of the guided prediction.
    Mimic(Mimic),
}

/// Settings of adaptive projected guidance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Projection {
    /// Share of the difference along the prompt's prediction that is kept, against saturation.
    pub eta: f64,
    /// Largest length of the difference; 0 is none.
    pub norm: f64,
    /// How much of earlier differences is added, usually below 0; 0 is none.
    pub momentum: f64,
}

/// Settings of dynamic thresholding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mimic {
    /// The guidance whose values are taken for a bound.
    pub scale: f64,
    /// Share of the guided values, 0 to 1, that is not cut.
    pub percentile: f64,
}

/// What a form remembers of earlier steps.
#[derive(Debug, Default)]
pub struct Memory {
    difference: Option<Tensor>,
}

impl Form {
    pub(super) fn combine(
        &self,
        negative: &Tensor,
        positive: &Tensor,
        scale: f64,
        memory: &mut Memory,
    ) -> Result<Tensor> {
        match self {
            Self::Plain => negative + ((positive - negative)? * scale)?,
            Self::ZeroStar => {
                let nearest = (dot(positive, negative)? / (dot(negative, negative)? + 1e-8)?)?;
                let negative = negative.broadcast_mul(&nearest)?;
                &negative + ((positive - &negative)? * scale)?
            }
            Self::Projected(projection) => projection.combine(negative, positive, scale, memory),
            Self::Mimic(mimic) => mimic.combine(negative, positive, scale),
        }
    }
}

/// The product of each image's predictions, with all other dimensions kept as 1.
fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let mut shape = vec![1; a.rank()];
    shape[0] = a.dim(0)?;
    (a * b)?.flatten_from(1)?.sum_keepdim(1)?.reshape(shape)
}

impl Projection {
    fn combine(
        &self,
        negative: &Tensor,
        positive: &Tensor,
        scale: f64,
        memory: &mut Memory,
    ) -> Result<Tensor> {
        let mut difference = (positive - negative)?;
        if self.momentum != 0.0 {
            if let Some(before) = memory.difference.take() {
                difference = (difference + (before * self.momentum)?)?;
            }
            memory.difference = Some(difference.clone());
        }
        if self.norm > 0.0 {
            let length = dot(&difference, &difference)?.sqrt()?;
            let factor = (length.recip()? * self.norm)?.minimum(1.0)?;
            difference = difference.broadcast_mul(&factor)?;
        }
        // A prediction of nothing has no direction.
        let square = dot(positive, positive)?.maximum(1e-24)?;
        let share = (dot(&difference, positive)? / square)?;
        let along = positive.broadcast_mul(&share)?;
        let update = ((difference - &along)? + (along * self.eta)?)?;
        negative + (update * scale)?
    }
}

impl Mimic {
    fn combine(&self, negative: &Tensor, positive: &Tensor, scale: f64) -> Result<Tensor> {
        let difference = (positive - negative)?;
        let rows = |scale: f64| (negative + (&difference * scale)?)?.flatten_from(2);
        let (lower, guided) = (rows(self.scale)?, rows(scale)?);
        let mean = guided.mean_keepdim(2)?;
        let lower = lower.broadcast_sub(&lower.mean_keepdim(2)?)?;
        let centred = guided.broadcast_sub(&mean)?;
        let bound = lower.abs()?.max_keepdim(2)?;
        let own = match self.percentile < 1.0 {
            true => quantiles(&centred.abs()?, self.percentile)?,
            false => centred.abs()?.max_keepdim(2)?,
        };
        let most = bound.maximum(&own)?;
        let shares = centred.broadcast_div(&most)?.clamp(-1.0, 1.0)?;
        shares
            .broadcast_mul(&bound)?
            .broadcast_add(&mean)?
            .reshape(negative.shape())
    }
}
