//! LTX-Video.

use super::{Evaluation, Inputs, Network, Row, Start, TransformerFamily, VideoTraits};
use crate::info::{Family, Takes};
use crate::models::transformer::ltx::{Clean, Ltx, LtxConfig, Places};
use crate::models::VarBuilder;
use crate::pipeline::load::{distilled, TextModels, TextSource};
use crate::pipeline::long_text::Padding;
use crate::pipeline::text::{composed_long, Reading};
use crate::sampling::{NoiseSchedule, Schedule};
use crate::weights::folder::Folder;
use crate::weights::ltx as names;
use candle_core::Result as CandleResult;
use serde::Deserialize;
use std::sync::Arc;
use worker::{Error, Result};

/// The family's row.
pub const ROW: Row = Row {
    label: "LTX-Video",
    classes: &["LTXVideoTransformer3DModel"],
    marks: &["caption_projection.linear_1."],
    of_folder,
    of_tensors: |weights| {
        let config = names::config(weights)?;
        let kind = match names::places_first_frames(weights) {
            true => Kind::Conditions,
            false => Kind::First,
        };
        Ok(Box::new(LtxFamily { config, kind }))
    },
    renamed: names::renamed,
};

/// Frames a second of the training.
const FPS: usize = 25;

/// What a model's pipeline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Up to 0.9.1: a picture as the first frame.
    First,
    /// Since 0.9.5: pictures as any frames, and noise levels, places of frames and text of another kind.
    Conditions,
}

/// A model of the family.
#[derive(Debug, Clone)]
struct LtxFamily {
    config: LtxConfig,
    kind: Kind,
}

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    #[derive(Deserialize)]
    struct Index {
        _class_name: String,
    }
    let part = folder.part("transformer");
    let config: LtxConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    let index: Index = folder.json("model_index.json")?;
    let kind = match index._class_name.as_str() {
        "LTXPipeline" | "LTXImageToVideoPipeline" => Kind::First,
        "LTXConditionPipeline" => Kind::Conditions,
        other => {
            return Err(Error::BadModel {
                path: folder.path("model_index.json"),
                reason: format!(
                    "a pipeline of kind {other} is not implemented; LTXPipeline, LTXImageToVideoPipeline and LTXConditionPipeline are"
                ),
            })
        }
    };
    Ok(Box::new(LtxFamily { config, kind }))
}

impl TransformerFamily for LtxFamily {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Ltx
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let (tokens, padding) = match self.kind {
            Kind::First => (128, Padding::Cut),
            Kind::Conditions => (256, Padding::None),
        };
        let part = "text_encoder";
        let t5 = source.t5(part, "tokenizer", tokens)?;
        let t5 = t5.ok_or_else(|| source.lacks("T5", "t5xxl", part))?;
        Ok(TextModels {
            towers: Vec::new(),
            long: vec![t5.padded(padding)],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, name: &str) -> (usize, f64) {
        match distilled(name) {
            Some(_) => (8, 1.0),
            None => (50, 3.0),
        }
    }

    fn size(&self, factor: usize) -> (usize, usize) {
        (22 * factor, 16 * factor)
    }

    fn scheduler(&self) -> &'static str {
        match self.kind {
            Kind::First => {
                r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true, "base_shift": 0.95,
                "max_shift": 2.05, "base_image_seq_len": 1024, "max_image_seq_len": 4096, "shift_terminal": 0.1}"#
            }
            Kind::Conditions => {
                r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0}"#
            }
        }
    }

    fn schedule(&self, mut schedule: NoiseSchedule) -> NoiseSchedule {
        if self.kind == Kind::Conditions {
            schedule.named.get_or_insert(Schedule::LinearQuadratic);
        }
        schedule
    }

    fn patch(&self) -> usize {
        1
    }

    fn video(&self) -> Option<VideoTraits> {
        let (start, last, frame_noise) = match self.kind {
            Kind::First => (Start::FirstLatent, Takes::Never, None),
            Kind::Conditions => (Start::Latents, Takes::May, Some(0.15)),
        };
        Some(VideoTraits {
            frames: match self.kind {
                Kind::First => 161,
                Kind::Conditions => 121,
            },
            fps: FPS,
            start,
            first: Takes::May,
            last,
            views: false,
            frame_noise,
        })
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        let network = Ltx::new(vb, &self.config)?;
        let kind = self.kind;
        Ok(Arc::new(LtxNetwork { network, kind }))
    }
}

/// The network, and how the frames that it sees lie.
struct LtxNetwork {
    network: Ltx,
    kind: Kind,
}

impl Network for LtxNetwork {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs {
            text,
            ends,
            request,
            ..
        } = inputs;
        let [_, latents, height, width] = *inputs.latents else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let fps = request.video.as_ref().map_or(FPS, |video| video.fps);
        let each = (request.frames() - 1) / (latents - 1).max(1);
        let second = |frame: f32| frame / fps as f32;
        let place = |latent: usize| match self.kind {
            Kind::First => latent as f32 * second(each as f32),
            // A latent is where its first frame is.
            Kind::Conditions => second((latent * each + 1).saturating_sub(each) as f32),
        };
        let frames = (0..latents).map(place);
        let later = ends.later.iter().map(|(at, _)| second(*at as f32));
        let places = Places {
            frames: frames.chain(later).collect(),
            height,
            width,
            factor: request.height / height.max(1),
        };
        let context = self.network.context(&text, &places)?;
        let clean = Clean {
            first: usize::from(ends.first.is_some()),
            last: ends.later.len(),
        };
        Ok(Box::new(move |x, level, _| {
            let time = level.time(|level| level.timestep);
            self.network.forward(x, time, clean, &context)
        }))
    }
}
