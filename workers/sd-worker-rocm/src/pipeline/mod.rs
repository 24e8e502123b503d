//! A model and the way from a request to pictures.

mod builtin;
mod denoiser;
pub(crate) mod families;
mod generate;
mod given;
mod highres;
mod keep;
mod language;
mod load;
mod long_text;
mod loras;
pub(crate) mod module;
mod pace;
mod paired;
mod phases;
pub mod picture;
mod place;
pub mod preparation;
mod preview;
pub mod redux;
mod refiner;
mod start;
mod steps;
#[cfg(all(test, feature = "built-in-model"))]
mod tests;
mod text;
mod types;
mod vae;
mod video;
pub mod vision;
mod warm_up;

pub use crate::info::{Defaults, Family, ModelInfo, Purpose};
pub use crate::lora::Lora;
pub use crate::request::{Control, ImageRequest, Init, MicroConditions, ValidRequest};
pub use builtin::NAME as BUILTIN;
pub use load::{PartBytes, PartSizes};
pub use place::{GuidancePlace, Placement};
pub use types::{Generated, PipelineOptions, Precision, Progress, Stage, Switch, Timings};

use crate::faces::Faces;
use crate::lora::Shelf;
use crate::models::taesd::Taesd;
use crate::prompt::TokenCounter;
use crate::sampling::NoiseSchedule;
use crate::upscale::Network;
use candle_core::Device;
use denoiser::Denoiser;
use module::Module;
use refiner::Refiner;
use text::TextStage;
use vae::VaeStage;
use vision::VisionStage;
use worker::graphs::GraphUse;

/// A loaded model.
pub struct Pipeline {
    place: Placement,
    info: ModelInfo,
    schedule: NoiseSchedule,
    text: TextStage,
    /// Whether no negative prompt means zeros instead of an encoded empty text.
    zeros_for_empty: bool,
    denoiser: Denoiser,
    /// Computes the negative prompt's half of guidance, where that has a device of its own.
    second: Option<Denoiser>,
    vae: VaeStage,
    refiner: Option<Refiner>,
    /// Whether a picture that is a condition has the scale of latents.
    picture_is_scaled: bool,
    /// What looks at pictures to start from, in models that want that.
    vision: Option<VisionStage>,
    taesd: Option<Module<Taesd>>,
    /// Models that make prompts of pictures.
    redux: redux::Shelf,
    latent_channels: usize,
    /// Pixels a latent, each way.
    factor: usize,
    /// Frames a latent.
    time_factor: usize,
    /// The network that was last asked for between two passes.
    upscaler: Option<Network>,
    /// The networks that last restored faces.
    faces: Option<Faces>,
    options: PipelineOptions,
    /// LoRAs in its networks.
    merged: loras::Merged,
    /// Their files.
    lora_files: Shelf,
}

impl Pipeline {
    /// What the model is.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What counts a prompt's tokens, if prompts are cut into chunks of them.
    pub fn token_counter(&self) -> Option<TokenCounter> {
        self.text.counter(self.info.prompt_weights)
    }

    /// Gives it another name.
    pub fn rename(&mut self, name: String) {
        self.info.name = name;
    }

    /// How it was loaded.
    pub fn options(&self) -> &PipelineOptions {
        &self.options
    }

    /// Where its parts are.
    pub fn place(&self) -> &Placement {
        &self.place
    }

    /// Where its denoiser runs.
    pub fn device(&self) -> &Device {
        &self.place.denoiser
    }

    /// Says whether the denoiser's evaluations are recorded from now on.
    pub fn set_graphs(&mut self, graphs: GraphUse) {
        self.options.graphs = graphs;
        let refiner = self.refiner.as_mut().map(|refiner| &mut refiner.denoiser);
        for denoiser in [Some(&mut self.denoiser), refiner].into_iter().flatten() {
            denoiser.set_graphs(graphs);
        }
    }

    /// Why evaluations of the last picture were not recorded as graphs, if they were not.
    pub fn without_graphs(&self) -> Option<String> {
        self.denoiser.recordings().refusal()
    }

    /// Whether this request's steps are evaluated twice, for the prompt and for the negative prompt.
    pub fn is_guided(&self, request: &ValidRequest) -> bool {
        self.denoiser.guidance(request).is_some()
    }
}
