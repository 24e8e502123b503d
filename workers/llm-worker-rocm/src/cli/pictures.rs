//! Pictures and sounds on the command line.

use crate::chat::{picture_addresses, picture_part, sound_addresses, sound_part};
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

/// The arguments that name pictures, sounds and what encodes them.
#[derive(Debug, Args)]
pub struct PictureArgs {
    /// A picture (PNG, JPEG or WebP) before the message; can be given several times.
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,

    /// A sound (WAV, MP3, FLAC, Ogg and others) before the message; can be given several times.
    #[arg(long, value_name = "FILE")]
    pub audio: Vec<PathBuf>,

    /// The encoders of pictures and sounds of a GGUF model: an mmproj file; the one beside the model if absent.
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
}

impl PictureArgs {
    /// The parts of a message that come before its text.
    pub(super) fn parts(&self) -> Result<Vec<Json>> {
        let pictures = self.image.iter().map(|path| shown(path));
        let sounds = self.audio.iter().map(|path| played(path));
        pictures.chain(sounds).collect()
    }
}

/// A picture in a message: what is on disk now, whatever becomes of the file.
pub(super) fn shown(path: &Path) -> Result<Json> {
    Ok(picture_part(&address(path, "image")?))
}

/// The same of a sound.
pub(super) fn played(path: &Path) -> Result<Json> {
    Ok(sound_part(&address(path, "audio")?))
}

fn address(path: &Path, kind: &str) -> Result<String> {
    let bytes = file::read(path, DecodeLimits::DEFAULT.max_bytes as u64);
    let bytes = bytes.map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?;
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    Ok(format!("data:{kind}/*;base64,{text}"))
}

/// The tokens of a chat, and its pictures and sounds if it has some.
pub(super) fn prompt(
    messages: &[Json],
    rendered: &Rendered,
    processor: std::result::Result<&Processor, &String>,
    tokenizer: &Tokenizer,
    add_bos: bool,
) -> Result<(Vec<u32>, Option<Arc<Media>>)> {
    let pictures = picture_addresses(messages)?;
    let sounds = sound_addresses(messages)?;
    if pictures.is_empty() && sounds.is_empty() {
        let tokens = tokenizer.encode_rendered(rendered, add_bos);
        return Ok((tokens.map_err(|e| Error::Usage(e.to_string()))?, None));
    }
    let processor = processor.map_err(|reason| {
        Error::Usage(format!("this model takes no pictures and sounds: {reason}"))
    })?;
    let sources = Sources::default();
    let pictures = pictures
        .into_iter()
        .map(|address| processor.picture(&sources.load(address)?, &sources.limits));
    let sounds = sounds
        .iter()
        .map(|address| processor.sound(&sources.load(address)?));
    let items = pictures.chain(sounds).collect::<Result<Vec<_>>>()?;
    let (tokens, media) = processor.prompt(rendered, &items, tokenizer, add_bos)?;
    Ok((tokens, Some(Arc::new(media))))
}
