//! Two whole models on two devices that make one picture together.

use super::{Generated, Pipeline, Progress};
use crate::lora::Lora;
use crate::request::ValidRequest;
use std::ops::ControlFlow;
use worker::Result;

impl Pipeline {
    /// As [`Pipeline::generate`], with the negative prompt's half of guidance computed by the denoiser of `other`, the
    /// same model on another device, at the same time. A request without guidance is this model's alone.
    ///
    /// # Errors
    /// Those of [`Pipeline::generate`], on both devices.
    pub fn generate_paired(
        &mut self,
        other: &mut Pipeline,
        request: &ValidRequest,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Generated> {
        // Prompts and LoRAs that come and go are one model's business.
        let stay = request.each.is_empty() && request.loras.iter().all(Lora::is_always_active);
        if !self.is_guided(request) || !stay {
            return self.generate(request, progress);
        }
        other.set_denoiser_loras(&request.loras)?;
        let generated = self.generate_with(Some(&mut other.denoiser), request, progress);
        other.denoiser.rest();
        generated
    }
}
