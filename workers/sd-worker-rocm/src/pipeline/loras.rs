//! The LoRAs of a request, merged into the networks and undone.

use super::Pipeline;
use crate::lora::{Lora, LoraFile, Network};
use worker::fault::of_file;
use worker::Result;

impl Pipeline {
    /// Merges the LoRAs of a request and undoes those of the one before.
    pub(super) fn set_loras(&mut self, wanted: &[Lora]) -> Result<()> {
        if self.loras == wanted {
            return Ok(());
        }
        let files = wanted
            .iter()
            .map(|lora| {
                let path = LoraFile::find(&lora.name, &self.options.lora_dirs)?;
                Ok((LoraFile::open(&path)?, lora.strength))
            })
            .collect::<Result<Vec<_>>>()?;
        self.text.forget();
        self.restore()?;
        let merged = self.merge(&files);
        match merged {
            Ok(()) => self.loras = wanted.to_vec(),
            // Half of a LoRA is worse than none.
            Err(_) => self.restore()?,
        }
        merged
    }

    fn restore(&mut self) -> Result<()> {
        self.loras.clear();
        self.denoiser.restore()?;
        if let Some(second) = &mut self.second {
            second.restore()?;
        }
        for tower in &mut self.text.towers {
            tower.module.restore()?;
        }
        Ok(())
    }

    fn merge(&mut self, files: &[(LoraFile, f64)]) -> Result<()> {
        if files.is_empty() {
            return Ok(());
        }
        let mut networks = vec![(Network::Denoiser, self.denoiser.names())];
        for (i, tower) in self.text.towers.iter().enumerate() {
            let names = tower.module.names().map(String::from).collect();
            networks.push((Network::Text(i), names));
        }
        for (file, strength) in files {
            for delta in file.deltas(*strength, &networks, &self.place.denoiser)? {
                let added = match delta.network {
                    Network::Denoiser => {
                        let second = self.second.as_mut();
                        let mut denoisers = std::iter::once(&mut self.denoiser).chain(second);
                        denoisers
                            .try_for_each(|denoiser| denoiser.add(&delta.tensor, &delta.change))
                    }
                    Network::Text(i) => {
                        self.text.towers[i].module.add(&delta.tensor, &delta.change)
                    }
                };
                added.map_err(of_file("merging a LoRA", file.path()))?;
            }
        }
        Ok(())
    }
}
