//! Low-rank adaptations: read, and matched to a model's tensors.
//!
//! Kohya's and diffusers' (PEFT's) key names; linear layers and convolutions (LoCon), also with a core tensor.

mod names;
mod scale;

pub use names::Network;

use crate::models::low_rank::LowRank;
use crate::weights::Weights;
use candle_core::{DType, Device};
use names::Target;
use scale::Scales;
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

/// PEFT's files.
const PEFT_WEIGHTS: &str = "adapter_model.safetensors";
const PEFT_CONFIG: &str = "adapter_config.json";

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
    /// What is said of whole networks.
    scales: Scales,
}

/// The file of a LoRA that is a folder.
fn file_in(folder: &Path) -> Option<PathBuf> {
    ["pytorch_lora_weights.safetensors", PEFT_WEIGHTS]
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_file())
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
    /// Opens a file, or the one in a folder as diffusers or PEFT writes it.
    ///
    /// # Errors
    /// [`Error::BadModel`] for other files and for kinds of adaptations that are not implemented, by name.
    pub fn open(path: &Path) -> Result<Self> {
        let inner = file_in(path);
        let path = inner.as_deref().unwrap_or(path);
        let weights = Weights::open(path)?;
        let bad = |reason| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let config = path.with_file_name(PEFT_CONFIG);
        let scales = match weights.metadata(scale::METADATA) {
            Some(text) => Scales::of_metadata(text).map_err(bad)?,
            None if path.file_name() == Some(PEFT_WEIGHTS.as_ref()) && config.is_file() => {
                let text = crate::weights::bytes::Bytes::map(&config)?;
                Scales::of_config(&text).map_err(bad)?
            }
            None => Scales::default(),
        };
        let mut layers: BTreeMap<Target, Layer> = BTreeMap::new();
        for name in weights.names() {
            let (target, factor) = names::parse(name).map_err(bad)?;
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
            scales,
        })
    }

    /// The path of a LoRA: `name` itself if it is a file or a folder with one, or `name.safetensors` in one of
    /// `folders`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none.
    pub fn find(name: &str, folders: &[PathBuf]) -> Result<PathBuf> {
        let itself = PathBuf::from(name);
        let is_lora = |path: &Path| path.is_file() || file_in(path).is_some();
        if is_lora(&itself) {
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
            .find(|path| is_lora(path));
        found.ok_or_else(|| {
            Error::Usage(format!(
                "there is no LoRA {name:?}: neither a file of this name nor {name}.safetensors in a LoRA folder"
            ))
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
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
            let change = self
                .change(target, layer, strength, device)
                .map_err(wrong)?;
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
        target: &Target,
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
        let scale = match &layer.alpha {
            Some(alpha) => {
                let alpha = load(alpha)?.flatten_all()?.get(0)?.to_scalar::<f32>()?;
                f64::from(alpha) / rank as f64
            }
            None => self.scales.factor(target, rank).unwrap_or(1.0),
        };
        Ok(LowRank {
            up: (up.flatten_from(1)? * (strength * scale))?,
            down: down.flatten_from(1)?,
            core: layer.mid.as_deref().map(load).transpose()?,
        })
    }
}
