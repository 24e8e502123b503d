//! A model file opened, checked and loaded.

use crate::chat::ChatTemplate;
use crate::engine::{Engine, LlamaConfig, LlamaEngine};
use crate::hf::HfFolder;
use crate::tokenizer::Tokenizer;
use candle_core::Device;
use std::path::Path;
use worker::gguf::{MappedGguf, Weights};
use worker::progress::byte_bar;
use worker::{Error, Result};

/// A model file that passed its checks: everything but the weights.
pub struct ModelFile {
    file: Box<dyn Weights>,
    config: LlamaConfig,
    tokenizer: Tokenizer,
    template: Option<String>,
}

/// A model ready to run.
pub struct Model {
    /// The forward pass.
    pub engine: Box<dyn Engine>,
    /// The file's tokenizer.
    pub tokenizer: Tokenizer,
}

impl ModelFile {
    /// Opens a GGUF file, or a folder with `config.json`, `tokenizer.json` and safetensors files, and checks it: format, architecture, tokenizer. Takes no device and little memory.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_weights(path)?;
        let gguf = file.header();
        let config = LlamaConfig::from_gguf(gguf).map_err(|e| bad_model(path, e))?;
        let tokenizer = Tokenizer::from_gguf(gguf).map_err(|e| bad_model(path, e))?;
        let template = gguf
            .get_str("tokenizer.chat_template")
            .map_err(|e| bad_model(path, e))?
            .map(str::to_string);
        Ok(Self {
            file,
            config,
            tokenizer,
            template,
        })
    }

    /// The file's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Longest sequence in tokens.
    pub fn context_length(&self) -> usize {
        self.config.context_length
    }

    /// The file's chat template.
    ///
    /// # Errors
    /// [`Error::Usage`] if the file has none or it does not compile.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let source = self.template.as_deref().ok_or_else(|| {
            Error::Usage(format!(
                "{} has no chat template; give the whole prompt as PROMPT instead of --chat",
                self.file.path().display()
            ))
        })?;
        ChatTemplate::new(source, self.tokenizer.bos_text(), self.tokenizer.eos_text())
    }

    /// Loads the weights onto a device, with a progress bar on a terminal.
    ///
    /// # Errors
    /// [`Error::Candle`] if the device has no room.
    pub fn load(self, device: &Device) -> Result<Model> {
        let bar = byte_bar("loading", self.file.header().file_bytes);
        let engine = LlamaEngine::load(self.config, &*self.file, device, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        Ok(Model {
            engine: Box::new(engine),
            tokenizer: self.tokenizer,
        })
    }
}

/// A model in any format, checked but for what its architecture asks.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
pub fn open_weights(path: &Path) -> Result<Box<dyn Weights>> {
    if path.is_dir() {
        Ok(Box::new(HfFolder::open(path)?))
    } else {
        Ok(Box::new(MappedGguf::open(path)?))
    }
}

fn bad_model(path: &Path, reason: impl ToString) -> Error {
    Error::BadModel {
        path: path.to_path_buf(),
        reason: reason.to_string(),
    }
}
