//! Values of options that are more than a number or a name.

use crate::lora::Lora;
use std::path::PathBuf;

pub(super) fn parse_size(text: &str) -> std::result::Result<(usize, usize), String> {
    parse_pair(text, 'x').ok_or_else(|| format!("{text:?} is not a size such as 1024x768"))
}

pub(super) fn parse_crop(text: &str) -> std::result::Result<(usize, usize), String> {
    parse_pair(text, ',').ok_or_else(|| format!("{text:?} is not LEFT,TOP in pixels"))
}

fn parse_pair(text: &str, between: char) -> Option<(usize, usize)> {
    let (first, second) = text.split_once(between)?;
    Some((first.trim().parse().ok()?, second.trim().parse().ok()?))
}

/// A frame's number and its picture.
pub(super) fn parse_key_frame(text: &str) -> std::result::Result<(usize, PathBuf), String> {
    let parts = text.split_once('=').map(|(at, path)| (at.parse(), path));
    match parts {
        Some((Ok(at), path)) if !path.is_empty() => Ok((at, PathBuf::from(path))),
        _ => Err(format!("{text:?} is not NUMBER=FILE, such as 24=door.png")),
    }
}

/// A LoRA of `--lora`, whose numbers of steps count only when the request is known.
pub(super) fn parse_lora(text: &str) -> std::result::Result<LoraArg, String> {
    let (name, settings) = match text.split_once('=') {
        Some((name, settings)) => (name, settings),
        None => (text, ""),
    };
    if name.is_empty() {
        return Err(format!("{text:?} has no name of a LoRA"));
    }
    let arg = LoraArg {
        name: name.to_string(),
        settings: settings.to_string(),
    };
    arg.lora(1).map(|_| arg)
}

/// A LoRA's name and what stands behind it.
#[derive(Debug, Clone)]
pub(super) struct LoraArg {
    name: String,
    settings: String,
}

impl LoraArg {
    pub fn lora(&self, steps: usize) -> std::result::Result<Lora, String> {
        let parts = self.settings.split(':').filter(|part| !part.is_empty());
        Lora::read(&self.name, &parts.collect::<Vec<_>>(), steps)
    }
}
