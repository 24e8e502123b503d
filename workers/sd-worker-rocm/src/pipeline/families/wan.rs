//! Wan 2.1 and 2.2.

use super::{Evaluation, Inputs, Network, Row, Start, TransformerFamily, VideoTraits};
use crate::info::{Family, Takes};
use crate::models::transformer::wan::{Wan, WanConfig};
use crate::models::VarBuilder;
use crate::pipeline::load::{distilled, TextModels, TextSource};
use crate::pipeline::text::{composed_long, Reading};
use crate::weights::folder::Folder;
use crate::weights::wan as names;
use candle_core::{Result as CandleResult, Tensor};
use serde::Deserialize;
use std::sync::Arc;
use worker::{Error, Result};

/// The family's row.
pub const ROW: Row = Row {
    label: "Wan",
    classes: &["WanTransformer3DModel"],
    marks: &["blocks.0.cross_attn.norm_q", "blocks.0.attn2.norm_q"],
    of_folder,
    of_tensors: |weights| {
        let config = names::config(weights)?;
        // The smallest of 2.2, whose latents are of 16 pixels, is told by its channels.
        let expand = config.in_channels == 48;
        Ok(Box::new(WanFamily::new(config, None, expand)?))
    },
    renamed: names::renamed,
};

/// Tokens that the network reads of a prompt.
const TOKENS: usize = 512;
/// Training steps, of which `boundary_ratio` is a share.
const TRAIN_STEPS: f64 = 1000.0;

/// A model of the family.
#[derive(Debug, Clone)]
struct WanFamily {
    config: WanConfig,
    start: Start,
    /// The time step below which steps are the second network's.
    boundary: Option<f64>,
}

/// What `model_index.json` says beside the parts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Index {
    boundary_ratio: Option<f64>,
    expand_timesteps: bool,
}

impl WanFamily {
    fn new(
        config: WanConfig,
        boundary: Option<f64>,
        expand: bool,
    ) -> std::result::Result<Self, String> {
        config.check()?;
        let more = config.in_channels.checked_sub(config.out_channels);
        let start = match (more, expand) {
            (Some(0), true) => Start::FirstLatent,
            (Some(0), false) => Start::Nothing,
            // A mask of the frames of a latent, and the latents of the given frames.
            (Some(more), false) if more == config.out_channels + 4 => Start::Channels,
            _ => {
                return Err(format!(
                    "in_channels {} with out_channels {} are of no model that is known: video to video, control and inpainting models are not implemented",
                    config.in_channels, config.out_channels
                ))
            }
        };
        if config.image_dim.is_some() && start != Start::Channels {
            return Err("image_dim in a model that does not start from a picture".to_string());
        }
        Ok(Self {
            config,
            start,
            boundary: boundary.map(|share| share * TRAIN_STEPS),
        })
    }
}

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let index: Index = folder.json("model_index.json")?;
    let bad = |reason: String| Error::BadModel {
        path: folder.path("model_index.json"),
        reason,
    };
    let late = folder.part("transformer_2");
    match (index.boundary_ratio, late.exists()) {
        (Some(share), true) if (0.0..=1.0).contains(&share) => {}
        (None, false) => {}
        (ratio, there) => {
            return Err(bad(format!(
                "boundary_ratio is {ratio:?}, and there {} a transformer_2",
                if there { "is" } else { "is not" }
            )))
        }
    }
    let config: WanConfig = part.config()?;
    if late.exists() {
        let other: WanConfig = late.config()?;
        if format!("{other:?}") != format!("{config:?}") {
            return Err(
                late.bad_config("it differs from that of the first transformer".to_string())
            );
        }
    }
    let family = WanFamily::new(config, index.boundary_ratio, index.expand_timesteps);
    Ok(Box::new(family.map_err(|e| part.bad_config(e))?))
}

impl TransformerFamily for WanFamily {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Wan
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let t5 = source.umt5("text_encoder", "tokenizer", TOKENS)?;
        Ok(TextModels {
            towers: Vec::new(),
            long: vec![t5.ok_or_else(|| source.lacks("UMT5", "umt5", "text_encoder"))?],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, name: &str) -> (usize, f64) {
        match (distilled(name), self.boundary) {
            (Some(_), _) => (4, 1.0),
            (None, Some(_)) => (40, 4.0),
            (None, None) => (50, 5.0),
        }
    }

    fn size(&self, factor: usize) -> (usize, usize) {
        match factor {
            16 => (1280, 704),
            _ => (104 * factor, 60 * factor),
        }
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "UniPCMultistepScheduler", "prediction_type": "flow_prediction", "use_flow_sigmas": true,
        "flow_shift": 5.0, "num_train_timesteps": 1000}"#
    }

    fn video(&self) -> Option<VideoTraits> {
        let (first, last) = match self.start {
            Start::Nothing => (Takes::Never, Takes::Never),
            Start::FirstLatent | Start::Latents => (Takes::May, Takes::Never),
            // Where two pictures have places of their own, both are needed.
            Start::Channels if self.config.pos_embed_seq_len.is_some() => {
                (Takes::Must, Takes::Must)
            }
            // CLIP's view of a second picture has no place otherwise.
            Start::Channels if self.config.image_dim.is_some() => (Takes::Must, Takes::Never),
            Start::Channels => (Takes::Must, Takes::May),
        };
        let (frames, fps) = match self.start {
            Start::FirstLatent => (121, 24),
            _ => (81, 16),
        };
        Some(VideoTraits {
            frames,
            fps,
            start: self.start,
            first,
            last,
            views: self.config.image_dim.is_some(),
            frame_noise: None,
        })
    }

    fn boundary(&self) -> Option<f64> {
        self.boundary
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Wan::new(vb, &self.config)?))
    }
}

impl Network for Wan {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs { text, ends, .. } = inputs;
        let [_, frames, height, width] = *inputs.latents else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let rows = text.dim(0)?;
        let context = self.context(&text, ends.views.as_ref(), [frames, height, width])?;
        let channels = match &ends.channels {
            Some(channels) => Some(channels.repeat((rows, 1, 1, 1, 1))?),
            None => None,
        };
        let first_is_clean = ends.first.is_some();
        Ok(Box::new(move |x, level, _| {
            let x = match &channels {
                Some(channels) => Tensor::cat(&[x, channels], 1)?,
                None => x.clone(),
            };
            let time = level.time(|level| level.timestep);
            self.forward(&x, time, first_is_clean, &context)
        }))
    }
}
