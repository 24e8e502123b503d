//! Single files that have a transformer with other parts of its model; what they lack comes from a folder beside.

use super::parts::open_vae;
use super::texts::{Beside, TextSource};
use super::transformer::{open_transformer, TransformerModel};
use crate::pipeline::types::PipelineOptions;
use crate::sampling::NoiseSchedule;
use crate::weights::ldm;
use crate::weights::packed::Packed;
use std::path::Path;
use worker::{Error, Result};

impl TransformerModel {
    /// The parts of a single file, and of what is given beside it.
    pub(super) fn of_packed(
        packed: Packed,
        path: &Path,
        name: String,
        options: &PipelineOptions,
    ) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let mut weights = packed.transformer;
        let mut family = (packed.row.of_tensors)(&weights).map_err(bad)?;
        if let Some(path) = &options.transformer {
            weights = open_transformer(path, &mut *family)?;
        }
        let vae = match &options.vae {
            Some(path) => open_vae(path, family.family())?,
            None => ldm::codec(&packed.vae, family.family()).ok_or_else(|| {
                bad("the file has no complete VAE; give one with --vae".to_string())
            })?,
        };
        vae.0.check().map_err(bad)?;
        let source = TextSource::File(Beside {
            own: packed.encoders,
            file: path,
            folder: options.text_encoders.as_deref(),
        });
        if family.video().is_some_and(|video| video.views) {
            return Err(bad(
                "a model that looks at pictures by CLIP is read from its folder; give that with --model, and this file with --transformer".to_string(),
            ));
        }
        Ok(Self {
            late: None,
            vision: None,
            name,
            text: family.text(&source)?,
            weights,
            vae,
            schedule: NoiseSchedule::from_config(family.scheduler())?,
            family: family.into(),
        })
    }
}
