//! Diffusion transformers as denoisers.

use super::block_controls::BlockControls;
use super::replay::{Course, Recordings};
use super::run::{Evaluate, Part, Prompts, Setting};
use crate::models::change::Change;
use crate::models::time::Level;
use crate::pipeline::families::{Evaluation, Inputs, Network, TransformerFamily};
use crate::pipeline::module::Module;
use crate::pipeline::text::Encoded;
use crate::request::{ImageRequest, Perturbation};
use crate::sampling::guidance::Length;
use crate::sampling::Guidance;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::sync::Arc;
use worker::{Error, Result};

/// Of the networks of early and late steps those that are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// Those of all steps.
    Both,
    /// That of early steps, at much noise.
    Early,
    /// That of late steps, at little noise.
    Late,
}

/// What is in front of the names of tensors of the network of late steps.
const LATE: &str = "transformer_2.";

/// A transformer at work.
pub struct TransformerDenoiser {
    module: Module<Arc<dyn Network>>,
    /// The network of late steps, where that is another one.
    late: Option<Module<Arc<dyn Network>>>,
    /// Whether steps are late now.
    is_late: bool,
    /// The networks that [`TransformerDenoiser::add`] changes.
    aim: Aim,
    family: Arc<dyn TransformerFamily>,
    device: Device,
    controls: BlockControls,
    /// What is known of recorded evaluations.
    pub recordings: Arc<Recordings>,
}

