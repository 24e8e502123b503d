//! From files to a pipeline.

mod distilled;
mod index;
mod packed;
mod parts;
mod purpose;
mod sizes;
mod texts;
mod transformer;
mod unet;

#[cfg(feature = "built-in-model")]
use super::builtin;
use super::families::Row;
use super::place::Placement;
use super::types::PipelineOptions;
use super::vision::VisionModel;
use super::Pipeline;
use crate::weights::folder::Folder;
use crate::weights::packed::Packed;
use crate::weights::{ldm, Weights};
use std::path::Path;
use transformer::TransformerModel;
use unet::UNetModel;
use worker::{Error, Result};

pub use distilled::distilled;
pub use parts::without_projection;
pub use sizes::{PartBytes, PartSizes};
pub use texts::{Decoder, TextModels, TextSource};

/// A model whose files are open, its weights still in them.
enum Opened {
    UNet(Box<UNetModel>),
    Transformer(Box<TransformerModel>),
}

impl Opened {
    fn open(
        name: String,
        path: &Path,
        options: &PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let mut opened = Self::files(name, path, options, progress)?;
        if let Some(path) = &options.refiner {
            opened.refine(path, options)?;
        }
        Ok(match options.expand_fp8 {
            true => opened.expanded(),
            false => opened,
        })
    }

    /// Opens the model that does the last steps.
    fn refine(&mut self, path: &Path, options: &PipelineOptions) -> Result<()> {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        match (self, Self::files(name, path, options, &mut |_| {})?) {
            (Self::UNet(model), Self::UNet(refiner)) => {
                model.refiner = Some(refiner);
                Ok(())
            }
            _ => Err(Error::Usage(
                "--refiner is for models whose denoiser is a UNet, and must be one".to_string(),
            )),
        }
    }

    /// The same model, of which what is in 8-bit floats is loaded as wider numbers.
    fn expanded(mut self) -> Self {
        let expand = |weights: &mut Weights| *weights = std::mem::take(weights).expanded();
        match &mut self {
            Self::UNet(model) => {
                let mut refiner = model.refiner.take();
                let models = [Some(&mut **model), refiner.as_deref_mut()];
                for model in models.into_iter().flatten() {
                    expand(&mut model.unet.1);
                    let towers = model.towers.iter_mut();
                    towers.for_each(|tower| expand(&mut tower.1));
                }
                model.refiner = refiner;
            }
            Self::Transformer(model) => {
                expand(&mut model.weights);
                model.late.iter_mut().for_each(expand);
                model.vision = model.vision.take().map(VisionModel::expanded);
                model.text.expand();
            }
        }
        self
    }

    fn files(
        name: String,
        path: &Path,
        options: &PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        if path.is_dir() {
            let folder = Folder::Disk(path.to_path_buf());
            return Self::folder(&folder, name, options, progress);
        }
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        progress("checkpoint");
        let weights = Weights::open(path)?;
        if let Some(packed) = Packed::take_apart(&weights) {
            return match packed.is_model() {
                true => {
                    let model = TransformerModel::of_packed(packed, path, name, options)?;
                    Ok(Self::Transformer(Box::new(model)))
                }
                false => Err(bad(format!(
                    "this file has a transformer of {} without the rest of the model; give the model's folder or id with --model and this file with --transformer",
                    packed.row.label
                ))),
            };
        }
        if !ldm::is_checkpoint(&weights) {
            return Err(bad(format!(
                "this file is not a checkpoint of a kind that is implemented (Stable Diffusion 1, 2 and XL, {} as single files)",
                Row::labels()
            )));
        }
        let checkpoint = ldm::take_apart(&weights).map_err(bad)?;
        let model = UNetModel::of_checkpoint(checkpoint, name, path)?;
        Ok(Self::UNet(Box::new(model)))
    }

    fn folder(
        folder: &Folder,
        name: String,
        options: &PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        const INDEX: &str = "model_index.json";
        let bad = |reason: String| Error::BadModel {
            path: folder.path(INDEX),
            reason,
        };
        if !folder.contains(INDEX) {
            return Err(bad(
                "there is no such file; a model's folder has it, with a folder for each part beside it".to_string(),
            ));
        }
        index::check(folder.json(INDEX)?).map_err(bad)?;
        Ok(match folder.part("unet").exists() {
            true => Self::UNet(Box::new(UNetModel::of_folder(folder, name, progress)?)),
            false => {
                let model = TransformerModel::of_folder(folder, name, options, progress)?;
                Self::Transformer(Box::new(model))
            }
        })
    }

    fn builtin(options: &PipelineOptions) -> Result<Self> {
        #[cfg(feature = "built-in-model")]
        {
            let name = builtin::NAME.to_string();
            Self::folder(&builtin::FOLDER, name, options, &mut |_| {})
        }
        #[cfg(not(feature = "built-in-model"))]
        {
            let _ = options;
            Err(Error::Usage(
                "this program was built without its small model; give a model with --model"
                    .to_string(),
            ))
        }
    }

    /// Loads the parts onto their devices.
    fn load(
        self,
        place: Placement,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Pipeline> {
        let graphs = options.graphs;
        let mut pipeline = match self {
            Self::UNet(model) => Pipeline::from_unet_model(*model, place, options, progress),
            Self::Transformer(model) => {
                Pipeline::from_transformer_model(*model, place, options, progress)
            }
        }?;
        pipeline.set_graphs(graphs);
        Ok(pipeline)
    }
}

impl Pipeline {
    /// Loads a model, all on one device or its parts on several: a folder as diffusers writes it, or a single file.
    /// `progress` is told what is being read.
    ///
    /// # Errors
    /// [`Error::BadModel`] if the model is damaged, incomplete or of a kind that is not implemented, which is named;
    /// the devices' errors.
    pub fn load(
        path: &Path,
        place: impl Into<Placement>,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        Self::load_as(name, path, place, options, progress)
    }

    /// The same under a name of its own.
    ///
    /// # Errors
    /// Those of [`Pipeline::load`].
    pub fn load_as(
        name: String,
        path: &Path,
        place: impl Into<Placement>,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        Opened::open(name, path, &options, progress)?.load(place.into(), options, progress)
    }

    /// The model that the program carries.
    ///
    /// # Errors
    /// The devices'; [`Error::Usage`] in a program without the feature `built-in-model`.
    pub fn builtin(place: impl Into<Placement>, options: PipelineOptions) -> Result<Self> {
        Opened::builtin(&options)?.load(place.into(), options, &mut |_| {})
    }
}
