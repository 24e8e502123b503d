//! A model file opened, checked and loaded.

use crate::chat::ChatTemplate;
use crate::engine::api::Failure;
use crate::engine::decoder::{Decoder, DecoderConfig};
use crate::engine::forward::Forward;
use crate::hf::HfFolder;
use crate::tokenizer::Tokenizer;
use candle_core::Device;
use std::path::Path;
use std::sync::Arc;
use worker::gguf::{MappedGguf, Weights};
use worker::progress::byte_bar;
use worker::{Error, Result};

/// A model file that passed its checks: everything but the weights.
pub struct ModelFile {
    file: Box<dyn Weights>,
    config: DecoderConfig,
    tokenizer: Tokenizer,
    template: Option<String>,
}

/// How to load.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Longest sequence that will come, in tokens; `None` is the model's own. Some models have weights for short sequences and for long ones.
    pub context: Option<usize>,
}

/// A model on its device, ready for [`crate::engine::Engine::start`].
pub struct LoadedModel {
    /// The file's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The forward pass.
    pub forward: Box<dyn Forward>,
    /// Tokens that end an answer.
    pub end_tokens: Vec<u32>,
}

impl ModelFile {
    /// Opens a GGUF file, or a folder with `config.json`, `tokenizer.json` and safetensors files, and checks it: format, architecture, tokenizer. Takes no device and little memory.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_weights(path)?;
        let gguf = file.header();
        let config = DecoderConfig::from_gguf(gguf).map_err(|e| bad_model(path, e))?;
        config.check_tensors(gguf).map_err(|e| bad_model(path, e))?;
        let tokenizer = Tokenizer::open(path, gguf).map_err(|e| bad_model(path, e))?;
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

    /// The text of the file's chat template.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Size of the model in bytes, as loading counts them.
    pub fn file_bytes(&self) -> u64 {
        self.file.header().file_bytes
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
    pub fn load(self, device: &Device, options: &LoadOptions) -> Result<LoadedModel> {
        let bar = byte_bar("loading", self.file.header().file_bytes);
        let loaded = self.load_with(device, options, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        Ok(loaded)
    }

    /// Loads the weights onto a device; `progress` is called with the bytes of each tensor.
    ///
    /// # Errors
    /// [`Error::Candle`] if the device has no room.
    pub fn load_with(
        self,
        device: &Device,
        options: &LoadOptions,
        progress: &dyn Fn(u64),
    ) -> Result<LoadedModel> {
        let context = options.context.unwrap_or(self.config.context_length);
        let decoder = Decoder::load(self.config, &*self.file, device, context, progress)?;
        let vocab = decoder.vocab_size() as u32;
        let tokenizer = self.tokenizer;
        Ok(LoadedModel {
            end_tokens: (0..vocab)
                .filter(|token| tokenizer.is_end(*token))
                .collect(),
            tokenizer: Arc::new(tokenizer),
            forward: Box::new(decoder),
        })
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(_) | Failure::TooLong { .. } => Self::Usage(failure.to_string()),
            Failure::DeviceLost(reason) => Self::DeviceLost(reason),
            failure => Self::Runtime(failure.to_string()),
        }
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
