//! A second model that does the last steps of a picture.

use super::denoiser::Denoiser;
use super::text::TextStage;
use super::Pipeline;
use crate::request::ImageRequest;
use crate::sampling::NoiseSchedule;

/// Share of the steps at which it takes over unless a request says otherwise.
const START: f64 = 0.8;

/// What does the last steps: its own denoiser with its own text encoders. Latents are the model's.
pub struct Refiner {
    pub(super) text: TextStage,
    pub(super) denoiser: Denoiser,
    pub(super) schedule: NoiseSchedule,
    pub(super) zeros_for_empty: bool,
}

impl Pipeline {
    /// Share of the steps at which the refiner takes over; `None` where it does none.
    pub(super) fn refiner_start(&self, request: &ImageRequest) -> Option<f64> {
        self.refiner.as_ref()?;
        let start = request.refiner_start.unwrap_or(START);
        (start < 1.0).then_some(start)
    }

    /// Puts the refiner in the model's place, or back: what a run of steps reads is that of whom it is the turn.
    pub(super) fn swap_refiner(&mut self) {
        if let Some(refiner) = &mut self.refiner {
            std::mem::swap(&mut self.text, &mut refiner.text);
            std::mem::swap(&mut self.denoiser, &mut refiner.denoiser);
            std::mem::swap(&mut self.schedule, &mut refiner.schedule);
            std::mem::swap(&mut self.zeros_for_empty, &mut refiner.zeros_for_empty);
        }
    }
}
