//! UNets as denoisers, with their ControlNets.

use super::guides::{GuideRun, Guides, Told};
use super::ip_adapters::{IpAdapters, Shares, Shown};
use super::replay::{Course, Recordings};
use super::run::{Evaluate, Part, Prompts, Setting};
use crate::models::time::Level;
use crate::models::unet::config::UNetConfig;
use crate::models::unet::{Condition, Extra, Residuals, UNet};
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::pipeline::text::Encoded;
use crate::request::{ImageRequest, Perturbation, StepCache};
use crate::sampling::guidance::Length;
use crate::sampling::Guidance;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use worker::{Error, Result};

/// Guidance by the picture where a request says nothing: InstructPix2Pix's own.
const IMAGE_GUIDANCE: f64 = 1.5;

/// A prompt in the batch.
struct Row<'a> {
    text: &'a Encoded,
    negative: bool,
    /// Whether the channels behind the latents are there, or zeros instead.
    shown: bool,
}

/// The UNet of Stable Diffusion 1, 2 and XL, with its ControlNets.
pub struct UNetDenoiser {
    /// The network.
    pub module: Module<UNet>,
    /// Its configuration.
    pub config: UNetConfig,
    /// Whether it is told a score instead of a size.
    refines: bool,
    guides: Guides,
    adapters: IpAdapters,
    device: Device,
    /// What is known of recorded evaluations.
    pub recordings: Arc<Recordings>,
}

