//! The denoiser: what it is asked in every step of a picture.

pub mod run;
pub mod transformer;
pub mod unet;

pub use run::{Part, Run, Setting};

use crate::models::low_rank::LowRank;
use candle_core::Result as CandleResult;
use transformer::TransformerDenoiser;
use unet::UNetDenoiser;
use worker::Result;

/// What removes the noise.
pub enum Denoiser {
    /// Stable Diffusion 1, 2 and XL.
    UNet(Box<UNetDenoiser>),
    /// Stable Diffusion 3, FLUX.1 and Z-Image.
    Transformer(Box<TransformerDenoiser>),
}

impl Denoiser {
    /// Prepares a run on latents of this size.
    ///
    /// # Errors
    /// For what the network has no use for, and if the device fails.
    pub fn run(&mut self, setting: &Setting, height: usize, width: usize) -> Result<Box<dyn Run>> {
        match self {
            Self::UNet(unet) => unet.run(setting),
            Self::Transformer(transformer) => transformer.run(setting, height, width),
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

    /// As [`crate::pipeline::module::Module::add`].
    ///
    /// # Errors
    /// Those of [`crate::pipeline::module::Module::add`].
    pub fn add(&mut self, name: &str, change: &LowRank) -> CandleResult<()> {
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
