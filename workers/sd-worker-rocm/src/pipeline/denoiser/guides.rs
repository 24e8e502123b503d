//! What steers a UNet by a picture: ControlNets, unions of them, T2I-Adapters.

use super::opened::{kind_of, Opened};
use super::run::{Part, Prompts};
use crate::editing::fit::stretched;
use crate::models::controlnet::{ControlConfig, ControlNet};
use crate::models::t2i_adapter::{AdapterConfig, T2iAdapter};
use crate::models::time::Level;
use crate::models::unet::config::UNetConfig;
use crate::models::unet::{Condition, Extra, Residuals};
use crate::models::wrap::Wrap;
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::pipeline::picture;
use crate::request::{Control, ControlMode, Hidden};
use crate::weights::folder::Folder;
use crate::weights::{ldm, Weights};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use image::GrayImage;
use std::path::Path;
use std::sync::Arc;
use worker::{Error, Result};

/// The kinds of pictures that the unions of ControlNets for Stable Diffusion XL know, in their order.
const KINDS: [&[&str]; 8] = [
    &["openpose", "pose"],
    &["depth"],
    &["hed", "pidi", "scribble", "softedge"],
    &["canny", "lineart", "anime_lineart", "mlsd"],
    &["normal"],
    &["segment", "seg", "segmentation"],
    &["tile"],
    &["repaint", "inpaint"],
];

/// By what each residual further out is weaker where the prompt is to count more, as in the web UI's extension.
const SOFTER: f64 = 0.825;

/// A network that steers.
pub enum Guide {
    /// A ControlNet, or a union.
    Control(Box<ControlNet>),
    /// A T2I-Adapter.
    Adapter(T2iAdapter),
}

/// The networks that requests have named so far.
pub struct Guides(Opened<Guide>);

/// What the networks are told of a request besides the picture.
pub struct Told<'a> {
    /// The batch's texts, and the numbers beside them, of which the last `batch` rows are the prompt's.
    pub rows: (&'a Tensor, &'a Extra),
    /// Pictures of a prompt.
    pub batch: usize,
    /// Prompts in the batch.
    pub prompts: Prompts,
    /// Width and height of the pictures.
    pub size: (usize, usize),
    /// Which edges of the pictures meet.
    pub wrap: Wrap,
}

impl Guides {
    /// None yet; they will be on this device.
    pub fn new(device: &Device, offload: bool) -> Self {
        Self(Opened::new(device, offload))
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.0.rest();
    }

    /// Prepares a network for a request.
    ///
    /// # Errors
    /// If it cannot be loaded or does not fit, or the device fails.
    pub fn prepare(
        &mut self,
        control: &Control,
        told: &Told,
        unet: (&UNetConfig, DType),
    ) -> Result<GuideRun> {
        let device = &self.0.device().clone();
        let path = &control.model;
        let module = (self.0).get(path, |device, offload| open(path, unet, device, offload))?;
        module.set_wrap(told.wrap);
        let dtype = module.dtype();
        let network = module.network()?;
        let (width, height) = told.size;
        let picture = picture::resized(&control.image, width, height);
        let failed = || Error::candle("preparing the ControlNet");
        let picture = picture::to_tensor(&picture, device)
            .and_then(|picture| match &control.hidden {
                Hidden::White(mask) => hide(&picture, mask),
                Hidden::Nothing | Hidden::Masked => Ok(picture),
            })
            .and_then(|picture| picture.to_dtype(dtype))
            .map_err(failed())?;
        let pools = matches!(&*network, Guide::Control(net) if net.pools());
        let seeing = match (control.mode, pools) {
            (ControlMode::Control | ControlMode::Guess, _) | (_, true) => Seeing::Prompt,
            (ControlMode::Balanced | ControlMode::Prompt, _) => Seeing::All,
        };
        let steers = match &*network {
            Guide::Adapter(adapter) => Steers::Adapter(
                scaled(
                    &adapter
                        .features(&picture)
                        .map_err(|e| Error::Usage(format!("{}: {e}", control.model.display())))?,
                    &adapter_strengths(control)?,
                )
                .map_err(failed())?,
            ),
            Guide::Control(net) => {
                let kind = kind_of(control.kind.as_deref(), net.kinds(), &KINDS);
                let kind = kind.map_err(|reason| {
                    Error::Usage(format!("controls: {}: {reason}", path.display()))
                })?;
                let prepare = || {
                    let (text, extra) = told.of(seeing)?;
                    let text = text.to_device(device)?;
                    Ok(Steers::Control {
                        hint: net.hint(&picture)?,
                        condition: net.condition(&text, &extra.to_device(device)?, kind)?,
                        kind,
                        strengths: strengths(control, net.residuals(), net.pools()),
                    })
                };
                prepare().map_err(failed())?
            }
        };
        Ok(GuideRun {
            network: network.clone(),
            steers,
            device: device.clone(),
            active: (control.start, control.end),
            seeing,
            batch: told.batch,
            prompts: told.prompts,
        })
    }
}

