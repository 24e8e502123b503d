//! What a denoiser is told of a request, and what it is asked in every step.

use crate::pipeline::text::Encoded;
use crate::request::ImageRequest;
use crate::sampling::NoiseLevel;
use candle_core::{Result as CandleResult, Tensor};

/// What a run needs to know about its request.
pub struct Setting<'a> {
    /// The request.
    pub request: &'a ImageRequest,
    /// The prompt.
    pub positive: &'a Encoded,
    /// The negative prompt.
    pub negative: &'a Encoded,
    /// Channels that networks for inpainting want behind the latents: mask and masked picture, `(1, 5, height, width)`.
    pub inpainting: Option<&'a Tensor>,
}

/// Where a run is.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Steps done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
}

impl Part {
    /// Whether the whole of the present step lies between two shares of the run, 0 to 1, as diffusers counts: a step
    /// that begins before the first or ends after the second does not.
    pub fn lies_within(self, (start, end): (f64, f64)) -> bool {
        let share = |step: usize| step as f64 / self.steps as f64;
        share(self.step) >= start && share(self.step + 1) <= end
    }
}

/// A network in the middle of making pictures.
pub trait Run {
    /// The network's output, guided, for latents `x`, f32 `(batch, channels, height, width)`, at a noise level in this
    /// part of the run.
    fn output(&mut self, x: &Tensor, level: &NoiseLevel, part: Part) -> CandleResult<Tensor>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_run_are_whole_steps() {
        let active = |steps, share| -> Vec<usize> {
            let part = |step| Part { step, steps };
            (0..steps)
                .filter(|step| part(*step).lies_within(share))
                .collect()
        };
        assert_eq!(active(4, (0.0, 1.0)), [0, 1, 2, 3]);
        assert_eq!(active(4, (0.0, 0.5)), [0, 1]);
        assert_eq!(active(4, (0.0, 0.3)), [0]);
        assert_eq!(active(4, (0.3, 1.0)), [2, 3]);
        assert_eq!(active(10, (0.3, 0.7)), [3, 4, 5, 6]);
        assert_eq!(active(3, (0.0, 0.2)), [0usize; 0]);
    }
}
