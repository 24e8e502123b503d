//! Classifier-free guidance.

use candle_core::{Result, Tensor, D};

/// How strongly the prompt steers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// Up to 1 is the prompt's prediction alone; larger moves away from the negative prompt's.
    pub scale: f64,
    /// Share of the prediction that is scaled back to the spread of the prompt's own (Lin et al. 2024), against
    /// overexposure of zero-terminal-SNR models; 0 is off, 0.7 usual.
    pub rescale: f64,
}

impl Guidance {
    /// Whether the negative prompt's prediction is needed at all.
    pub fn is_active(&self) -> bool {
        self.scale > 1.0
    }

    /// The guided prediction from the negative prompt's and the prompt's, `(N, C, H, W)` or `(N, L, C)` each.
    ///
    /// # Errors
    /// candle's.
    pub fn combine(&self, negative: &Tensor, positive: &Tensor) -> Result<Tensor> {
        let guided = (negative + ((positive - negative)? * self.scale)?)?;
        if self.rescale == 0.0 {
            return Ok(guided);
        }
        let factor = (spread(positive)? / spread(&guided)?)?;
        // rescale · guided · factor + (1 - rescale) · guided
        guided.broadcast_mul(&factor.affine(self.rescale, 1.0 - self.rescale)?)
    }
}

/// Standard deviation of each image's prediction, with all other dimensions kept as 1.
fn spread(x: &Tensor) -> Result<Tensor> {
    let images = x.dim(0)?;
    let mut shape = vec![1; x.rank()];
    shape[0] = images;
    x.reshape((images, ()))?
        .var_keepdim(D::Minus1)?
        .sqrt()?
        .reshape(shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn rescaled_guidance_has_the_prompts_spread() {
        let cpu = &Device::Cpu;
        let negative = Tensor::new(&[[0f32, 1., 2., 3.], [1., 0., 1., 0.]], cpu).unwrap();
        let positive = Tensor::new(&[[1f32, -1., 4., 2.], [0., 2., 0., 5.]], cpu).unwrap();
        let full = Guidance {
            scale: 7.5,
            rescale: 1.0,
        };
        let guided = full.combine(&negative, &positive).unwrap();
        let ratio = (spread(&guided).unwrap() / spread(&positive).unwrap()).unwrap();
        for r in ratio.flatten_all().unwrap().to_vec1::<f32>().unwrap() {
            assert!((r - 1.0).abs() < 1e-5, "{r}");
        }
        let none = Guidance {
            scale: 2.0,
            rescale: 0.0,
        };
        let guided = none.combine(&negative, &positive).unwrap();
        assert_eq!(
            guided.to_vec2::<f32>().unwrap(),
            [[2., -3., 6., 1.], [-1., 4., -1., 10.]]
        );
    }
}
