//! Low-rank adaptations: read, and matched to a model's tensors.
//!
//! Kohya's and diffusers' (PEFT's) key names; linear layers and convolutions (LoCon), also with a core tensor.

mod names;

pub use names::Network;

use crate::models::low_rank::LowRank;
use crate::weights::Weights;
use candle_core::{DType, Device};
use names::Target;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// A low-rank adaptation to be merged for this request.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// A path to a safetensors file, or a name (without `.safetensors`) in the folders of LoRAs.
    pub name: String,
    /// Strength on the denoiser and the text encoders; 1 is as trained.
    pub strength: f64,
}

/// What a LoRA adds to one layer: `up mid down * alpha / rank`.
#[derive(Debug, Default)]
struct Layer {
    down: Option<String>,
    up: Option<String>,
    mid: Option<String>,
    alpha: Option<String>,
}

/// A LoRA's file, its layers sorted by the network that they belong to.
pub struct LoraFile {
    path: PathBuf,
    weights: Weights,
    layers: BTreeMap<Target, Layer>,
}

/// A change to one tensor.
pub struct Delta {
    /// The network.
    pub network: Network,
    /// The tensor.
    pub tensor: String,
    /// What is added to it.
    pub change: LowRank,
}

impl LoraFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::BadModel`] for other files and for kinds of adaptations that are not implemented, by name.
    pub fn open(path: &Path) -> Result<Self> {
        let weights = Weights::open(path)?;
        let mut layers: BTreeMap<Target, Layer> = BTreeMap::new();
        for name in weights.names() {
            let (target, factor) = names::parse(name).map_err(|reason| Error::BadModel {
                path: path.to_path_buf(),
                reason,
            })?;
            let layer = layers.entry(target).or_default();
            let place = match factor {
                names::Factor::Down => &mut layer.down,
                names::Factor::Up => &mut layer.up,
                names::Factor::Mid => &mut layer.mid,
                names::Factor::Alpha => &mut layer.alpha,
            };
            *place = Some(name.to_string());
        }
        Ok(Self {
            path: path.to_path_buf(),
            weights,
            layers,
        })
    }

    /// The path of a LoRA: `name` itself if it is a file, or `name.safetensors` in one of `folders`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none.
    pub fn find(name: &str, folders: &[PathBuf]) -> Result<PathBuf> {
        let itself = PathBuf::from(name);
        if itself.is_file() {
            return Ok(itself);
        }
        // A name must not lead out of the folders.
        let plain = Path::new(name).file_name() == Some(name.as_ref());
        let found = folders
            .iter()
            .filter(|_| plain)
            .flat_map(|folder| {
                [
                    folder.join(format!("{name}.safetensors")),
                    folder.join(name),
                ]
            })
            .find(|path| path.is_file());
        found.ok_or_else(|| {
            Error::Usage(format!(
                "there is no LoRA {name:?}: neither a file of this name nor {name}.safetensors in a LoRA folder"
            ))
        })
    }

    /// What is to be added at `strength`, for a model whose networks have these tensors.
    ///
    /// # Errors
    /// [`Error::BadModel`] if the LoRA changes layers that the model does not have, or in other shapes.
    pub fn deltas(
        &self,
        strength: f64,
        networks: &[(Network, Vec<String>)],
        device: &Device,
    ) -> Result<Vec<Delta>> {
        let bad = |reason: String| Error::BadModel {
            path: self.path.clone(),
            reason,
        };
        let index = names::Index::new(networks);
        let missing: Vec<&Target> = self
            .layers
            .keys()
            .filter(|target| index.find(target).is_none())
            .collect();
        if let Some(first) = missing.first() {
            return Err(bad(format!(
                "{} of {} layers of this LoRA are not in the model (the first is {first}); it was made for another kind of model",
                missing.len(),
                self.layers.len()
            )));
        }
        let mut deltas = Vec::new();
        for (target, layer) in &self.layers {
            let Some(tensors) = index.find(target) else {
                continue;
            };
            let wrong = |e| bad(format!("layer {target}: {e}"));
            let change = self.change(layer, strength, device).map_err(wrong)?;
            let shares: usize = tensors.iter().map(|(_, share)| share).sum();
            let mut first = 0;
            for (tensor, share) in tensors {
                deltas.push(Delta {
                    network: target.network,
                    tensor,
                    change: change.share(first, share, shares).map_err(wrong)?,
                });
                first += share;
            }
        }
        Ok(deltas)
    }

    fn change(
        &self,
        layer: &Layer,
        strength: f64,
        device: &Device,
    ) -> candle_core::Result<LowRank> {
        let (Some(down), Some(up)) = (&layer.down, &layer.up) else {
            candle_core::bail!("one of its two matrices is missing")
        };
        let load = |name: &str| {
            self.weights
                .load(name, DType::F32, device)
                .map_err(candle_core::Error::wrap)
        };
        let (down, up) = (load(down)?, load(up)?);
        let rank = down.dim(0)?;
        let alpha = match &layer.alpha {
            Some(alpha) => f64::from(load(alpha)?.flatten_all()?.get(0)?.to_scalar::<f32>()?),
            None => rank as f64,
        };
        Ok(LowRank {
            up: (up.flatten_from(1)? * (strength * alpha / rank as f64))?,
            down: down.flatten_from(1)?,
            core: layer.mid.as_deref().map(load).transpose()?,
        })
    }
}
