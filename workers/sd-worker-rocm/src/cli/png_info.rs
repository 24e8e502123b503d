//! `sd-worker-rocm png-info`.

use crate::image_io::{self, DecodeLimits};
use crate::parameters::Parameters;
use clap::Args;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use worker::cli::output::print_line;
use worker::{Error, Result};

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
pub(super) fn read_picture(path: &PathBuf) -> Result<Vec<u8>> {
    let failed = |source| Error::Io {
        path: path.clone(),
        source,
    };
    let limit = DecodeLimits::default().max_bytes;
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit as u64 + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() > limit {
        return Err(Error::Usage(format!(
            "{} is longer than {limit} bytes",
            path.display()
        )));
    }
    Ok(bytes)
}
