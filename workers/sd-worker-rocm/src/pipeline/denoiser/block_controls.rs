//! ControlNets of transformers.

use super::run::Part;
use crate::info::Family;
use crate::models::time::Level;
use crate::models::transformer::attention::Rope;
use crate::models::transformer::flux_control::{BlockResiduals, FluxControl, FluxControlConfig};
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::request::{Control, ControlMode, ImageRequest};
use crate::weights::folder::Folder;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::{Error, Result};

/// The kinds of pictures that unions for FLUX.1 know, in InstantX's order, which Shakker's keep.
const KINDS: [&str; 7] = ["canny", "tile", "depth", "blur", "pose", "gray", "lq"];

/// The networks that requests have named so far.
pub struct BlockControls {
    open: HashMap<PathBuf, Module<FluxControl>>,
    device: Device,
    offload: bool,
}

/// A network that is ready for the steps of a request.
pub struct BlockControl {
    network: Arc<FluxControl>,
    hint: Tensor,
    kind: usize,
    rope: Rope,
    strength: f64,
    active: (f64, f64),
    guidance: f64,
}

impl BlockControls {
    /// None yet; they will be on this device.
    pub fn new(device: &Device, offload: bool) -> Self {
        Self {
            open: HashMap::new(),
            device: device.clone(),
            offload,
        }
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.open.values_mut().for_each(Module::rest);
    }

    /// Prepares a request's networks, for latents of their pictures, a text and latents of this height and width.
    ///
    /// # Errors
    /// If they cannot be loaded or do not fit, or the device fails.
    pub fn prepare(
        &mut self,
        family: Family,
        request: &ImageRequest,
        hints: &[Tensor],
        text: &Tensor,
        latents: &[usize],
    ) -> Result<Vec<BlockControl>> {
        let dtype = text.dtype();
        let pairs = request.controls.iter().zip(hints);
        let controls = pairs.map(|(control, hint)| {
            let bad = |reason: &str| {
                Error::Usage(format!("controls: {}: {reason}", control.model.display()))
            };
            if family != Family::Flux {
                return Err(bad("ControlNets for this family are not implemented"));
            }
            if control.mode != ControlMode::Balanced {
                return Err(bad("modes of ControlNets are for models with a UNet"));
            }
            if !self.open.contains_key(&control.model) {
                let opened = open(&control.model, dtype, &self.device, self.offload)?;
                self.open.insert(control.model.clone(), opened);
            }
            let Some(module) = self.open.get_mut(&control.model) else {
                return Err(Error::Runtime("the ControlNet is gone".to_string()));
            };
            let network = module.network()?;
            let kind = kind(control, network.kinds()).map_err(|reason| bad(&reason))?;
            let prepare = || {
                let [.., height, width] = *latents else {
                    candle_core::bail!("latents of {latents:?}")
                };
                Ok(BlockControl {
                    rope: network.rope(text.dim(1)?, (height, width), text)?,
                    hint: hint.to_dtype(dtype)?.to_device(&self.device)?,
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

/// What all networks of a request add in this part of the run.
///
/// # Errors
/// If shapes do not fit together, or the device fails.
pub fn residuals(
    controls: &[BlockControl],
    x: &Tensor,
    level: &Level,
    part: Part,
    (text, pooled): (&Tensor, &Tensor),
) -> CandleResult<BlockResiduals> {
    let mut sum = BlockResiduals::default();
    let time = level.time(|level| 1000.0 * level.sigma);
    for control in controls.iter().filter(|c| part.lies_within(c.active)) {
        let more = control.network.forward(
            x,
            (&control.hint, control.kind),
            (time, control.guidance),
            text,
            pooled,
            &control.rope,
            control.strength,
        )?;
        sum = sum.plus(more)?;
    }
    Ok(sum)
}

/// The number of a picture's kind, for a union of so many.
fn kind(control: &Control, kinds: Option<usize>) -> std::result::Result<usize, String> {
    let said = control.kind.as_deref().map(str::trim).unwrap_or("");
    let Some(kinds) = kinds else {
        return match said {
            "" => Ok(0),
            _ => Err("only unions of ControlNets are told the kind of the picture".to_string()),
        };
    };
    let said = said.to_lowercase();
    let named = KINDS.iter().position(|name| *name == said);
    match said.parse().ok().or(named) {
        Some(kind) if kind < kinds => Ok(kind),
        _ => {
            let names = KINDS[..kinds.min(KINDS.len())].join(", ");
            Err(format!(
                "a union of ControlNets: say of what kind the picture is: {names} (or its number, to {})",
                kinds - 1
            ))
        }
    }
}

fn open(path: &Path, dtype: DType, device: &Device, offload: bool) -> Result<Module<FluxControl>> {
    if !path.is_dir() {
        return Err(Error::BadModel {
            path: path.to_path_buf(),
            reason: "ControlNets of FLUX.1 are folders with config.json here; a single file does not tell its heads"
                .to_string(),
        });
    }
    let folder = Folder::Disk(path.to_path_buf());
    let part = folder.part("");
    let said: serde_json::Value = part.config()?;
    let class = said.get("_class_name").and_then(|class| class.as_str());
    if class != Some("FluxControlNetModel") {
        return Err(part.bad_config(format!(
            "a network of kind {} does not steer FLUX.1",
            class.unwrap_or("(none)")
        )));
    }
    let config: FluxControlConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    let build = move |vb: VarBuilder| FluxControl::new(vb, &config);
    let weights = part.weights()?;
    Module::new("the ControlNet", weights, dtype, device, offload, build)
}
