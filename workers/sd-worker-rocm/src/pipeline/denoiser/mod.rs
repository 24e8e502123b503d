//! The denoiser: what it is asked in every step of a picture.

pub mod block_controls;
pub mod guided;
mod guides;
mod ip_adapters;
mod opened;
mod replay;
pub mod run;
pub mod transformer;
pub mod unet;

pub use guided::{Guided, Halves, Run};
pub use run::{Composition, Conditions, Part, Setting};

use crate::models::change::Change;
use crate::pipeline::families::VideoTraits;
use crate::request::ImageRequest;
use crate::sampling::Guidance;
use candle_core::{Device, Result as CandleResult, Tensor};
pub use replay::Recordings;
use replay::Replayed;
use run::Prompts;
use std::sync::Arc;
pub use transformer::Aim;
use transformer::TransformerDenoiser;
use unet::UNetDenoiser;
use worker::graphs::GraphUse;
use worker::Result;

/// What removes the noise.
pub enum Denoiser {
    /// Stable Diffusion 1, 2 and XL.
    UNet(Box<UNetDenoiser>),
    /// One of [`crate::pipeline::families`].
    Transformer(Box<TransformerDenoiser>),
}

impl Denoiser {
    /// Where it is.
    pub fn device(&self) -> &Device {
        match self {
            Self::UNet(unet) => unet.device(),
            Self::Transformer(transformer) => transformer.device(),
        }
    }

    /// The guidance of a request that takes two evaluations a step; `None` where there is none, or the network has it
    /// as a condition.
    pub fn guidance(&self, request: &ImageRequest) -> Option<Guidance> {
        match self {
            Self::UNet(unet) => unet.guidance(request),
            Self::Transformer(transformer) => transformer.guidance(request),
        }
    }

    /// Dimensions of a request's latents without the batch, for a codec of so many channels and pixels a latent.
    pub fn latents(&self, request: &ImageRequest, channels: usize, factor: usize) -> Vec<usize> {
        match self {
            Self::UNet(_) => vec![channels, request.height / factor, request.width / factor],
            Self::Transformer(transformer) => {
                transformer.family().latents(request, channels, factor)
            }
        }
    }

    /// The picture's tokens, by which schedules are shifted, of latents of these dimensions.
    pub fn image_tokens(&self, latents: &[usize]) -> usize {
        match self {
            Self::UNet(_) => latents[1..].iter().product::<usize>() / 4,
            Self::Transformer(transformer) => transformer.family().image_tokens(latents),
        }
    }

    /// Width and height at which a picture to look at, of this width and height, is looked at, for a codec of so many
    /// pixels a latent.
    pub fn reference_size(
        &self,
        picture: (usize, usize),
        request: &ImageRequest,
        factor: usize,
    ) -> (usize, usize) {
        match self {
            Self::UNet(_) => (request.width, request.height),
            Self::Transformer(transformer) => transformer
                .family()
                .reference_size(picture, request, factor),
        }
    }

    /// Whether pictures to look at are cut to whole patches instead of scaled.
    pub fn cuts_references(&self) -> bool {
        match self {
            Self::UNet(_) => false,
            Self::Transformer(transformer) => transformer.family().cuts_references(),
        }
    }

    /// What a network for inpainting sees of a mask in pixels and of the masked picture's latents.
    ///
    /// # Errors
    /// If the device fails.
    pub fn masked(&self, mask: &Tensor, latents: &Tensor) -> CandleResult<Tensor> {
        match self {
            Self::UNet(_) => {
                // The nearest pixel, as the original takes it.
                let (_, _, h, w) = latents.dims4()?;
                Tensor::cat(&[&mask.upsample_nearest2d(h, w)?, latents], 1)
            }
            Self::Transformer(transformer) => transformer.family().masked(mask, latents),
        }
    }

    /// The network, ready for latents of these dimensions, without the batch, under these prompts.
    ///
    /// # Errors
    /// If a ControlNet cannot be loaded or does not fit, or a device fails.
    fn evaluation(
        &mut self,
        setting: &Setting,
        prompts: Prompts,
        latents: &[usize],
    ) -> Result<Replayed> {
        let evaluation = match self {
            Self::UNet(unet) => match latents {
                [.., height, width] => unet.evaluation(setting, prompts, (*height, *width)),
                _ => Err(worker::Error::Runtime("latents without a size".to_string())),
            },
            Self::Transformer(transformer) => transformer.evaluation(setting, prompts, latents),
        };
        Ok(Replayed::new(evaluation?, self.recordings()))
    }

    /// Its recordings.
    pub fn recordings(&self) -> &Arc<Recordings> {
        match self {
            Self::UNet(unet) => &unet.recordings,
            Self::Transformer(transformer) => &transformer.recordings,
        }
    }

    /// Says whether evaluations are recorded from now on.
    pub fn set_graphs(&mut self, graphs: GraphUse) {
        let new = Arc::new(Recordings::new(graphs, self.device()));
        match self {
            Self::UNet(unet) => unet.recordings = new,
            Self::Transformer(transformer) => transformer.recordings = new,
        }
    }

    /// Prepares a run on latents of these dimensions, without the batch, with the setting on this denoiser's device.
    ///
    /// # Errors
    /// Those of [`Run::new`].
    pub fn run(&mut self, setting: &Setting, halves: Halves, latents: &[usize]) -> Result<Run> {
        Run::new(self, setting, halves, latents)
    }

    /// What videos it makes.
    pub fn video(&self) -> Option<VideoTraits> {
        match self {
            Self::UNet(_) => None,
            Self::Transformer(transformer) => transformer.family().video(),
        }
    }

    /// Whether steps from this time step on are another network's than those before: a run has to be prepared anew.
    pub fn is_past(&self, timestep: f64) -> bool {
        match self {
            Self::UNet(_) => false,
            Self::Transformer(transformer) => transformer.is_past(timestep),
        }
    }

    /// Says at which time step the steps that come are, before a run is prepared.
    pub fn turn_to(&mut self, timestep: f64) {
        match self {
            Self::UNet(_) => {}
            Self::Transformer(transformer) => transformer.turn_to(timestep),
        }
    }

    /// Not needed for now.
    pub fn rest(&mut self) {
        match self {
            Self::UNet(unet) => unet.rest(),
            Self::Transformer(transformer) => transformer.rest(),
        }
    }

    /// Names of the tensors.
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::UNet(unet) => unet.module.names().map(String::from).collect(),
            Self::Transformer(transformer) => transformer.names(),
        }
    }

    /// Chooses the networks that changes are for from now on.
    pub fn aim(&mut self, aim: Aim) {
        match self {
            Self::UNet(_) => {}
            Self::Transformer(transformer) => transformer.aim(aim),
        }
    }

    /// As [`crate::pipeline::module::Module::add`].
    ///
    /// # Errors
    /// Those of [`crate::pipeline::module::Module::add`].
    pub fn add(&mut self, name: &str, change: &Change) -> CandleResult<()> {
        match self {
            Self::UNet(unet) => unet.module.add(name, change),
            Self::Transformer(transformer) => transformer.add(name, change),
        }
    }

    /// As [`crate::pipeline::module::Module::restore`].
    ///
    /// # Errors
    /// Those of [`crate::pipeline::module::Module::restore`].
    pub fn restore(&mut self) -> Result<()> {
        match self {
            Self::UNet(unet) => unet.module.restore(),
            Self::Transformer(transformer) => transformer.restore(),
        }
    }
}
