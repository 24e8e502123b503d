//! Diffusion transformers as denoisers.

use super::run::{Evaluate, Part, Prompts, Setting};
use crate::info::Family;
use crate::models::low_rank::LowRank;
use crate::models::transformer::attention::Rope;
use crate::models::transformer::flux::{Flux, FluxConfig};
use crate::models::transformer::sd3::{Sd3, Sd3Config};
use crate::models::transformer::z_image::{Positions, ZImage, ZImageConfig};
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::pipeline::text::Encoded;
use crate::request::ImageRequest;
use crate::sampling::{Guidance, NoiseLevel};
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::sync::Arc;
use worker::{Error, Result};

/// Which transformer, with its configuration.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Stable Diffusion 3 and 3.5.
    Sd3(Sd3Config),
    /// FLUX.1.
    Flux(FluxConfig),
    /// Z-Image.
    ZImage(ZImageConfig),
}

impl Kind {
    /// The family of models.
    pub fn family(&self) -> Family {
        match self {
            Self::Sd3(_) => Family::Sd3,
            Self::Flux(_) => Family::Flux,
            Self::ZImage(_) => Family::ZImage,
        }
    }

    /// Whether guidance is a second evaluation. FLUX has it as a condition of the network, or, where it was distilled
    /// to few steps, none: its pipelines leave it out there, too.
    pub fn evaluates_twice(&self) -> bool {
        !matches!(self, Self::Flux(_))
    }
}

/// One of the networks.
enum Network {
    Sd3(Sd3),
    Flux(Flux),
    ZImage(ZImage),
}

/// A transformer at work.
pub struct TransformerDenoiser {
    module: Module<Network>,
    kind: Kind,
    device: Device,
}

impl TransformerDenoiser {
    /// Loads the network.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(
        kind: Kind,
        weights: Weights,
        dtype: DType,
        device: &Device,
        offload: bool,
    ) -> Result<Self> {
        let of = kind.clone();
        let build = move |vb: VarBuilder| {
            Ok(match &of {
                Kind::Sd3(config) => Network::Sd3(Sd3::new(vb, config)?),
                Kind::Flux(config) => Network::Flux(Flux::new(vb, config)?),
                Kind::ZImage(config) => Network::ZImage(ZImage::new(vb, config)?),
            })
        };
        Ok(Self {
            module: Module::new("the denoiser", weights, dtype, device, offload, build)?,
            kind,
            device: device.clone(),
        })
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Guidance by a second evaluation.
    pub fn guidance(&self, request: &ImageRequest) -> Option<Guidance> {
        let strength = request.guidance;
        let guidance = Guidance {
            // Z-Image's own pipeline adds the whole difference to the prompt's prediction.
            scale: match &self.kind {
                Kind::ZImage(_) if strength > 1.0 => strength + 1.0,
                _ => strength,
            },
            rescale: request.guidance_rescale,
        };
        (guidance.is_active() && self.kind.evaluates_twice()).then_some(guidance)
    }

    /// The network, ready for latents of this height and width under these prompts.
    ///
    /// # Errors
    /// If the device fails.
    pub fn evaluation(
        &mut self,
        setting: &Setting,
        prompts: Prompts,
        (height, width): (usize, usize),
    ) -> Result<Box<dyn Evaluate>> {
        let request = setting.request;
        let network = self.module.network()?;
        let dtype = self.module.dtype();
        let of = prompts.of(setting);
        let prepare = || -> CandleResult<Evaluation> {
            let rows = |x: &dyn Fn(&Encoded) -> Tensor| {
                let rows = of.iter().map(|encoded| {
                    let x = x(encoded).to_dtype(dtype)?;
                    let mut times = vec![1; x.rank()];
                    times[0] = request.batch;
                    x.repeat(times)
                });
                Tensor::cat(&rows.collect::<CandleResult<Vec<_>>>()?, 0)
            };
            let text = rows(&|encoded| encoded.text.clone())?;
            let tokens = text.dim(1)?;
            let places = match &*network {
                Network::Sd3(_) => Places::Table,
                Network::Flux(net) => Places::Flux(net.rope(tokens, height, width, &text)?),
                Network::ZImage(net) => {
                    Places::ZImage(Box::new(net.positions(tokens, height, width, &text)?))
                }
            };
            Ok(Evaluation {
                network: network.clone(),
                text,
                pooled: rows(&|encoded| encoded.pooled.clone())?,
                places,
                times: of.len(),
                strength: request.guidance,
                dtype,
            })
        };
        let evaluation = prepare().map_err(Error::candle("preparing the denoiser"))?;
        Ok(Box::new(evaluation))
    }

    /// Not needed for now.
    pub fn rest(&mut self) {
        self.module.rest();
    }

    /// Names of the tensors.
    pub fn names(&self) -> Vec<String> {
        self.module.names().map(String::from).collect()
    }

    /// As [`Module::add`].
    ///
    /// # Errors
    /// Those of [`Module::add`].
    pub fn add(&mut self, name: &str, change: &LowRank) -> CandleResult<()> {
        self.module.add(name, change)
    }

    /// As [`Module::restore`].
    ///
    /// # Errors
    /// Those of [`Module::restore`].
    pub fn restore(&mut self) -> Result<()> {
        self.module.restore()
    }
}

/// Where tokens stand.
enum Places {
    /// The network has a table.
    Table,
    Flux(Rope),
    ZImage(Box<Positions>),
}

struct Evaluation {
    network: Arc<Network>,
    text: Tensor,
    pooled: Tensor,
    places: Places,
    /// How often the latents are in the batch.
    times: usize,
    strength: f64,
    dtype: DType,
}

impl Evaluate for Evaluation {
    fn evaluate(&self, x: &Tensor, level: &NoiseLevel, _part: Part) -> CandleResult<Tensor> {
        let x = x.to_dtype(self.dtype)?;
        let x = match self.times {
            1 => x,
            times => Tensor::cat(&vec![&x; times], 0)?,
        };
        let (text, pooled) = (&self.text, &self.pooled);
        let output = match (&*self.network, &self.places) {
            (Network::Sd3(net), _) => net.forward(&x, 1000.0 * level.sigma, text, pooled)?,
            (Network::Flux(net), Places::Flux(rope)) => {
                let time = 1000.0 * level.sigma;
                net.forward(&x, time, self.strength, text, pooled, rope)?
            }
            (Network::ZImage(net), Places::ZImage(positions)) => {
                // It counts time from noise to picture, and predicts the way to the picture.
                net.forward(&x, 1.0 - level.sigma, text, positions)?.neg()?
            }
            _ => candle_core::bail!("positions of another network"),
        };
        output.to_dtype(DType::F32)
    }
}