/// The picture, `(1, 3, height, width)`, with -1 where a mask is white: what networks that paint were trained with.
fn hide(picture: &Tensor, mask: &GrayImage) -> CandleResult<Tensor> {
    let (_, _, height, width) = picture.dims4()?;
    let mask = stretched(mask, width as u32, height as u32);
    let shown: Vec<f32> = (mask.as_raw().iter())
        .map(|white| f32::from(u8::from(*white < 128)))
        .collect();
    let shown = Tensor::from_vec(shown, (1, 1, height, width), picture.device())?;
    // Of what is shown itself, of the rest -1.
    picture
        .broadcast_mul(&shown)?
        .broadcast_add(&(&shown - 1.0)?)
}

impl Told<'_> {
    /// Text and numbers of what a network sees.
    fn of(&self, seeing: Seeing) -> CandleResult<(Tensor, Extra)> {
        let (text, extra) = self.rows;
        let rows = text.dim(0)?;
        if seeing == Seeing::All || rows == self.batch {
            return Ok((text.clone(), extra.clone()));
        }
        let last = |x: &Tensor| x.narrow(0, rows - self.batch, self.batch);
        let numbers = extra.numbers.last().cloned().into_iter();
        let extra = Extra {
            pooled: extra.pooled.as_ref().map(last).transpose()?,
            numbers: numbers.collect(),
            ..extra.clone()
        };
        Ok((last(text)?, extra))
    }
}

/// Which half of guidance a network sees and steers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seeing {
    All,
    /// The prompt's.
    Prompt,
}

enum Steers {
    Control {
        condition: Condition,
        hint: Tensor,
        kind: usize,
        strengths: Vec<f64>,
    },
    /// Its features, times their strengths: the same in every step.
    Adapter(Vec<Tensor>),
}

/// A network that is ready for the steps of a request.
pub struct GuideRun {
    network: Arc<Guide>,
    steers: Steers,
    device: Device,
    /// Shares of the run between which it acts.
    active: (f64, f64),
    seeing: Seeing,
    batch: usize,
    prompts: Prompts,
}

impl GuideRun {
    /// Whether it adds anything in this part of the run.
    pub fn acts(&self, part: Part) -> bool {
        let blind = self.seeing == Seeing::Prompt && self.prompts == Prompts::Negative;
        !blind && part.lies_within(self.active)
    }

    /// Whether it computes on this device.
    pub fn is_on(&self, device: &Device) -> bool {
        self.device.same_device(device)
    }

    /// What it adds to the network for `x`, `(batch, channels, height, width)`, in this part of the run, if it acts
    /// there; on its own device.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn residuals(
        &self,
        x: &Tensor,
        level: &Level,
        part: Part,
    ) -> CandleResult<Option<Residuals>> {
        if !self.acts(part) {
            return Ok(None);
        }
        let rows = x.dim(0)?;
        let unseen = match self.seeing {
            Seeing::All => 0,
            Seeing::Prompt => rows - self.batch,
        };
        let residuals = match (&*self.network, &self.steers) {
            (
                Guide::Control(net),
                Steers::Control {
                    condition,
                    hint,
                    kind,
                    strengths,
                },
            ) => {
                let x = x.narrow(0, unseen, rows - unseen)?;
                let x = x.contiguous()?.to_device(&self.device)?;
                let told = (hint, *kind);
                let time = level.time(|level| level.timestep);
                net.forward(&x, time, condition, told, self.batch, strengths)?
            }
            (_, Steers::Adapter(features)) => Residuals {
                features: match unseen {
                    0 => features.clone(),
                    // In front of them comes what is not steered.
                    _ => {
                        let features = features.iter();
                        features
                            .map(|x| x.repeat((self.batch, 1, 1, 1)))
                            .collect::<CandleResult<_>>()?
                    }
                },
                ..Residuals::default()
            },
            _ => candle_core::bail!("a ControlNet prepared as another network"),
        };
        match unseen {
            0 => Ok(Some(residuals)),
            _ => residuals.each(|x| x.pad_with_zeros(0, unseen, 0)).map(Some),
        }
    }
}

