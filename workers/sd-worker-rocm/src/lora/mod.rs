//! Low-rank adaptations: read, and matched to a model's tensors.
//!
//! Names of kohya's, LyCORIS', diffusers' and PEFT's files; the kinds are in [`crate::models::change`].

mod layer;
mod names;
mod scale;
mod shelf;
mod strength;

pub use names::Network;
pub use shelf::{Shelf, Stamp};
pub use strength::Lora;

use crate::models::change::Change;
use crate::weights::Weights;
use candle_core::Device;
use layer::{Layer, Reader};
use names::Target;
use scale::Scales;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// PEFT's files.
const PEFT_WEIGHTS: &str = "adapter_model.safetensors";
const PEFT_CONFIG: &str = "adapter_config.json";

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
    pub change: Change,
}

impl LoraFile {
    /// Opens a file, or the one in a folder as diffusers or PEFT writes it.
    ///
    /// # Errors
    /// [`Error::BadModel`] for other files and for kinds of adaptations that are not implemented, by name.
    pub fn open(path: &Path) -> Result<Self> {
        let path = &*Self::file_of(path);
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
            let is_there = |other: &str| weights.contains(other);
            let (target, part) = names::parse(name, is_there).map_err(bad)?;
            let layer = layers.entry(target).or_default();
            layer.put(part, name.to_string());
        }
        Ok(Self {
            path: path.to_path_buf(),
            weights,
            layers,
            scales,
        })
    }

    /// The file itself, or the one in a folder.
    fn file_of(path: &Path) -> PathBuf {
        file_in(path).unwrap_or_else(|| path.to_path_buf())
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

    /// What is to be added as `lora` asks for to the networks that are wanted, of a model whose networks have these
    /// tensors.
    ///
    /// # Errors
    /// [`Error::BadModel`] if the LoRA changes layers that the model does not have, or in other shapes;
    /// [`Error::Usage`] if `lora` names blocks that the model does not have.
    pub fn deltas(
        &self,
        lora: &Lora,
        networks: &[(Network, Vec<String>)],
        wanted: impl Fn(Network) -> bool,
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
        let denoiser = networks.iter().find(|(n, _)| *n == Network::Denoiser);
        let strengths = lora.strengths(denoiser.map_or(&[], |(_, names)| names))?;
        let reader = Reader {
            weights: &self.weights,
            scales: &self.scales,
            device,
        };
        let mut deltas = Vec::new();
        for (target, layer) in &self.layers {
            let Some(tensors) = index.find(target) else {
                continue;
            };
            let network = index.network(target.network);
            if !wanted(network) {
                continue;
            }
            let shares: usize = tensors.iter().map(|(_, share)| share).sum();
            let mut first = 0;
            for (tensor, share) in tensors {
                let strength = strengths.of(network, &tensor);
                let wrong = |e| bad(format!("layer {target} ({}): {e}", layer.kind()));
                // Without strength there is nothing to read.
                let changes = match strength == 0.0 {
                    true => Vec::new(),
                    false => reader.changes(target, layer, strength).map_err(wrong)?,
                };
                for (of, change) in changes {
                    deltas.push(Delta {
                        network,
                        tensor: index.tensor(network, &tensor, of).map_err(bad)?,
                        change: change.share(first, share, shares).map_err(wrong)?,
                    });
                }
                first += share;
            }
        }
        Ok(deltas)
    }
}
