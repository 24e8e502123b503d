//! ControlNets of transformers.

use super::opened::{kind_of, Opened};
use super::run::{Hint, Part};
use crate::info::Family;
use crate::models::time::Level;
use crate::models::transformer::attention::Rope;
use crate::models::transformer::block_residuals::{BlockResiduals, Spread};
use crate::models::transformer::flux_control::{FluxControl, FluxControlConfig};
use crate::models::transformer::sd3_control::{
    Sd3Control, Sd3ControlConfig, KINDS as KINDS_OF_SD3,
};
use crate::models::VarBuilder;
use crate::pipeline::families::TransformerFamily;
use crate::pipeline::module::Module;
use crate::request::{Control, ControlMode, Hidden, ImageRequest};
use crate::weights::folder::{Folder, Part as Files};
use crate::weights::{block_controls as files, Weights};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::path::Path;
use std::sync::Arc;
use worker::{Error, Result};

/// The kinds of pictures that unions for FLUX.1 know, in InstantX's order, which Shakker's keep.
const KINDS: [&[&str]; 7] = [
    &["canny"],
    &["tile"],
    &["depth"],
    &["blur"],
    &["pose"],
    &["gray"],
    &["lq"],
];

/// A network that steers a transformer.
enum Steering {
    Flux(FluxControl),
    Sd3(Sd3Control),
}

/// What describes one.
enum SteeringConfig {
    Flux(FluxControlConfig),
    Sd3(Sd3ControlConfig),
}

/// The networks that requests have named so far.
pub struct BlockControls(Opened<Steering>);

/// A network that is ready for the steps of a request.
pub struct BlockControl {
    network: Arc<Steering>,
    /// What it makes of its picture.
    hint: Tensor,
    kind: usize,
    /// Of networks whose tokens are turned.
    rope: Option<Rope>,
    strength: f64,
    active: (f64, f64),
    guidance: f64,
}

/// What networks see of a step.
pub struct Seen<'a> {
    /// The latents.
    pub x: &'a Tensor,
    /// The same behind the transformer's entry, where its ControlNets may want that.
    pub entered: Option<&'a Tensor>,
    /// The text.
    pub text: &'a Tensor,
    /// The pooled text.
    pub pooled: &'a Tensor,
    /// Blocks of the transformer with layers of their own for picture and text, and others.
    pub blocks: (usize, usize),
}

impl BlockControls {
    /// None yet; they will be on this device.
    pub fn new(device: &Device, offload: bool) -> Self {
        Self(Opened::new(device, offload))
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.0.rest();
    }

    /// Prepares a request's networks, for their pictures, a text and latents of this height and width.
    ///
    /// # Errors
    /// If they cannot be loaded or do not fit, or the device fails.
    pub fn prepare(
        &mut self,
        family: &dyn TransformerFamily,
        request: &ImageRequest,
        hints: &[Hint],
        text: &Tensor,
        latents: &[usize],
    ) -> Result<Vec<BlockControl>> {
        let dtype = text.dtype();
        let pairs = request.controls.iter().zip(hints);
        let controls = pairs.map(|(control, hint)| {
            let bad = |reason: &str| {
                Error::Usage(format!("controls: {}: {reason}", control.model.display()))
            };
            if control.mode != ControlMode::Balanced {
                return Err(bad("modes of ControlNets are for models with a UNet"));
            }
            let path = &control.model;
            let opened = (self.0).get(path, |device, offload| {
                open(path, family, dtype, device, offload)
            })?;
            let network = opened.network()?;
            let kind = network.kind(control).map_err(|reason| bad(&reason))?;
            network
                .check_hidden(&control.hidden)
                .map_err(|reason| bad(&reason))?;
            let prepare = || {
                let [.., height, width] = *latents else {
                    candle_core::bail!("latents of {latents:?}")
                };
                let hint = hint.to_device(self.0.device())?;
                Ok(BlockControl {
                    rope: network.rope(text, (height, width))?,
                    hint: network.hint(&hint, dtype)?,
                    network: network.clone(),
                    kind,
                    strength: control.strength,
                    active: (control.start, control.end),
                    guidance: request.guidance,
                })
            };
            prepare().map_err(Error::candle("preparing the ControlNet"))
        });
        controls.collect()
    }
}

impl Steering {
    /// The number of a picture's kind, for a union; others know one.
    fn kind(&self, control: &Control) -> std::result::Result<usize, String> {
        match (self, control.kind.as_deref()) {
            (Self::Flux(net), said) => kind_of(said, net.kinds(), &KINDS),
            (Self::Sd3(net), Some(said)) if net.is_told() => match KINDS_OF_SD3.contains(&said) {
                true => Ok(0),
                false => Err(format!(
                    "the kind of the picture is none of {}",
                    KINDS_OF_SD3.join(", ")
                )),
            },
            (Self::Sd3(_), said) => kind_of(said, None, &[]),
        }
    }

    /// Whether what is hidden of a picture is what the network wants.
    fn check_hidden(&self, hidden: &Hidden) -> std::result::Result<(), String> {
        let paints = matches!(self, Self::Sd3(net) if net.paints());
        match (paints, matches!(hidden, Hidden::Nothing)) {
            (true, true) => Err(
                "this ControlNet paints what is hidden of its picture: use the preprocessor inpaint"
                    .to_string(),
            ),
            (false, false) => Err(
                "the preprocessor inpaint is for ControlNets that paint; this one has no channel for a mask"
                    .to_string(),
            ),
            _ => Ok(()),
        }
    }

