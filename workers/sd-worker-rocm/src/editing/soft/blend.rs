//! Latents of a step: what is kept and what is painted, mixed.

use super::SoftInpainting;
use candle_core::{Result, Tensor};

/// Lengths below this count as this, so that there are logarithms of them.
const LEAST: f64 = 1e-30;
/// What is added to a length that is divided by.
const EPSILON: f64 = 1e-5;
/// Largest exponent of a mask; whatever is less than white vanishes there.
const MOST: f64 = 1e6;

impl SoftInpainting {
    /// `painted`, `(batch, channels, height, width)`, mixed with `kept`, of one picture or as many: along straight lines
    /// by the mask, `(1, 1, height, width)`, of which grey counts less where there is much noise (`sigma`, over the
    /// image's share). Lengths of the channels' vectors are mixed apart, with the longer one ahead, as mixtures are too
    /// short.
    ///
    /// # Errors
    /// The device's.
    pub fn blend(
        &self,
        kept: &Tensor,
        painted: &Tensor,
        mask: &Tensor,
        sigma: f64,
    ) -> Result<Tensor> {
        let exponent = match self.preservation_strength == 0.0 {
            true => 0.0,
            false => sigma.powf(self.schedule_bias) * self.preservation_strength,
        };
        let new = mask.powf(exponent.min(MOST))?;
        let old = new.affine(-1.0, 1.0)?;
        let mixed = painted
            .broadcast_mul(&new)?
            .broadcast_add(&kept.broadcast_mul(&old)?)?;
        let length = |x: &Tensor| x.sqr()?.sum_keepdim(1)?.sqrt();
        // The sum of powers is taken of logarithms: powers of 32 leave the range of f32.
        let power = self.transition_contrast_boost;
        let part = |x: &Tensor, share: &Tensor| {
            let powers = length(x)?.maximum(LEAST)?.log()?.affine(power, 0.0)?;
            // A share of nothing is minus infinity, and its power 0.
            powers.broadcast_add(&share.log()?)
        };
        let (a, b) = (part(painted, &new)?, part(kept, &old)?);
        let b = b.broadcast_as(a.shape())?;
        let most = a.maximum(&b)?;
        let sum = ((&a - &most)?.exp()? + (&b - &most)?.exp()?)?;
        let wanted = ((most + sum.log()?)? / power)?.exp()?;
        let factor = (wanted / (length(&mixed)? + EPSILON)?)?;
        mixed.broadcast_mul(&factor)
    }
}