impl UNetDenoiser {
    /// Loads the network, one that `refines` or not; `control_device` is where its ControlNets are to be.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(
        (config, refines): (UNetConfig, bool),
        weights: Weights,
        dtype: DType,
        device: &Device,
        control_device: &Device,
        offload: bool,
    ) -> Result<Self> {
        let of = config.clone();
        let build = move |vb: VarBuilder| UNet::new(vb, &of);
        Ok(Self {
            module: Module::new("the denoiser", weights, dtype, device, offload, build)?,
            config,
            refines,
            guides: Guides::new(control_device, offload),
            adapters: IpAdapters::new(None, device, offload),
            device: device.clone(),
            recordings: Arc::default(),
        })
    }

    /// The same, whose IP-Adapters look through the image encoder in this folder.
    #[must_use]
    pub fn with_image_encoder(mut self, folder: Option<PathBuf>, offload: bool) -> Self {
        self.adapters = IpAdapters::new(folder, &self.device, offload);
        self
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Guidance by a second evaluation; distilled networks have it as a condition.
    pub fn guidance(&self, request: &ImageRequest) -> Option<Guidance> {
        let guidance = Guidance {
            form: request.tuning.guidance.form(),
            length: match request.tuning.guidance.guidance_norm {
                None | Some(0.0) => Length::Free,
                Some(most) => Length::AtMost(most),
            },
            scale: request.guidance,
            rescale: request.guidance_rescale,
        };
        let distilled = self.config.time_cond_proj_dim.is_some();
        let wanted = guidance.is_active() || request.sampler.needs_negative();
        (wanted && !distilled).then_some(guidance)
    }

    /// The network, ready for these prompts.
    ///
    /// # Errors
    /// If a ControlNet cannot be loaded or does not fit, or the device fails.
    pub fn evaluation(
        &mut self,
        setting: &Setting,
        prompts: Prompts,
        latents: (usize, usize),
    ) -> Result<Box<dyn Evaluate>> {
        let request = setting.request;
        let prepared = self.condition(setting, prompts);
        let (text, extra) = prepared.map_err(Error::candle("preparing the prompt"))?;
        let told = Told {
            rows: (&text, &extra),
            batch: request.batch,
            prompts,
            size: (request.width, request.height),
            wrap: request.tuning.seamless.wrap(),
        };
        let unet = (&self.config, self.module.dtype());
        let mut guides = Vec::new();
        for control in &request.controls {
            guides.push(self.guides.prepare(control, &told, unet)?);
        }
        self.module.set_wrap(told.wrap);
        let unet = self.module.network()?;
        let unet = match setting.perturbation {
            None => unet,
            Some(Perturbation::WithoutAttention(blocks)) => {
                let usual = ["mid".to_string()];
                let worse = unet.without_attention(match blocks.is_empty() {
                    true => &usual,
                    false => blocks,
                });
                Arc::new(worse.map_err(|reason| Error::Usage(format!("pag_layers: {reason}")))?)
            }
            Some(Perturbation::WithoutLayers(_)) => {
                return Err(Error::Usage(
                    "skip_layers: a UNet has no layers to leave out".to_string(),
                ))
            }
        };
        let failed = Error::candle("preparing the denoiser");
        let rows = self.rows(setting, prompts);
        let times = rows.len();
        let mut condition = unet
            .condition(&text, &extra)
            .map_err(Error::candle("preparing the prompt"))?;
        let shown = Shown {
            negative: rows.iter().map(|row| row.negative).collect(),
            batch: request.batch,
            latents,
            unet: &unet,
        };
        for (number, asked) in request.ip_adapters.iter().enumerate() {
            self.adapters.show(asked, number, &shown, &mut condition)?;
        }
        let build = || {
            let channels = match setting.channels {
                None => None,
                Some(channels) => {
                    let shown = channels.to_dtype(unet.dtype())?;
                    let shown = shown.repeat((request.batch, 1, 1, 1))?;
                    let hidden = shown.zeros_like()?;
                    let rows = rows
                        .iter()
                        .map(|row| if row.shown { &shown } else { &hidden });
                    Some(Tensor::cat(&rows.collect::<Vec<_>>(), 0)?)
                }
            };
            Ok(Evaluation {
                condition,
                shares: Shares::of(&request.ip_adapters),
                unet: unet.clone(),
                times,
                channels,
                instructed: self.image_guidance(request).map(|scale| (scale, prompts)),
                guides,
                device: self.device.clone(),
                every: match request.tuning.step_cache {
                    Some(StepCache::Deep(steps)) => steps,
                    _ => 1,
                },
                deep: RefCell::default(),
            })
        };
        Ok(Box::new(build().map_err(failed)?))
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.module.rest();
        self.guides.rest();
        self.adapters.rest();
    }

    /// How strongly guidance keeps to the picture, where it does and guidance is on.
    fn image_guidance(&self, request: &ImageRequest) -> Option<f64> {
        let instructed = self.config.in_channels == 2 * self.config.out_channels;
        let scale = request.image_guidance.unwrap_or(IMAGE_GUIDANCE);
        self.guidance(request).filter(|_| instructed).map(|_| scale)
    }

    /// The rows of the batch.
    fn rows<'a>(&self, setting: &Setting<'a>, prompts: Prompts) -> Vec<Row<'a>> {
        let row = |text: &'a Encoded, negative, shown| Row {
            text,
            negative,
            shown,
        };
        let (negative, positive) = (setting.negative, setting.positive);
        match (self.image_guidance(setting.request), prompts) {
            (None, Prompts::Positive) => vec![row(positive, false, true)],
            (None, Prompts::Negative) => vec![row(negative, true, true)],
            (None, Prompts::Both) => vec![row(negative, true, true), row(positive, false, true)],
            (Some(_), Prompts::Negative) => {
                vec![row(negative, true, false), row(negative, true, true)]
            }
            (Some(_), Prompts::Positive | Prompts::Both) => vec![
                row(negative, true, false),
                row(negative, true, true),
                row(positive, false, true),
            ],
        }
    }

    /// What Stable Diffusion XL is told in numbers beside a prompt.
    fn numbers(&self, request: &ImageRequest, negative: bool) -> Vec<f64> {
        let told = &request.micro;
        let own = (request.width, request.height);
        let (width, height) = told.original_size.unwrap_or(own);
        let mut numbers = vec![height, width, told.crop.1, told.crop.0];
        let (width, height) = told.target_size.unwrap_or(own);
        numbers.extend([height, width]);
        let mut numbers: Vec<f64> = numbers.into_iter().map(|x| x as f64).collect();
        if self.refines {
            numbers.truncate(4);
            numbers.push(match negative {
                true => told.negative_aesthetic_score,
                false => told.aesthetic_score,
            });
        }
        numbers
    }

    /// Text and numbers for the whole batch.
    fn condition(&self, setting: &Setting, prompts: Prompts) -> CandleResult<(Tensor, Extra)> {
        let request = setting.request;
        let batch = request.batch;
        let of_batch = self.rows(setting, prompts);
        let rows = |of: &dyn Fn(&Encoded) -> Tensor| -> CandleResult<Tensor> {
            let rows = of_batch.iter().map(|row| {
                let x = of(row.text);
                let mut times = vec![1; x.rank()];
                times[0] = batch;
                x.repeat(times)
            });
            match rows.collect::<CandleResult<Vec<_>>>()?.as_slice() {
                [one] => Ok(one.clone()),
                several => Tensor::cat(several, 0),
            }
        };
        let text = rows(&|encoded| encoded.text.clone())?;
        let pooled = match self.config.addition_embed_type {
            Some(_) => Some(rows(&|encoded| encoded.pooled.clone())?),
            None => None,
        };
        let numbers = of_batch.iter();
        let numbers = numbers.map(|row| self.numbers(request, row.negative));
        let extra = Extra {
            pooled,
            numbers: numbers.collect(),
            guidance: Some(request.guidance),
        };
        Ok((text, extra))
    }
}