impl TransformerDenoiser {
    /// Loads the network.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(
        family: Arc<dyn TransformerFamily>,
        weights: Weights,
        late: Option<Weights>,
        dtype: DType,
        device: &Device,
        offload: bool,
    ) -> Result<Self> {
        let load = |what, weights| {
            let of = family.clone();
            let build = move |vb| of.build(vb);
            Module::new(what, weights, dtype, device, offload, build)
        };
        Ok(Self {
            module: load("the denoiser", weights)?,
            late: late
                .map(|weights| load("the denoiser of late steps", weights))
                .transpose()?,
            is_late: false,
            aim: Aim::Both,
            family,
            device: device.clone(),
            controls: BlockControls::new(device, offload),
            recordings: Arc::default(),
        })
    }

    /// Where it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What it is.
    pub fn family(&self) -> &dyn TransformerFamily {
        &*self.family
    }

    /// Guidance by a second evaluation.
    pub fn guidance(&self, request: &ImageRequest) -> Option<Guidance> {
        let late = request.video.as_ref().filter(|_| self.is_late);
        let late = late.and_then(|video| video.late_guidance);
        let guidance = Guidance {
            form: request.tuning.guidance.form(),
            length: match request.tuning.guidance.guidance_norm {
                None => self.family.guidance_length(),
                Some(0.0) => Length::Free,
                Some(most) => Length::AtMost(most),
            },
            scale: late.unwrap_or_else(|| self.family.guidance_scale(request)),
            rescale: request.guidance_rescale,
        };
        let wanted = guidance.is_active() || request.sampler.needs_negative();
        wanted.then_some(guidance)
    }

    /// Whether steps from this time step on are another network's than those before.
    pub fn is_past(&self, timestep: f64) -> bool {
        let boundary = self.family.boundary().filter(|_| self.late.is_some());
        boundary.is_some_and(|boundary| (timestep < boundary) != self.is_late)
    }

    /// Says at which time step the steps that come are.
    pub fn turn_to(&mut self, timestep: f64) {
        if !self.is_past(timestep) {
            return;
        }
        self.is_late = !self.is_late;
        // The other one gives its room to this one.
        match &mut self.late {
            Some(late) if !self.is_late => late.rest(),
            _ => self.module.rest(),
        }
    }

    fn current(&mut self) -> &mut Module<Arc<dyn Network>> {
        match &mut self.late {
            Some(late) if self.is_late => late,
            _ => &mut self.module,
        }
    }

    /// The network, ready for latents of these dimensions under these prompts.
    ///
    /// # Errors
    /// If the device fails.
    pub fn evaluation(
        &mut self,
        setting: &Setting,
        prompts: Prompts,
        latents: &[usize],
    ) -> Result<Box<dyn Evaluate>> {
        let request = setting.request;
        let late = self.is_late;
        let module = self.current();
        let (network, dtype) = (Arc::clone(&*module.network()?), module.dtype());
        let network = match setting.perturbation {
            None => network,
            Some(Perturbation::WithoutLayers(layers)) => network
                .without_layers(layers)
                .map_err(|e| Error::Usage(format!("skip_layers: {e}")))?,
            Some(Perturbation::WithoutAttention(blocks)) => network
                .without_attention(blocks)
                .map_err(|e| Error::Usage(format!("pag_layers: {e}")))?,
        };
        let of = prompts.of(setting);
        let like = of.first().map(|encoded| encoded.text.to_dtype(dtype));
        let like = like
            .transpose()
            .map_err(Error::candle("preparing the denoiser"))?;
        let controls = match (like, setting.hints) {
            (Some(text), [_, ..]) => {
                let family = &*self.family;
                (self.controls).prepare(family, request, setting.hints, &text, latents)?
            }
            _ => Vec::new(),
        };
        let prepare = || -> CandleResult<Repeated> {
            let rows = |x: &dyn Fn(&Encoded) -> Tensor| {
                let rows = of.iter().map(|encoded| {
                    let x = x(encoded).to_dtype(dtype)?;
                    let mut times = vec![1; x.rank()];
                    times[0] = request.batch;
                    x.repeat(times)
                });
                Tensor::cat(&rows.collect::<CandleResult<Vec<_>>>()?, 0)
            };
            let more = setting.positive.more.len();
            let more = (0..more).map(|i| rows(&|encoded| encoded.more[i].clone()));
            let inputs = Inputs {
                request,
                text: rows(&|encoded| encoded.text.clone())?,
                pooled: rows(&|encoded| encoded.pooled.clone())?,
                more: more.collect::<CandleResult<_>>()?,
                latents,
                references: (setting.references.iter())
                    .map(|x| x.to_dtype(dtype))
                    .collect::<CandleResult<_>>()?,
                masked: match setting.channels {
                    Some(x) => {
                        let rows = request.batch * of.len();
                        Some(x.to_dtype(dtype)?.repeat((rows, 1, 1, 1))?)
                    }
                    None => None,
                },
                ends: setting.ends.each(|x| x.to_dtype(dtype))?,
                controls,
            };
            let controls = request.controls.iter();
            Ok(Repeated {
                controls: controls
                    .map(|control| (control.start, control.end))
                    .collect(),
                decides: request.tuning.step_cache.is_some(),
                late,
                evaluation: network.clone().prepare(inputs)?,
                times: of.len(),
                dtype,
            })
        };
        let evaluation = prepare().map_err(Error::candle("preparing the denoiser"))?;
        Ok(Box::new(evaluation))
    }

    /// Not needed for now.
    pub fn rest(&mut self) {
        self.module.rest();
        if let Some(late) = &mut self.late {
            late.rest();
        }
        self.controls.rest();
    }

    /// Names of the tensors.
    pub fn names(&self) -> Vec<String> {
        let late = self.late.iter().flat_map(Module::names);
        let late = late.map(|name| format!("{LATE}{name}"));
        self.module.names().map(String::from).chain(late).collect()
    }

    /// Chooses what [`TransformerDenoiser::add`] changes from now on, where early and late steps have networks of their
    /// own and a name does not say it.
    pub fn aim(&mut self, aim: Aim) {
        self.aim = aim;
    }

    /// As [`Module::add`].
    ///
    /// # Errors
    /// Those of [`Module::add`].
    pub fn add(&mut self, name: &str, change: &Change) -> CandleResult<()> {
        match (name.strip_prefix(LATE), &mut self.late) {
            (Some(name), Some(late)) => late.add(name, change),
            (_, None) => self.module.add(name, change),
            (_, Some(late)) => {
                if self.aim != Aim::Late {
                    self.module.add(name, change)?;
                }
                match self.aim {
                    Aim::Early => Ok(()),
                    Aim::Both | Aim::Late => late.add(name, change),
                }
            }
        }
    }

    /// As [`Module::restore`].
    ///
    /// # Errors
    /// Those of [`Module::restore`].
    pub fn restore(&mut self) -> Result<()> {
        if let Some(late) = &mut self.late {
            late.restore()?;
        }
        self.module.restore()
    }
}

/// A network's evaluation of the same latents under several prompts.
struct Repeated {
    evaluation: Evaluation,
    /// How often the latents are in the batch.
    times: usize,
    dtype: DType,
    /// Shares of the run between which ControlNets act.
    controls: Vec<(f64, f64)>,
    /// Whether steps look at what they have computed.
    decides: bool,
    /// Whether the network is that of late steps.
    late: bool,
}

impl Evaluate for Repeated {
    fn evaluate(&self, x: &Tensor, level: &Level, part: Part) -> CandleResult<Tensor> {
        let x = x.to_dtype(self.dtype)?;
        let x = match self.times {
            1 => x,
            times => Tensor::cat(&vec![&x; times], 0)?,
        };
        (self.evaluation)(&x, level, part)?.to_dtype(DType::F32)
    }

    fn course(&self, part: Part) -> Course {
        if self.decides {
            return Err("steps are left out by what they compute (step_cache)");
        }
        let controls = self.controls.iter();
        let controls = controls.map(|share| usize::from(part.lies_within(*share)));
        let first = [self.times, usize::from(self.late)];
        Ok(first.into_iter().chain(controls).collect())
    }
}
