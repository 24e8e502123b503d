//! `sd-worker-rocm png-info`.

use crate::image_io::{self, DecodeLimits};
use crate::parameters::Parameters;
use clap::Args;
use std::path::{Path, PathBuf};
use worker::cli::output::print_line;
use worker::{file, Error, Result};

/// Arguments of `png-info`.
#[derive(Debug, Args)]
pub struct PngInfoArgs {
    /// PNG, JPEG or WebP file.
    file: PathBuf,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl PngInfoArgs {
    pub(super) fn run(self) -> Result<()> {
        let bytes = read_picture(&self.file)?;
        let text = image_io::parameters_of(&bytes)?.ok_or_else(|| {
            Error::Usage(format!(
                "{} does not say what it was made with",
                self.file.display()
            ))
        })?;
        if !self.json {
            return print_line(&text);
        }
        let read = Parameters::parse(&text);
        let settings: serde_json::Map<String, serde_json::Value> = read
            .settings
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect();
        let json = serde_json::json!({
            "prompt": read.prompt,
            "negative_prompt": read.negative_prompt,
            "settings": settings,
            "text": text,
        });
        print_line(&json.to_string())
    }
}

/// A file's bytes, if they are not too many for a picture.
pub(super) fn read_picture(path: &Path) -> Result<Vec<u8>> {
    let limit = DecodeLimits::default().max_bytes as u64;
    file::read(path, limit).map_err(Error::io(path))
}
