//! UNets as denoisers, with their ControlNets.

use super::run::{Part, Run, Setting};
use crate::models::controlnet::ControlNet;
use crate::models::unet::config::UNetConfig;
use crate::models::unet::{Condition, Extra, Residuals, UNet};
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::pipeline::picture;
use crate::pipeline::text::Encoded;
use crate::request::{Control, ImageRequest};
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
    offload: bool,
}

impl UNetDenoiser {
    /// Loads the network.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(
        config: UNetConfig,
        weights: Weights,
        dtype: DType,
        device: &Device,
        offload: bool,
    ) -> Result<Self> {
        let of = config.clone();
        let build = move |vb: VarBuilder| UNet::new(vb, &of);
        Ok(Self {
            module: Module::new("the denoiser", weights, dtype, device, offload, build)?,
            config,
            controls: HashMap::new(),
            device: device.clone(),
            offload,
        })
    }

    /// Prepares a run.
    ///
    /// # Errors
    /// If a ControlNet cannot be loaded or does not fit, or the device fails.
    pub fn run(&mut self, setting: &Setting) -> Result<Box<dyn Run>> {
        let request = setting.request;
        let distilled = self.config.time_cond_proj_dim.is_some();
        let guidance = Guidance {
            scale: request.guidance,
            rescale: request.guidance_rescale,
        };
        let guidance = (guidance.is_active() && !distilled).then_some(guidance);
        let prepared = self.condition(setting, guidance.is_some());
        let (text, extra) = prepared.map_err(Error::candle("preparing the prompt"))?;
        let mut controls = Vec::new();
        for control in &request.controls {
            controls.push(self.control(control, request, &text, &extra)?);
        }
        let unet = self.module.network()?;
        let failed = Error::candle("preparing the denoiser");
        let build = || {
            let inpainting = match setting.inpainting {
                None => None,
                Some(channels) => {
                    let images = request.batch * if guidance.is_some() { 2 } else { 1 };
                    let channels = channels.to_dtype(unet.dtype())?;
                    Some(channels.repeat((images, 1, 1, 1))?)
                }
            };
            Ok(UNetRun {
                condition: unet.condition(&text, &extra)?,
                unet: unet.clone(),
                guidance,
                inpainting,
                controls,
            })
        };
        Ok(Box::new(build().map_err(failed)?))
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.module.rest();
        self.controls.values_mut().for_each(Module::rest);
    }

    /// Text and numbers for the whole batch, negative prompt first where there is guidance.
    fn condition(&self, setting: &Setting, guided: bool) -> CandleResult<(Tensor, Extra)> {
        let request = setting.request;
        let batch = request.batch;
        let both = |of: &dyn Fn(&Encoded) -> Tensor| -> CandleResult<Tensor> {
            let shape = |x: Tensor| {
                let mut times = vec![1; x.rank()];
                times[0] = batch;
                x.repeat(times)
            };
            let positive = shape(of(setting.positive))?;
            match guided {
                true => Tensor::cat(&[&shape(of(setting.negative))?, &positive], 0),
                false => Ok(positive),
            }
        };
        let text = both(&|encoded| encoded.text.clone())?;
        let pooled = match self.config.addition_embed_type {
            Some(_) => Some(both(&|encoded| encoded.pooled.clone())?),
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
                &self.device,
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
        let prepare = || {
            let picture = picture::to_tensor(&picture, &self.device)?.to_dtype(dtype)?;
            Ok(ControlRun {
                hint: network.hint(&picture)?,
                condition: network.condition(text, extra)?,
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
    strength: f64,
    /// Shares of the run between which it acts.
    active: (f64, f64),
}

struct UNetRun {
    unet: Arc<UNet>,
    condition: Condition,
    guidance: Option<Guidance>,
    inpainting: Option<Tensor>,
    controls: Vec<ControlRun>,
}

impl Run for UNetRun {
    fn output(&mut self, x: &Tensor, level: &NoiseLevel, part: Part) -> CandleResult<Tensor> {
        let batch = x.dim(0)?;
        let x = x.to_dtype(self.unet.dtype())?;
        let x = match self.guidance {
            Some(_) => Tensor::cat(&[&x, &x], 0)?,
            None => x,
        };
        let mut residuals: Option<Residuals> = None;
        for control in self.controls.iter().filter(|c| part.lies_within(c.active)) {
            let more = control.network.forward(
                &x,
                level.timestep,
                &control.condition,
                &control.hint,
                control.strength,
            )?;
            residuals = Some(match residuals {
                None => more,
                Some(sum) => sum.plus(&more)?,
            });
        }
        let x = match &self.inpainting {
            Some(channels) => Tensor::cat(&[&x, channels], 1)?,
            None => x,
        };
        let output = self
            .unet
            .forward(&x, level.timestep, &self.condition, residuals.as_ref())?
            .to_dtype(DType::F32)?;
        match &self.guidance {
            None => Ok(output),
            Some(guidance) => guidance.combine(
                &output.narrow(0, 0, batch)?,
                &output.narrow(0, batch, batch)?,
            ),
        }
    }
}
