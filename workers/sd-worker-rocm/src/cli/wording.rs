//! How prompts and noise come about: the arguments for styles, wildcards, regions and variations.

use super::png_info::read_picture;
use crate::image_io::{self, DecodeLimits};
use crate::prompt::styles::Styles;
use crate::prompt::wildcards::Wildcards;
use crate::request::{Drawn, Library, NoiseChange, RegionPrompt, Wording};
use clap::builder::BoolishValueParser;
use clap::Args;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// Files that prompts can speak of.
#[derive(Debug, Clone, Args)]
pub struct LibraryArgs {
    /// Styles: a CSV file with the columns name, prompt and negative_prompt, as web UIs have it.
    #[arg(long, value_name = "FILE")]
    styles_file: Option<PathBuf>,

    /// Wildcards: a folder of text files, of which __NAME__ in a prompt that is drawn takes a line.
    #[arg(long, value_name = "DIR")]
    wildcards_dir: Option<PathBuf>,
}

impl LibraryArgs {
    /// Opens the files.
    ///
    /// # Errors
    /// [`Error::Usage`] if the styles cannot be read, or the folder is none.
    pub(super) fn library(&self) -> Result<Library> {
        if let Some(folder) = self
            .wildcards_dir
            .as_ref()
            .filter(|folder| !folder.is_dir())
        {
            let folder = folder.display();
            return Err(Error::Usage(format!(
                "--wildcards-dir {folder} is not a folder"
            )));
        }
        let styles = self.styles_file.as_deref().map(Styles::open).transpose()?;
        Ok(Library {
            styles: styles.unwrap_or_default(),
            wildcards: Wildcards::new(self.wildcards_dir.clone()),
        })
    }
}

/// Settings of prompts and noise.
#[derive(Debug, Clone, Args)]
pub struct WordingArgs {
    #[command(flatten)]
    library: LibraryArgs,

    /// A style of --styles-file; may be given several times.
    #[arg(long, value_name = "NAME")]
    style: Vec<String>,

    /// Draw {a|b} and __NAME__ in prompts: no, random (once for each picture, by its seed) or all (a picture for each
    /// combination).
    #[arg(long, default_value = "no", value_parser = Drawn::from_name, value_name = "HOW")]
    draw: Drawn,

    /// Take [a:b:10], [a|b] and AND in prompts as attention weights and text.
    #[arg(long, value_parser = BoolishValueParser::new())]
    unscheduled: bool,

    /// A part of the picture with a prompt of its own: shares of the picture, LEFT,TOP,WIDTH,HEIGHT[,STRENGTH]:PROMPT,
    /// or @FILE[,STRENGTH]:PROMPT with a mask; may be given several times.
    #[arg(long, value_name = "WHERE:PROMPT")]
    region: Vec<String>,

    /// Seed of a noise to which --variation goes; random if absent.
    #[arg(long, value_name = "N")]
    variation_seed: Option<u64>,

    /// How far the noise goes from that of --seed to that of --variation-seed, 0 to 1; the pictures of a batch are
    /// variations of one.
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    variation: f64,

    /// Take the middle of the noise from a picture of this size.
    #[arg(long, value_parser = size, value_name = "WIDTHxHEIGHT")]
    seed_size: Option<(usize, usize)>,

    /// Added to seeds for the noise that samplers draw on the way.
    #[arg(long, visible_alias = "ensd", default_value_t = 0, value_name = "N")]
    step_seed_delta: u64,

    /// Factor of the noise that a picture to start from is covered with.
    #[arg(long, value_name = "X")]
    noise_multiplier: Option<f64>,
}

fn size(text: &str) -> std::result::Result<(usize, usize), String> {
    let sides = text.split_once('x').and_then(|(width, height)| {
        Some((width.trim().parse().ok()?, height.trim().parse().ok()?))
    });
    sides.ok_or_else(|| format!("{text:?} is not a size; write it as 512x768"))
}

impl WordingArgs {
    /// The files.
    ///
    /// # Errors
    /// Those of [`LibraryArgs::library`].
    pub(super) fn library(&self) -> Result<Library> {
        self.library.library()
    }

    /// What is said of prompts.
    ///
    /// # Errors
    /// [`Error::Usage`] for regions that cannot be read.
    pub(super) fn wording(&self) -> Result<Wording> {
        Ok(Wording {
            styles: self.style.clone(),
            drawn: self.draw,
            scheduled: Some(!self.unscheduled),
            regions: self
                .region
                .iter()
                .map(|text| region(text))
                .collect::<Result<_>>()?,
            without_loras: false,
        })
    }

    /// What is said of noise.
    pub(super) fn noise(&self) -> NoiseChange {
        NoiseChange {
            variation_seed: self.variation_seed,
            variation: self.variation,
            from_size: self.seed_size,
            step_seed_delta: self.step_seed_delta,
            multiplier: self.noise_multiplier,
        }
    }
}

fn region(text: &str) -> Result<RegionPrompt> {
    let wrong = || {
        Error::Usage(format!(
            "--region {text:?}; it is LEFT,TOP,WIDTH,HEIGHT[,STRENGTH]:PROMPT or @FILE[,STRENGTH]:PROMPT"
        ))
    };
    let (place, prompt) = text.split_once(':').ok_or_else(wrong)?;
    let prompt = prompt.to_string();
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
    if let Some(mask) = place.strip_prefix('@') {
        let (file, strength) = match mask.rsplit_once(',') {
            Some((file, strength)) => (file, number(strength).ok_or_else(wrong)?),
            None => (mask, 1.0),
        };
        let picture = image_io::decode(&read_picture(Path::new(file))?, &DecodeLimits::default())
            .map_err(|e| Error::Usage(format!("{file}: {e}")))?;
        return Ok(RegionPrompt {
            prompt,
            mask: Some(image_io::to_mask(&picture)),
            strength,
            ..RegionPrompt::default()
        });
    }
    text.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_read() {
        let read = region("0,0.5,1,0.5,2:a: b").unwrap();
        assert_eq!((read.top, read.height, read.strength), (0.5, 0.5, 2.0));
        assert_eq!(read.prompt, "a: b");
        assert_eq!(region("0,0,1,1:x").unwrap().strength, 1.0);
        for wrong in [
            "x",
            "0,0,1:x",
            "0,0,1,nan:x",
            "@/none.png:x",
            "@/none.png,much:x",
        ] {
            assert!(region(wrong).is_err(), "{wrong}");
        }
        assert_eq!(size("512x768"), Ok((512, 768)));
        assert!(size("512").is_err());
    }
}
