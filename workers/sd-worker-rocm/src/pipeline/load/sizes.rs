//! How much memory a model's parts take, told before they are loaded.

use super::parts::precise;
use super::Opened;
use crate::pipeline::types::{PipelineOptions, Precision};
use candle_core::DType;
use std::path::Path;
use worker::Result;

/// Bytes of the weights of a model's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartBytes {
    /// Of the text encoders.
    pub text: u64,
    /// Of the denoiser.
    pub denoiser: u64,
    /// Of the VAE.
    pub vae: u64,
}

/// What there is to know about a model before it is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartSizes {
    /// On a GPU.
    pub gpu: PartBytes,
    /// On the CPU, where numbers may take more bytes.
    pub cpu: PartBytes,
    /// Whether its denoiser is evaluated twice a step where guidance is on.
    pub evaluates_twice: bool,
}

impl PartSizes {
    /// Of a model's files, which are opened, not loaded; of the built-in model without a path.
    ///
    /// # Errors
    /// Those of files that are damaged or of a kind that is not implemented.
    pub fn of(path: Option<&Path>, options: &PipelineOptions) -> Result<Self> {
        let opened = match path {
            Some(path) => Opened::open(String::new(), path, options, &mut |_| {})?,
            None => Opened::builtin(options)?,
        };
        let bytes = |precision: Precision, on_cpu: bool| match &opened {
            Opened::UNet(model) => {
                let dtype = precise(precision, &model.unet.1, on_cpu);
                let refiner = model.refiner.as_deref();
                let models = || std::iter::once(&**model).chain(refiner);
                PartBytes {
                    text: models()
                        .flat_map(|model| &model.towers)
                        .map(|tower| tower.1.bytes_as(dtype))
                        .sum(),
                    denoiser: models().map(|model| model.unet.1.bytes_as(dtype)).sum(),
                    // Some exceed f16 and are run in f32.
                    vae: model.vae.1.bytes_as(DType::F32),
                }
            }
            Opened::Transformer(model) => {
                let dtype = precise(precision, &model.weights, on_cpu);
                let towers = model.text.towers.iter();
                let long = model.text.long.iter();
                let vision = model.vision.iter();
                let late = model.late.iter();
                PartBytes {
                    text: towers.map(|tower| tower.1.bytes_as(dtype)).sum::<u64>()
                        + long.map(|long| long.weights().bytes_as(dtype)).sum::<u64>()
                        + (vision.map(|vision| vision.weights().bytes_as(dtype))).sum::<u64>(),
                    denoiser: model.weights.bytes_as(dtype)
                        + late.map(|late| late.bytes_as(dtype)).sum::<u64>(),
                    vae: model.vae.1.bytes_as(DType::F32),
                }
            }
        };
        Ok(Self {
            gpu: bytes(options.precision, false),
            cpu: bytes(options.precision, true),
            evaluates_twice: match &opened {
                Opened::UNet(model) => model.unet.0.time_cond_proj_dim.is_none(),
                Opened::Transformer(model) => model.family.evaluates_twice(),
            },
        })
    }
}
