//! Classifier-free guidance.

mod form;

pub use form::{Form, Memory, Mimic, Projection};

use candle_core::{Result, Tensor, D};

/// How strongly the prompt steers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guidance {
    /// How the two predictions are brought together.
    pub form: Form,
    /// What keeps the length that it has in the prompt's own prediction.
    pub length: Length,
    /// Up to 1 is the prompt's prediction alone; larger moves away from the negative prompt's.
    pub scale: f64,
    /// Share of the prediction that is scaled back to the spread of the prompt's own (Lin et al. 2024), against
    /// overexposure of zero-terminal-SNR models; 0 is off, 0.7 usual.
    pub rescale: f64,
}

/// Which vectors of a guided prediction keep the length that they have in the prompt's own prediction.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Length {
    /// None.
    #[default]
    Free,
    /// Rows of latents, as Lumina 2's pipeline has it.
    Rows,
    /// All channels of patches of 2x2 latents, as Qwen-Image's has it.
    Patches,
    /// Whole pictures, which may have up to so many times the length, as Z-Image's has it.
    AtMost(f64),
}

impl Length {
    /// `(N, C, H, W)` to the vectors' lengths, of shapes that are broadcast to that.
    fn of(self, x: &Tensor) -> Result<Option<Tensor>> {
        let squares = match self {
            Self::Free => return Ok(None),
            Self::Rows => x.sqr()?.sum_keepdim(D::Minus1)?,
            Self::AtMost(_) => {
                let mut shape = vec![1; x.rank()];
                shape[0] = x.dim(0)?;
                x.sqr()?.flatten_from(1)?.sum_keepdim(1)?.reshape(shape)?
            }
            Self::Patches => {
                let (_, _, height, width) = x.dims4()?;
                let patches = (x.sqr()?.sum_keepdim(1)?.avg_pool2d(2)? * 4.0)?;
                patches.upsample_nearest2d(height, width)?
            }
        };
        squares.sqrt().map(Some)
    }
}

impl Guidance {
    /// Whether the negative prompt's prediction is needed at all.
    pub fn is_active(&self) -> bool {
        self.scale > 1.0
    }

    /// The guided prediction from the negative prompt's and the prompt's, `(N, C, H, W)` or `(N, L, C)` each, before
    /// [`Self::rescaled`]. `memory` is what the form remembers of a run.
    ///
    /// # Errors
    /// candle's.
    pub fn combine(
        &self,
        negative: &Tensor,
        positive: &Tensor,
        memory: &mut Memory,
    ) -> Result<Tensor> {
        let guided = self.form.combine(negative, positive, self.scale, memory)?;
        match (self.length.of(positive)?, self.length.of(&guided)?) {
            (Some(own), Some(now)) => {
                let factor = (own / now)?;
                guided.broadcast_mul(&match self.length {
                    Length::AtMost(most) => (factor * most)?.minimum(1.0)?,
                    _ => factor,
                })
            }
            _ => Ok(guided),
        }
    }

    /// A guided prediction with the spread of the prompt's, as far as `rescale` says.
    ///
    /// # Errors
    /// candle's.
    pub fn rescaled(&self, guided: Tensor, positive: &Tensor) -> Result<Tensor> {
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
    fn lengths_are_kept() {
        let cpu = &Device::Cpu;
        let x = |factor: f64| {
            let values: Vec<f32> = (0..48)
                .map(|i| ((i * i) as f64 * factor).sin() as f32)
                .collect();
            Tensor::from_vec(values, (1, 3, 4, 4), cpu).unwrap()
        };
        let (negative, positive) = (x(0.37), x(0.91));
        for length in [Length::Rows, Length::Patches] {
            let guidance = Guidance {
                form: Form::Plain,
                length,
                scale: 4.0,
                rescale: 0.0,
            };
            let guided = guidance
                .combine(&negative, &positive, &mut Memory::default())
                .unwrap();
            let apart = |of: Length| {
                let lengths = |x: &Tensor| of.of(x).unwrap().unwrap();
                let apart = (lengths(&guided) - lengths(&positive)).unwrap().abs();
                apart
                    .unwrap()
                    .max_all()
                    .unwrap()
                    .to_scalar::<f32>()
                    .unwrap()
            };
            assert!(apart(length) < 1e-5);
            let other = [Length::Rows, Length::Patches]
                .into_iter()
                .find(|other| *other != length);
            assert!(apart(other.unwrap()) > 0.1);
        }
    }

    #[test]
    fn rescaled_guidance_has_the_prompts_spread() {
        let cpu = &Device::Cpu;
        let negative = Tensor::new(&[[0f32, 1., 2., 3.], [1., 0., 1., 0.]], cpu).unwrap();
        let positive = Tensor::new(&[[1f32, -1., 4., 2.], [0., 2., 0., 5.]], cpu).unwrap();
        let full = Guidance {
            form: Form::Plain,
            length: Length::Free,
            scale: 7.5,
            rescale: 1.0,
        };
        let guided = full
            .combine(&negative, &positive, &mut Memory::default())
            .unwrap();
        let guided = full.rescaled(guided, &positive).unwrap();
        let ratio = (spread(&guided).unwrap() / spread(&positive).unwrap()).unwrap();
        for r in ratio.flatten_all().unwrap().to_vec1::<f32>().unwrap() {
            assert!((r - 1.0).abs() < 1e-5, "{r}");
        }
        let none = Guidance {
            form: Form::Plain,
            length: Length::Free,
            scale: 2.0,
            rescale: 0.0,
        };
        let guided = none
            .combine(&negative, &positive, &mut Memory::default())
            .unwrap();
        assert_eq!(
            guided.to_vec2::<f32>().unwrap(),
            [[2., -3., 6., 1.], [-1., 4., -1., 10.]]
        );
    }
}
