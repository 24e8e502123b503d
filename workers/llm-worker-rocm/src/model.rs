//! A model file opened, checked and loaded.

use crate::chat::ChatTemplate;
use crate::engine::{Engine, LlamaConfig, LlamaEngine};
use crate::tokenizer::Tokenizer;
use candle_core::Device;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};
use worker::gguf::Gguf;
use worker::progress::{byte_bar, ProgressReader};
use worker::{Error, Result};

/// Read buffer while loading; tensors are read in pieces of megabytes.
const READ_BUFFER_BYTES: usize = 1 << 20;

/// A model file that passed its checks: everything but the weights.
pub struct ModelFile {
    path: PathBuf,
    file: File,
    bytes: u64,
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
    /// Opens a GGUF file and checks it: format, architecture, tokenizer. Takes no device and little memory.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io {
            path: path.to_path_buf(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(bad_model(path, "it is no regular file"));
        }
        let gguf = Gguf::read(&file).map_err(|e| bad_model(path, e))?;
        let config = LlamaConfig::from_gguf(&gguf).map_err(|e| bad_model(path, e))?;
        let tokenizer = Tokenizer::from_gguf(&gguf).map_err(|e| bad_model(path, e))?;
        let template = gguf
            .get_str("tokenizer.chat_template")
            .map_err(|e| bad_model(path, e))?
            .map(str::to_string);
        Ok(Self {
            path: path.to_path_buf(),
            bytes: gguf.file_bytes,
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
                self.path.display()
            ))
        })?;
        ChatTemplate::new(source, self.tokenizer.bos_text(), self.tokenizer.eos_text())
    }

    /// Loads the weights onto a device, with a progress bar on a terminal.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Candle`] if reading fails or the device has no room.
    pub fn load(mut self, device: &Device) -> Result<Model> {
        self.file.rewind().map_err(|source| Error::Io {
            path: self.path.clone(),
            source,
        })?;
        let bar = byte_bar("loading", self.bytes);
        let reader = ProgressReader::new(self.file, bar);
        let reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
        let engine = LlamaEngine::load(self.config, reader, device)?;
        Ok(Model {
            engine: Box::new(engine),
            tokenizer: self.tokenizer,
        })
    }
}

fn bad_model(path: &Path, reason: impl ToString) -> Error {
    Error::BadModel {
        path: path.to_path_buf(),
        reason: reason.to_string(),
    }
}
