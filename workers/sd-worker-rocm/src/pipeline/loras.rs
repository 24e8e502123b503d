//! The LoRAs of a request, merged into the networks and undone.

use super::denoiser::{Aim, Part};
use super::Pipeline;
use crate::lora::{Delta, Lora, LoraFile, Network, Stamp};
use crate::models::change::Change;
use crate::request::ImageRequest;
use std::path::Path;
use std::sync::Arc;
use worker::fault::of_file;
use worker::Result;

/// What is merged at the moment. The text encoders, which run once, have all LoRAs of a request; the denoiser has those
/// that act in the present step.
#[derive(Default)]
pub(super) struct Merged {
    text: Vec<Lora>,
    denoiser: Vec<Lora>,
    /// Of the request's files, as they were then.
    stamps: Vec<Stamp>,
}

impl Merged {
    /// Whether all networks are as in their files.
    #[cfg(all(test, feature = "built-in-model"))]
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.denoiser.is_empty()
    }
}

/// Some of a model's networks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Networks {
    Text,
    Denoiser,
}

impl Networks {
    fn have(self, network: Network) -> bool {
        (network == Network::Denoiser) == (self == Self::Denoiser)
    }
}

/// The LoRAs that act in a part of the run.
pub(super) fn active(loras: &[Lora], part: Part) -> Vec<Lora> {
    let acts = |lora: &&Lora| part.lies_within((lora.start, lora.end));
    loras.iter().filter(acts).cloned().collect()
}

impl Pipeline {
    /// Merges the LoRAs of a request, as they are at the beginning of its steps, and undoes those of the one before.
    pub(super) fn set_loras(&mut self, request: &ImageRequest) -> Result<()> {
        let first = Part {
            step: 0,
            steps: request.steps,
        };
        let wanted = &request.loras;
        let stamps = wanted.iter().map(|lora| {
            let path = LoraFile::find(&lora.name, &self.options.lora_dirs)?;
            Stamp::of(&path)
        });
        let stamps = stamps.collect::<Result<Vec<_>>>()?;
        // A file that was written anew is another LoRA under the same name.
        let anew = self.merged.stamps != stamps;
        if anew {
            self.restore(Networks::Denoiser)?;
        }
        if anew || self.merged.text != *wanted {
            self.text.forget();
            self.merge(Networks::Text, wanted)?;
        }
        self.merged.stamps = stamps;
        let set = self.set_denoiser_loras(&active(wanted, first));
        if set.is_err() {
            self.text.forget();
            self.restore(Networks::Text)?;
        }
        set.map(|_| ())
    }

    /// Merges LoRAs into the denoiser and undoes those before; whether anything has changed.
    pub(super) fn set_denoiser_loras(&mut self, wanted: &[Lora]) -> Result<bool> {
        let changes = self.merged.denoiser != wanted;
        if changes {
            self.merge(Networks::Denoiser, wanted)?;
        }
        Ok(changes)
    }

    fn merge(&mut self, networks: Networks, wanted: &[Lora]) -> Result<()> {
        let files = wanted
            .iter()
            .map(|lora| {
                let path = LoraFile::find(&lora.name, &self.options.lora_dirs)?;
                Ok((self.lora_files.open(&path)?, lora))
            })
            .collect::<Result<Vec<_>>>()?;
        self.restore(networks)?;
        let merged = self.merge_files(networks, &files);
        match merged {
            Ok(()) => *self.merged(networks) = wanted.to_vec(),
            // Half of a LoRA is worse than none.
            Err(_) => self.restore(networks)?,
        }
        merged
    }

    fn merged(&mut self, networks: Networks) -> &mut Vec<Lora> {
        match networks {
            Networks::Text => &mut self.merged.text,
            Networks::Denoiser => &mut self.merged.denoiser,
        }
    }

    fn restore(&mut self, networks: Networks) -> Result<()> {
        self.merged(networks).clear();
        match networks {
            Networks::Denoiser => {
                self.denoiser.restore()?;
                if let Some(second) = &mut self.second {
                    second.restore()?;
                }
            }
            Networks::Text => self.text.restore()?,
        }
        Ok(())
    }

    fn merge_files(&mut self, networks: Networks, files: &[(Arc<LoraFile>, &Lora)]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut names = self.text.names();
        names.push((Network::Denoiser, self.denoiser.names()));
        for (file, lora) in files {
            let aim = aim_of(file.path());
            self.denoiser.aim(aim);
            if let Some(second) = &mut self.second {
                second.aim(aim);
            }
            let wanted = |network| networks.have(network);
            for delta in file.deltas(lora, &names, wanted, &self.place.denoiser)? {
                let Delta {
                    network,
                    tensor,
                    change,
                } = delta;
                self.add(network, &tensor, &change)
                    .map_err(of_file("merging a LoRA", file.path()))?;
            }
        }
        Ok(())
    }

    fn add(&mut self, network: Network, tensor: &str, change: &Change) -> candle_core::Result<()> {
        if network != Network::Denoiser {
            return self.text.add(network, tensor, change);
        }
        let second = self.second.as_mut();
        let mut denoisers = std::iter::once(&mut self.denoiser).chain(second);
        denoisers.try_for_each(|denoiser| denoiser.add(tensor, change))
    }
}

/// The networks that a LoRA is for, where early and late steps have one each: files of such pairs say it in their
/// names, by `high` or `low` in front of `noise` or at the end. Others are for both.
fn aim_of(path: &Path) -> Aim {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = name.to_lowercase();
    let words = name.split(|c: char| !c.is_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let says = |what: &str| {
        words.iter().enumerate().any(|(i, word)| {
            let next = words.get(i + 1);
            *word == format!("{what}noise") || *word == what && next.is_none_or(|n| *n == "noise")
        })
    };
    match (says("high"), says("low")) {
        (true, false) => Aim::Early,
        (false, true) => Aim::Late,
        _ => Aim::Both,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_loras_say_what_they_are_for() {
        for (name, aim) in [
            ("wan2.2_lightx2v_4steps_high_noise.safetensors", Aim::Early),
            ("Wan22-Style-LowNoise-v2.safetensors", Aim::Late),
            ("style_LOW.safetensors", Aim::Late),
            ("low_poly.safetensors", Aim::Both),
            ("highlander.safetensors", Aim::Both),
            ("high_noise_and_low_noise.safetensors", Aim::Both),
        ] {
            assert_eq!(aim_of(Path::new(name)), aim, "{name}");
        }
    }
}
