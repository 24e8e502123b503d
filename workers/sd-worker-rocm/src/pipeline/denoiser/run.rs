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

/// A network in the middle of making pictures.
pub trait Run {
    /// The network's output, guided, for latents `x`, f32 `(batch, channels, height, width)`, at a noise level. `done`
    /// is the part of the steps, 0 to 1, that lies behind.
    fn output(&mut self, x: &Tensor, level: &NoiseLevel, done: f64) -> CandleResult<Tensor>;
}