    fn rope(&self, text: &Tensor, size: (usize, usize)) -> CandleResult<Option<Rope>> {
        match self {
            Self::Flux(net) => net.rope(text.dim(1)?, size, text).map(Some),
            Self::Sd3(_) => Ok(None),
        }
    }

    fn hint(&self, hint: &Hint, dtype: DType) -> CandleResult<Tensor> {
        match self {
            Self::Flux(net) if net.sees_pixels() => net.hint(&hint.pixels.to_dtype(dtype)?),
            Self::Flux(net) => net.hint(&hint.latents.to_dtype(dtype)?),
            Self::Sd3(net) => {
                let latents = match net.shifts() {
                    true => hint.latents.clone(),
                    false => (&hint.latents - hint.shift)?,
                };
                let seen = match (net.paints(), &hint.shown) {
                    (false, _) => latents,
                    (true, Some(shown)) => Tensor::cat(&[&latents, shown], 1)?,
                    (true, None) => {
                        let all = latents.narrow(1, 0, 1)?.ones_like()?;
                        Tensor::cat(&[&latents, &all], 1)?
                    }
                };
                net.hint(&seen.to_dtype(dtype)?)
            }
        }
    }
}

impl BlockControl {
    fn residuals(&self, seen: &Seen, level: &Level) -> CandleResult<BlockResiduals> {
        let time = level.time(|level| 1000.0 * level.sigma);
        let Seen {
            x, text, pooled, ..
        } = *seen;
        match (&*self.network, &self.rope, seen.entered) {
            (Steering::Flux(net), Some(rope), _) => net.forward(
                x,
                (&self.hint, self.kind),
                (time, self.guidance),
                text,
                pooled,
                rope,
                self.strength,
                seen.blocks,
            ),
            (Steering::Sd3(net), _, Some(entered)) => {
                let hint = &self.hint;
                let own = net.forward((x, entered), hint, time, text, pooled, self.strength)?;
                Ok(BlockResiduals {
                    double: Spread::Shares.over(&own, seen.blocks.0),
                    single: Vec::new(),
                })
            }
            _ => candle_core::bail!("a ControlNet of another family"),
        }
    }
}

/// What all networks of a request add in this part of the run.
///
/// # Errors
/// If shapes do not fit together, or the device fails.
pub fn residuals(
    controls: &[BlockControl],
    seen: &Seen,
    level: &Level,
    part: Part,
) -> CandleResult<BlockResiduals> {
    let mut sum = BlockResiduals::default();
    for control in controls.iter().filter(|c| part.lies_within(c.active)) {
        sum = sum.plus(control.residuals(seen, level)?)?;
    }
    Ok(sum)
}

/// A folder's configuration.
fn of_folder(part: &Files, family: &dyn TransformerFamily) -> Result<SteeringConfig> {
    let said: serde_json::Value = part.config()?;
    let class = said.get("_class_name").and_then(|class| class.as_str());
    match (class, family.family()) {
        (Some("FluxControlNetModel"), Family::Flux) => {
            let config: FluxControlConfig = part.config()?;
            config.check().map_err(|e| part.bad_config(e))?;
            Ok(SteeringConfig::Flux(config))
        }
        (Some("SD3ControlNetModel"), Family::Sd3) => {
            let config: Sd3ControlConfig = part.config()?;
            config.check().map_err(|e| part.bad_config(e))?;
            Ok(SteeringConfig::Sd3(config))
        }
        _ => Err(part.bad_config(format!(
            "a network of kind {} does not steer {}",
            class.unwrap_or("(none)"),
            family.row().label
        ))),
    }
}

/// What a single file's tensors tell, and these under diffusers' names.
fn of_file(
    file: &Weights,
    family: &dyn TransformerFamily,
) -> std::result::Result<(SteeringConfig, Weights), String> {
    match family.family() {
        Family::Flux => {
            let weights = files::flux_control(file);
            let config = files::flux_control_config(&weights, family.head_shares())?;
            Ok((SteeringConfig::Flux(config), weights))
        }
        Family::Sd3 => {
            let weights = files::sd3_control(file);
            let config = files::sd3_control_config(&weights, family.head_shares())?;
            Ok((SteeringConfig::Sd3(config), weights))
        }
        _ => Err(format!(
            "ControlNets of {} are not implemented",
            family.row().label
        )),
    }
}

fn open(
    path: &Path,
    family: &dyn TransformerFamily,
    dtype: DType,
    device: &Device,
    offload: bool,
) -> Result<Module<Steering>> {
    let (config, weights) = if path.is_dir() {
        let folder = Folder::Disk(path.to_path_buf());
        let part = folder.part("");
        (of_folder(&part, family)?, part.weights()?)
    } else {
        let file = Weights::open(path)?;
        of_file(&file, family).map_err(|reason| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        })?
    };
    let build = move |vb: VarBuilder| {
        Ok(match &config {
            SteeringConfig::Flux(config) => Steering::Flux(FluxControl::new(vb, config)?),
            SteeringConfig::Sd3(config) => Steering::Sd3(Sd3Control::new(vb, config)?),
        })
    };
    Module::new("the ControlNet", weights, dtype, device, offload, build)
}