/// The strength of each residual, from the outermost of the way down to that of the block between.
fn strengths(control: &Control, residuals: usize, pools: bool) -> Vec<f64> {
    (0..=residuals)
        .map(|i| {
            let inner = (residuals - i) as f64;
            control.strength
                * match control.mode {
                    ControlMode::Balanced => 1.0,
                    ControlMode::Prompt | ControlMode::Control => SOFTER.powf(inner),
                    // From a tenth outside to the whole inside, as the authors guess without a prompt.
                    ControlMode::Guess if !pools => 10f64.powf(-inner / residuals.max(1) as f64),
                    ControlMode::Guess => 1.0,
                }
        })
        .collect()
}

/// The strength of each feature of an adapter.
fn adapter_strengths(control: &Control) -> Result<[f64; 4]> {
    let weights = match control.mode {
        ControlMode::Balanced => [1.0; 4],
        // The web UI's extension's.
        ControlMode::Prompt | ControlMode::Control => [0.25, 0.62, SOFTER, 1.0],
        ControlMode::Guess => {
            return Err(Error::Usage(
                "controls: the mode guess is for ControlNets, not for T2I-Adapters".to_string(),
            ))
        }
    };
    Ok(weights.map(|weight| weight * control.strength))
}

fn scaled(features: &[Tensor], strengths: &[f64]) -> CandleResult<Vec<Tensor>> {
    let strengths = strengths.iter().chain(strengths.last().into_iter().cycle());
    let pairs = features.iter().zip(strengths);
    pairs.map(|(x, strength)| x * *strength).collect()
}

fn open(
    path: &Path,
    (unet, dtype): (&UNetConfig, DType),
    device: &Device,
    offload: bool,
) -> Result<Module<Guide>> {
    let bad = |reason: String| Error::BadModel {
        path: path.to_path_buf(),
        reason,
    };
    enum Config {
        Control(Box<ControlConfig>),
        Adapter(AdapterConfig),
    }
    let (config, weights) = if path.is_dir() {
        let folder = Folder::Disk(path.to_path_buf());
        let part = folder.part("");
        let said: serde_json::Value = part.config()?;
        let class = said.get("_class_name").and_then(|class| class.as_str());
        let config = match class {
            Some("T2IAdapter") => {
                let config: AdapterConfig = part.config()?;
                config.check().map_err(|e| part.bad_config(e))?;
                Config::Adapter(config)
            }
            _ => {
                let config: ControlConfig = part.config()?;
                config.check().map_err(|e| part.bad_config(e))?;
                Config::Control(Box::new(config))
            }
        };
        (config, part.weights()?)
    } else {
        let weights = Weights::open(path)?;
        match ldm::t2i_adapter(&weights) {
            Some((config, weights)) => (Config::Adapter(config), weights),
            None => {
                // Single files have no configuration; a ControlNet copies the structure of the UNet that it was trained
                // for.
                let union = weights.shape("task_embedding");
                let union = union.and_then(|shape| shape.first().copied());
                let mut config = ControlConfig::beside(unet, union);
                let weights = ldm::controlnet(&weights, unet).ok_or_else(|| {
                    bad("this is neither a ControlNet nor a T2I-Adapter: it has no controlnet_cond_embedding, input_hint_block or adapter blocks".to_string())
                })?;
                // Files by diffusers' trainers may have other widths in front of the picture.
                let widths = ldm::hint_widths(&weights);
                if !widths.is_empty() {
                    config.settings.conditioning_embedding_out_channels = widths;
                }
                (Config::Control(Box::new(config)), weights)
            }
        }
    };
    let build = move |vb: VarBuilder| {
        Ok(match &config {
            Config::Control(config) => Guide::Control(Box::new(ControlNet::new(vb, config)?)),
            Config::Adapter(config) => Guide::Adapter(T2iAdapter::new(vb, config)?),
        })
    };
    Module::new("the ControlNet", weights, dtype, device, offload, build)
}
