//! Pictures on the command line.

use crate::chat::picture_addresses;
use crate::engine::media::Media;
use crate::jinja::Rendered;
use crate::media::Processor;
use crate::tokenizer::Tokenizer;
use base64::Engine;
use clap::Args;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::picture::{DecodeLimits, Sources};
use worker::{file, Error, Result};

/// The arguments that name pictures and what encodes them.
#[derive(Debug, Args)]
pub struct PictureArgs {
    /// A picture (PNG, JPEG or WebP) before the message; can be given several times.
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,

    /// The encoder of pictures of a GGUF model: an mmproj file; the one beside the model if absent.
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
}

/// A picture's address in a message: what is on disk now, whatever becomes of the file.
pub(super) fn address(path: &Path) -> Result<String> {
    let bytes = file::read(path, DecodeLimits::DEFAULT.max_bytes as u64);
    let bytes = bytes.map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?;
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    Ok(format!("data:image/*;base64,{text}"))
}

/// The tokens of a chat, and its pictures if it has some.
pub(super) fn prompt(
    messages: &[Json],
    rendered: &Rendered,
    processor: std::result::Result<&Processor, &String>,
    tokenizer: &Tokenizer,
    add_bos: bool,
) -> Result<(Vec<u32>, Option<Arc<Media>>)> {
    let addresses = picture_addresses(messages)?;
    if addresses.is_empty() {
        let tokens = tokenizer.encode_rendered(rendered, add_bos);
        return Ok((tokens.map_err(|e| Error::Usage(e.to_string()))?, None));
    }
    let processor = processor
        .map_err(|reason| Error::Usage(format!("this model takes no pictures: {reason}")))?;
    let sources = Sources::default();
    let pictures = addresses
        .into_iter()
        .map(|address| processor.picture(&sources.load(address)?, &sources.limits))
        .collect::<Result<Vec<_>>>()?;
    let (tokens, media) = processor.prompt(rendered, &pictures, tokenizer, add_bos)?;
    Ok((tokens, Some(Arc::new(media))))
}
