//! A folder of an architecture that runs through candle-transformers, from its checks to the device.

use super::forward::Sequential;
use super::model::{LoadError, Loaded, SequentialModel};
use super::settings::{Settings, MAX_CONTEXT};
use super::weights::Files;
use crate::description::Description;
use crate::folder::weight_files;
use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device};
use safetensors::Dtype;
use serde_json::Value as Json;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use worker::fault::OutOfMemory;
use worker::{file, Error, Result};

/// A checked model that is not loaded yet.
pub struct Source {
    path: PathBuf,
    model: &'static SequentialModel,
    config: Json,
}

impl Source {
    /// The model of a folder with this `config.json`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
    pub fn of_folder(path: &Path, config: Json, model: &'static SequentialModel) -> Result<Self> {
        let settings = Settings::new(config.clone(), None);
        let source = Self {
            path: path.to_path_buf(),
            model,
            config,
        };
        settings.map_err(|reason| source.bad(reason))?;
        weight_files(path)?;
        Ok(source)
    }

    fn bad(&self, reason: String) -> Error {
        Error::BadModel {
            path: self.path.clone(),
            reason,
        }
    }

    /// Longest sequence in tokens that the files speak of.
    pub fn context_length(&self) -> usize {
        let own = [
            "max_position_embeddings",
            "n_positions",
            "attention_window_size",
        ]
        .iter()
        .find_map(|key| self.config[*key].as_u64());
        own.map_or(MAX_CONTEXT, |own| MAX_CONTEXT.min(own as usize))
    }

    /// Size of the files in bytes.
    pub fn file_bytes(&self) -> u64 {
        let files = weight_files(&self.path).unwrap_or_default();
        let sizes = files.iter().filter_map(|file| file.metadata().ok());
        sizes.map(|data| data.len()).sum()
    }

    /// What the model is.
    ///
    /// # Errors
    /// [`Error::BadModel`] if the files are damaged.
    pub fn describe(&self) -> Result<Description> {
        let files = self.map()?;
        let tensors = files.tensors();
        let config = &self.config;
        let named = config["_name_or_path"].as_str().filter(|n| !n.is_empty());
        Ok(Description {
            name: named.unwrap_or("model").to_string(),
            architecture: architecture(config).to_string(),
            bytes: tensors.iter().map(|(_, t)| t.data().len() as u64).sum(),
            parameters: tensors
                .iter()
                .map(|(_, t)| t.shape().iter().product::<usize>() as u64)
                .sum(),
        })
    }

    /// The folder's files.
    fn map(&self) -> Result<MmapedSafetensors> {
        let paths = weight_files(&self.path)?;
        file::check_all(&paths)?;
        // SAFETY: the files are mapped read-only and must not be changed while the model loads; the parser checks every
        // offset.
        let files = unsafe { MmapedSafetensors::multi(&paths) };
        files.map_err(|e| self.bad(format!("damaged: {e}")))
    }

    /// Loads the weights onto a device; `context` is the longest sequence that will come, if that is known.
    ///
    /// # Errors
    /// [`Error::BadModel`] if tensors do not fit the configuration, [`Error::Candle`] if the device has no room.
    pub fn load(&self, device: &Device, context: Option<usize>) -> Result<Sequential> {
        // The model code indexes and divides by what the files say.
        let loaded = catch_unwind(AssertUnwindSafe(|| self.load_folder(device, context)));
        let (loaded, dtype) = loaded.unwrap_or_else(|_| {
            Err(self.bad("the model's code does not take this configuration".to_string()))
        })?;
        Ok(Sequential::new(loaded, dtype, device.clone()))
    }

    fn load_folder(&self, device: &Device, context: Option<usize>) -> Result<(Loaded, DType)> {
        let (model, config) = (self.model, &self.config);
        let settings = Settings::new(config.clone(), context).map_err(|e| self.bad(e))?;
        let files = self.map()?;
        let dtype = match model.halves {
            true => dtype(&files, device),
            false => DType::F32,
        };
        let files = Files::new(files, model.stand_ins);
        let loaded =
            (model.load)(&settings, files.builder(dtype, device)).map_err(|e| match e {
                LoadError::Settings(reason) => self.bad(reason),
                LoadError::Candle(error) => self.diagnose(device, error),
            })?;
        let tied = settings.get("tie_word_embeddings").as_bool();
        match files.left_over(tied.unwrap_or(model.tied)) {
            Some(name) => Err(self.bad(format!(
                "tensor {name} of {} is not implemented",
                architecture(config)
            ))),
            None => Ok((loaded, dtype)),
        }
    }

    /// Whether the files or the device are at fault.
    fn diagnose(&self, device: &Device, error: candle_core::Error) -> Error {
        match device.is_cpu() || !error.is_out_of_memory() {
            true => self.bad(error.to_string()),
            false => Error::candle("loading the model")(error),
        }
    }
}

/// The name of the architecture, which is there: the register has it.
fn architecture(config: &Json) -> &str {
    config["architectures"][0].as_str().unwrap_or_default()
}

/// What activations are in: halves on a GPU if all matrices are, else f32.
fn dtype(files: &MmapedSafetensors, device: &Device) -> DType {
    let tensors = files.tensors();
    let all = |dtype: Dtype| {
        let mut matrices = tensors.iter().filter(|(_, view)| view.shape().len() > 1);
        matrices.all(|(_, view)| view.dtype() == dtype)
    };
    match () {
        () if device.is_cpu() => DType::F32,
        () if all(Dtype::BF16) => DType::BF16,
        () if all(Dtype::F16) => DType::F16,
        () => DType::F32,
    }
}
