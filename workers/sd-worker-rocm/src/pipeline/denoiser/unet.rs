//! UNets as denoisers, with their ControlNets.

use super::run::{Evaluate, Part, Prompts, Setting};
use crate::models::controlnet::ControlNet;
use crate::models::unet::config::UNetConfig;
use crate::models::unet::{Condition, Extra, Residuals, UNet};
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::pipeline::picture;
use crate::pipeline::text::Encoded;
use crate::request::{Control, ImageRequest};
use crate::sampling::guidance::Length;
use crate::sampling::{Guidance, NoiseLevel};
use crate::weights::folder::Folder;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::{Error, Result};

/// The UNet of Stable Diffusion 1, 2 and XL, with its ControlNets.
pub struct UNetDenoiser {
    /// The network.
    pub module: Module<UNet>,
    /// Its configuration.
    pub config: UNetConfig,
    controls: HashMap<PathBuf, Module<ControlNet>>,
    device: Device,
    /// Where ControlNets are loaded.
    control_device: Device,
    offload: bool,
}

impl UNetDenoiser {
    /// Loads the network; `control_device` is where its ControlNets are to be.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(
        config: UNetConfig,
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
            controls: HashMap::new(),
            device: device.clone(),
            control_device: control_device.clone(),
            offload,
        })
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Guidance by a second evaluation; distilled networks have it as a condition.
    pub fn guidance(&self, request: &ImageRequest) -> Option<Guidance> {
        let guidance = Guidance {
            length: Length::Free,
            scale: request.guidance,
            rescale: request.guidance_rescale,
        };
        let distilled = self.config.time_cond_proj_dim.is_some();
        (guidance.is_active() && !distilled).then_some(guidance)
    }

    /// The network, ready for these prompts.
    ///
    /// # Errors
    /// If a ControlNet cannot be loaded or does not fit, or the device fails.
    pub fn evaluation(&mut self, setting: &Setting, prompts: Prompts) -> Result<Box<dyn Evaluate>> {
        let request = setting.request;
        let prepared = self.condition(setting, prompts);
        let (text, extra) = prepared.map_err(Error::candle("preparing the prompt"))?;
        let mut controls = Vec::new();
        for control in &request.controls {
            controls.push(self.control(control, request, &text, &extra)?);
        }
        let unet = self.module.network()?;
        let failed = Error::candle("preparing the denoiser");
        let times = prompts.of(setting).len();
        let build = || {
            let inpainting = match setting.inpainting {
                None => None,
                Some(channels) => {
                    let channels = channels.to_dtype(unet.dtype())?;
                    Some(channels.repeat((request.batch * times, 1, 1, 1))?)
                }
            };
            Ok(Evaluation {
                condition: unet.condition(&text, &extra)?,
                unet: unet.clone(),
                times,
                inpainting,
                controls,
                device: self.device.clone(),
            })
        };
        Ok(Box::new(build().map_err(failed)?))
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.module.rest();
        self.controls.values_mut().for_each(Module::rest);
    }

    /// Text and numbers for the whole batch.
    fn condition(&self, setting: &Setting, prompts: Prompts) -> CandleResult<(Tensor, Extra)> {
        let request = setting.request;
        let batch = request.batch;
        let rows = |of: &dyn Fn(&Encoded) -> Tensor| -> CandleResult<Tensor> {
            let rows = prompts.of(setting).into_iter().map(|encoded| {
                let x = of(encoded);
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
        let (height, width) = (request.height as f64, request.width as f64);
        let extra = Extra {
            pooled,
            sizes: [height, width, 0.0, 0.0, height, width],
            guidance: Some(request.guidance),
        };
        Ok((text, extra))
    }

    fn control(
        &mut self,
        control: &Control,
        request: &ImageRequest,
        text: &Tensor,
        extra: &Extra,
    ) -> Result<ControlRun> {
        if !self.controls.contains_key(&control.model) {
            let module = open_control(
                &control.model,
                &self.config,
                self.module.dtype(),
                &self.control_device,
                self.offload,
            )?;
            self.controls.insert(control.model.clone(), module);
        }
        let Some(module) = self.controls.get_mut(&control.model) else {
            return Err(Error::Runtime("the ControlNet is gone".to_string()));
        };
        let dtype = module.dtype();
        let network = module.network()?;
        let picture = picture::resized(&control.image, request.width, request.height);
        let device = &self.control_device;
        let prepare = || {
            let picture = picture::to_tensor(&picture, device)?.to_dtype(dtype)?;
            Ok(ControlRun {
                hint: network.hint(&picture)?,
                condition: network
                    .condition(&text.to_device(device)?, &extra.to_device(device)?)?,
                device: device.clone(),
                network: network.clone(),
                strength: control.strength,
                active: (control.start, control.end),
            })
        };
        prepare().map_err(Error::candle("preparing the ControlNet"))
    }
}

fn open_control(
    path: &Path,
    unet: &UNetConfig,
    dtype: DType,
    device: &Device,
    offload: bool,
) -> Result<Module<ControlNet>> {
    let (config, weights) = if path.is_dir() {
        let folder = Folder::Disk(path.to_path_buf());
        let part = folder.part("");
        (part.config::<UNetConfig>()?, part.weights()?)
    } else {
        let weights = Weights::open(path)?;
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        // Single files have no configuration; a ControlNet copies the structure of the UNet that it was trained for.
        let config = UNetConfig {
            in_channels: 4,
            conditioning_embedding_out_channels: UNetConfig::default()
                .conditioning_embedding_out_channels,
            ..unet.clone()
        };
        let weights = crate::weights::ldm::controlnet(&weights, &config).ok_or_else(|| {
            bad("this is not a ControlNet: it has neither controlnet_cond_embedding nor input_hint_block".to_string())
        })?;
        (config, weights)
    };
    let build = move |vb: VarBuilder| ControlNet::new(vb, &config);
    Module::new("the ControlNet", weights, dtype, device, offload, build)
}

struct ControlRun {
    network: Arc<ControlNet>,
    condition: Condition,
    hint: Tensor,
    device: Device,
    strength: f64,
    /// Shares of the run between which it acts.
    active: (f64, f64),
}

struct Evaluation {
    unet: Arc<UNet>,
    condition: Condition,
    /// How often the latents are in the batch.
    times: usize,
    inpainting: Option<Tensor>,
    controls: Vec<ControlRun>,
    device: Device,
}

impl Evaluate for Evaluation {
    fn evaluate(&self, x: &Tensor, level: &NoiseLevel, part: Part) -> CandleResult<Tensor> {
        let x = x.to_dtype(self.unet.dtype())?;
        let x = match self.times {
            1 => x,
            times => Tensor::cat(&vec![&x; times], 0)?,
        };
        let mut residuals: Option<Residuals> = None;
        for control in self.controls.iter().filter(|c| part.lies_within(c.active)) {
            let more = control.network.forward(
                &x.to_device(&control.device)?,
                level.timestep,
                &control.condition,
                &control.hint,
                control.strength,
            )?;
            let more = more.to_device(&self.device)?;
            residuals = Some(match residuals {
                None => more,
                Some(sum) => sum.plus(&more)?,
            });
        }
        let x = match &self.inpainting {
            Some(channels) => Tensor::cat(&[&x, channels], 1)?,
            None => x,
        };
        self.unet
            .forward(&x, level.timestep, &self.condition, residuals.as_ref())?
            .to_dtype(DType::F32)
    }
}
