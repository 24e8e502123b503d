//! From files to a pipeline.

mod distilled;
mod packed;
mod parts;
mod purpose;
mod transformer;
mod unet;

#[cfg(feature = "built-in-model")]
use super::builtin;
use super::types::PipelineOptions;
use super::Pipeline;
use crate::weights::folder::Folder;
use crate::weights::packed::Packed;
use crate::weights::{ldm, Weights};
use candle_core::Device;
use std::path::Path;
use unet::UNetModel;
use worker::{Error, Result};

impl Pipeline {
    /// Loads a model: a folder as diffusers writes it, or a single file. `progress` is told what is being read.
    ///
    /// # Errors
    /// [`Error::BadModel`] if the model is damaged, incomplete or of a kind that is not implemented, which is named;
    /// the device's errors.
    pub fn load(
        path: &Path,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        Self::load_as(name, path, device, options, progress)
    }

    /// The same under a name of its own.
    ///
    /// # Errors
    /// Those of [`Pipeline::load`].
    pub fn load_as(
        name: String,
        path: &Path,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        if path.is_dir() {
            let folder = Folder::Disk(path.to_path_buf());
            return Self::from_folder(&folder, name, device, options, progress);
        }
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        progress("checkpoint");
        let weights = Weights::open(path)?;
        if let Some(packed) = Packed::take_apart(&weights) {
            return match packed.is_model() {
                true => Self::from_packed(packed, path, name, device, options, progress),
                false => Err(bad(format!(
                    "this file has a transformer of {} without the rest of the model; give the model's folder or id with --model and this file with --transformer",
                    packed.kind.label()
                ))),
            };
        }
        if !ldm::is_checkpoint(&weights) {
            return Err(bad(
                "this file is not a checkpoint of a kind that is implemented (Stable Diffusion 1, 2, XL and 3, FLUX.1 and Z-Image as single files)"
                    .to_string(),
            ));
        }
        let checkpoint = ldm::take_apart(&weights).map_err(bad)?;
        let model = UNetModel::of_checkpoint(checkpoint, name, path)?;
        Self::from_unet_model(model, device, options, progress)
    }

    /// The model that the program carries.
    ///
    /// # Errors
    /// The device's; [`Error::Usage`] in a program without the feature `built-in-model`.
    pub fn builtin(device: &Device, options: PipelineOptions) -> Result<Self> {
        #[cfg(feature = "built-in-model")]
        {
            let name = builtin::NAME.to_string();
            Self::from_folder(&builtin::FOLDER, name, device, options, &mut |_| {})
        }
        #[cfg(not(feature = "built-in-model"))]
        {
            let _ = (device, options);
            Err(Error::Usage(
                "this program was built without its small model; give a model with --model"
                    .to_string(),
            ))
        }
    }

    fn from_folder(
        folder: &Folder,
        name: String,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        if !folder.contains("model_index.json") {
            return Err(Error::BadModel {
                path: folder.path("model_index.json"),
                reason: "there is no such file; a model's folder has it, with a folder for each part beside it".to_string(),
            });
        }
        match folder.part("unet").exists() {
            true => {
                let model = UNetModel::of_folder(folder, name, progress)?;
                Self::from_unet_model(model, device, options, progress)
            }
            false => Self::from_transformer(folder, name, device, options, progress),
        }
    }
}
