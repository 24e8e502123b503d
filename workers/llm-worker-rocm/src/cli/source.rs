//! Where a command takes its model and its text from.

use clap::Args;
use std::path::{Path, PathBuf};
use worker::hub::{HubArgs, ModelSource};
use worker::{file, Error, Result};

/// Longest text that is read; no context holds more.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// The arguments that name a model.
#[derive(Debug, Args)]
pub struct SourceArgs {
    /// Model: a .gguf file, a folder with safetensors, config.json and tokenizer.json, or a Hugging Face id
    /// OWNER/NAME[:FILE-OR-QUANT], for example ORG/NAME-GGUF:Q4_K_M.
    #[arg(long, short, value_name = "PATH|REPO[:FILE-OR-QUANT]")]
    model: String,

    #[command(flatten)]
    hub: HubArgs,
}

/// The models that a server is named one by one.
#[derive(Debug, Args)]
pub struct ServedArgs {
    /// Model: a .gguf file, a folder with safetensors, config.json and tokenizer.json, or a Hugging Face id
    /// OWNER/NAME[:FILE-OR-QUANT], for example ORG/NAME-GGUF:Q4_K_M. Given several times, each is loaded when it is
    /// first asked for.
    #[arg(
        long = "model",
        short,
        value_name = "PATH|REPO[:FILE-OR-QUANT]",
        required_unless_present_any = ["folders", "models_config", "models_cache"]
    )]
    pub(super) models: Vec<String>,

    #[command(flatten)]
    pub(super) hub: HubArgs,
}

impl ServedArgs {
    /// The one model that this process serves.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is none.
    pub(super) fn one(&self) -> Result<SourceArgs> {
        let model = self.models.first();
        let model = model.ok_or_else(|| Error::Usage("give a model: --model".to_string()))?;
        Ok(SourceArgs {
            model: model.clone(),
            hub: self.hub.clone(),
        })
    }
}

impl SourceArgs {
    /// Whether it names none, where a command can do without.
    pub(super) fn is_unnamed(&self) -> bool {
        self.model.is_empty()
    }

    /// The file on disk, downloaded if need be.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] for a malformed name, [`worker::Error::Hub`] if the hub cannot give it.
    pub fn resolve(&self) -> Result<PathBuf> {
        self.resolve_other(&self.model)
    }

    /// The same for another model, of the same revision.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_other(&self, model: &str) -> Result<PathBuf> {
        self.hub.options().resolve(&ModelSource::parse(model)?)
    }

    /// What to call the model: the name of its file or folder, or of its repository.
    pub fn name(&self) -> String {
        let path = Path::new(&self.model);
        let name = match (path.is_dir(), path.exists()) {
            (true, _) => path.file_name(),
            (false, true) => path.file_stem(),
            (false, false) => None,
        };
        name.map_or_else(
            || self.model.clone(),
            |name| name.to_string_lossy().into_owned(),
        )
    }
}

/// A text file, a pipe such as `<(command)` of a shell, or standard input for `-`.
///
/// # Errors
/// [`Error::Usage`] if it cannot be read, is not UTF-8 or too long.
pub(super) fn read_text(path: &Path) -> Result<String> {
    file::read_stream(path, MAX_TEXT_BYTES).map_err(|e| match path == Path::new("-") {
        true => Error::Usage(format!("standard input: {e}")),
        false => Error::Usage(format!("{}: {e}", path.display())),
    })
}
