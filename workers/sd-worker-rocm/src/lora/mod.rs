//! Low-rank adaptations: read, and matched to a model's tensors.
//!
//! Kohya's and diffusers' (PEFT's) key names; linear layers and convolutions (LoCon), also with a core tensor.

mod names;

use crate::weights::Weights;
use candle_core::{DType, Device, Tensor};
use names::Target;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

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

/// The networks that a LoRA can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// UNet or transformer.
    Denoiser,
    /// A text tower, counted from 0.
    Text(usize),
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

/// A matrix of few columns times one of few rows, with a core between them for convolutions; all in f32.
#[derive(Debug, Clone)]
pub struct LowRank {
    /// `(outputs, rank)`, times the strength.
    pub up: Tensor,
    /// `(rank, inputs)`.
    pub down: Tensor,
    /// `(up's rank, down's rank, height, width)`.
    pub core: Option<Tensor>,
}

impl LowRank {
    /// `count` shares of `shares` of the outputs, from share `first` on.
    fn share(&self, first: usize, count: usize, shares: usize) -> candle_core::Result<Self> {
        let outputs = self.up.dim(0)?;
        if !outputs.is_multiple_of(shares) {
            candle_core::bail!("{outputs} outputs have no {shares} equal parts")
        }
        let rows = outputs / shares;
        Ok(Self {
            up: self.up.narrow(0, first * rows, count * rows)?,
            ..self.clone()
        })
    }

    /// The product, with as many elements as the tensor to which it is added.
    ///
    /// # Errors
    /// If shapes do not fit together, or the device fails.
    pub fn product(&self) -> candle_core::Result<Tensor> {
        let Some(core) = &self.core else {
            return self.up.matmul(&self.down);
        };
        // up (o, p), core (p, q, h, w), down (q, i): to (o, i, h, w).
        let (p, q, h, w) = core.dims4()?;
        let inputs = self.down.dim(1)?;
        let core = core.permute((0, 2, 3, 1))?.reshape((p * h * w, q))?;
        let core = core.matmul(&self.down)?.reshape((p, h * w, inputs))?;
        let core = core.transpose(1, 2)?.reshape((p, inputs * h * w))?;
        self.up.matmul(&core)
    }
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
            let (target, part) = names::parse(name).map_err(|reason| Error::BadModel {
                path: path.to_path_buf(),
                reason,
            })?;
            let layer = layers.entry(target).or_default();
            let place = match part {
                names::Part::Down => &mut layer.down,
                names::Part::Up => &mut layer.up,
                names::Part::Mid => &mut layer.mid,
                names::Part::Alpha => &mut layer.alpha,
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
