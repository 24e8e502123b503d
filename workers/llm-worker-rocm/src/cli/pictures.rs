//! Pictures, videos and sounds on the command line.

use crate::chat::{
    picture_addresses, picture_part, sound_addresses, sound_part, video_part, video_parts,
};
use crate::engine::media::Media;
use crate::jinja::Rendered;
use crate::media::{PictureOptions, Processor};
use crate::tokenizer::Tokenizer;
use crate::vision::VideoOptions;
use base64::Engine;
use clap::Args;
use serde_json::Value as Json;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::picture::{DecodeLimits, Sources};
use worker::{file, Error, Result};

/// Endings of frames' names.
const FRAMES: [&str; 4] = ["png", "jpg", "jpeg", "webp"];

/// The arguments that name pictures, videos, sounds and what encodes them.
#[derive(Debug, Args)]
pub struct PictureArgs {
    /// A picture (PNG, JPEG or WebP) before the message; can be given several times.
    #[arg(long, value_name = "FILE")]
    pub image: Vec<PathBuf>,

    /// A video before the message: an animated GIF, WebP or PNG, or a folder of its frames (PNG, JPEG, WebP) in the order
    /// of their names; can be given several times.
    #[arg(long, value_name = "FILE|FOLDER")]
    pub video: Vec<PathBuf>,

    /// A sound (WAV, MP3, FLAC, Ogg and others) before the message; can be given several times.
    #[arg(long, value_name = "FILE")]
    pub audio: Vec<PathBuf>,

    /// The encoders of pictures and sounds of a GGUF model: an mmproj file; the one beside the model if absent.
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,

    #[command(flatten)]
    pub seeing: SeeingArgs,
}

/// The arguments that say how pictures and videos are taken.
#[derive(Debug, Clone, Copy, Args)]
pub struct SeeingArgs {
    /// Frames of a second of video: those that a list of frames has, or those that are taken of an animation; the model
    /// family's if absent.
    #[arg(long, value_name = "N", value_parser = fps)]
    pub video_fps: Option<f64>,

    /// Most frames that are taken of a video; the model family's if absent.
    #[arg(long, value_name = "N")]
    pub video_frames: Option<NonZeroUsize>,

    /// Show parts of long pictures besides the whole, as Gemma 3's processor does on request.
    #[arg(long)]
    pub pan_and_scan: bool,
}

impl SeeingArgs {
    /// The same as options.
    pub(super) fn options(&self) -> PictureOptions {
        PictureOptions {
            pan_and_scan: self.pan_and_scan,
            videos: VideoOptions {
                fps: self.video_fps,
                frames: self.video_frames.map(NonZeroUsize::get),
            },
        }
    }
}

fn fps(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(fps) if fps > 0.0 && fps <= 1000.0 => Ok(fps),
        _ => Err("a number above 0 is needed".to_string()),
    }
}

/// The addresses of a video in a message: that of a file, or those of the frames in a folder.
fn video(path: &Path) -> Result<Vec<String>> {
    if !path.is_dir() {
        return Ok(vec![address(path, "image")?]);
    }
    let io = |source| Error::Io {
        path: path.to_path_buf(),
        source,
    };
    let mut frames = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let frame = entry.map_err(io)?.path();
        let ending = frame
            .extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default();
        if FRAMES.contains(&ending.to_ascii_lowercase().as_str()) {
            frames.push(frame);
        }
    }
    if frames.is_empty() {
        let path = path.display();
        return Err(Error::Usage(format!(
            "{path} has no frames (PNG, JPEG, WebP)"
        )));
    }
    frames.sort();
    frames.iter().map(|frame| address(frame, "image")).collect()
}

impl PictureArgs {
    /// The parts of a message that come before its text.
    pub(super) fn parts(&self) -> Result<Vec<Json>> {
        let pictures = self.image.iter().map(|path| shown(path));
        let videos = self.video.iter().map(|path| watched(path));
        let sounds = self.audio.iter().map(|path| played(path));
        pictures.chain(videos).chain(sounds).collect()
    }
}

/// A picture in a message: what is on disk now, whatever becomes of the file.
pub(super) fn shown(path: &Path) -> Result<Json> {
    Ok(picture_part(&address(path, "image")?))
}

/// The same of a video.
pub(super) fn watched(path: &Path) -> Result<Json> {
    Ok(video_part(&video(path)?))
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
    let videos = video_parts(messages)?;
    let sounds = sound_addresses(messages)?;
    if pictures.is_empty() && videos.is_empty() && sounds.is_empty() {
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
    let videos = videos
        .iter()
        .map(|video| processor.video(video, &sources, usize::MAX));
    let sounds = sounds
        .iter()
        .map(|address| processor.sound(&sources.load(address)?));
    let items = pictures.chain(videos).chain(sounds);
    let items = items.collect::<Result<Vec<_>>>()?;
    let (tokens, media) = processor.prompt(rendered, &items, tokenizer, add_bos)?;
    Ok((tokens, Some(Arc::new(media))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_video_of_its_frames_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let empty = video(folder.path()).unwrap_err().to_string();
        assert!(empty.contains("no frames"), "{empty}");
        for (name, content) in [
            ("b.PNG", "2"),
            ("a.jpg", "1"),
            ("c.webp", "3"),
            ("a.txt", "0"),
        ] {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let addresses = video(folder.path()).unwrap();
        let expected =
            ["MQ==", "Mg==", "Mw=="].map(|base64| format!("data:image/*;base64,{base64}"));
        assert_eq!(addresses, expected);
        let one = video(&folder.path().join("a.txt")).unwrap();
        assert_eq!(one, ["data:image/*;base64,MA=="]);
        assert!(fps("0").is_err() && fps("2.5").is_ok());
    }
}