struct Evaluation {
    unet: Arc<UNet>,
    condition: Condition,
    /// When the pictures beside the text are shown.
    shares: Shares,
    /// How often the latents are in the batch.
    times: usize,
    /// Channels behind the latents.
    channels: Option<Tensor>,
    /// Guidance by the picture, of the prompts that were asked about.
    instructed: Option<(f64, Prompts)>,
    guides: Vec<GuideRun>,
    device: Device,
    /// Steps that share the inner blocks.
    every: usize,
    /// What the inner blocks gave in the last step that computed them.
    deep: RefCell<Option<Tensor>>,
}

impl Evaluation {
    /// The network's output; the inner blocks of most steps are those of an earlier one, if that is asked for.
    fn network(
        &self,
        x: &Tensor,
        level: &Level,
        part: Part,
        condition: &Condition,
        residuals: Option<&Residuals>,
    ) -> CandleResult<Tensor> {
        let t = level.time(|level| level.timestep);
        if self.every == 1 {
            return self.unet.forward(x, t, condition, residuals);
        }
        let mut deep = self.deep.borrow_mut();
        match &*deep {
            Some(deep) if !part.step.is_multiple_of(self.every) => {
                self.unet.forward_shallow(x, t, condition, residuals, deep)
            }
            _ => {
                let (output, new) = self.unet.forward_deep(x, t, condition, residuals)?;
                *deep = Some(new);
                Ok(output)
            }
        }
    }
}

impl Evaluate for Evaluation {
    fn evaluate(&self, x: &Tensor, level: &Level, part: Part) -> CandleResult<Tensor> {
        let x = x.to_dtype(self.unet.dtype())?;
        let x = match self.times {
            1 => x,
            times => Tensor::cat(&vec![&x; times], 0)?,
        };
        let mut residuals: Option<Residuals> = None;
        for guide in &self.guides {
            let Some(more) = guide.residuals(&x, level, part)? else {
                continue;
            };
            let more = more.to_device(&self.device)?;
            residuals = Some(match residuals {
                None => more,
                Some(sum) => sum.plus(&more)?,
            });
        }
        let x = match &self.channels {
            Some(channels) => Tensor::cat(&[&x, channels], 1)?,
            None => x,
        };
        let part_shown = self.shares.hide(&self.condition, part);
        let condition = part_shown.as_ref().unwrap_or(&self.condition);
        let output = self
            .network(&x, level, part, condition, residuals.as_ref())?
            .to_dtype(DType::F32)?;
        match self.instructed {
            None => Ok(output),
            Some((scale, prompts)) => instructed(&output, scale, prompts),
        }
    }

    fn course(&self, part: Part) -> Course {
        if self.every > 1 {
            return Err("steps share the inner blocks (step_cache)");
        }
        if self.guides.iter().any(|guide| !guide.is_on(&self.device)) {
            return Err("a ControlNet is on another device");
        }
        let guides = self.guides.iter().map(|guide| guide.acts(part));
        let active = guides.chain(self.shares.active(part)).map(usize::from);
        Ok([self.times].into_iter().chain(active).collect())
    }
}

/// The predictions from which guidance is combined (Brooks et al. 2023, equation 3): to be told apart from the negative
/// prompt's, which is led to the picture by `scale`, is what the prompt changes in the picture's presence. `output` has the
/// negative prompt's without the picture, with it, and, unless only the negative half is asked for, the prompt's.
fn instructed(output: &Tensor, scale: f64, prompts: Prompts) -> CandleResult<Tensor> {
    let rows = match prompts {
        Prompts::Negative => 2,
        Prompts::Positive | Prompts::Both => 3,
    };
    let parts = output.chunk(rows, 0)?;
    let (blind, seeing) = (&parts[0], &parts[1]);
    let negative = (blind + ((seeing - blind)? * scale)?)?;
    let positive = || (&parts[2] - seeing)? + &negative;
    match prompts {
        Prompts::Negative => Ok(negative),
        Prompts::Positive => positive(),
        Prompts::Both => Tensor::cat(&[&negative, &positive()?], 0),
    }
}
