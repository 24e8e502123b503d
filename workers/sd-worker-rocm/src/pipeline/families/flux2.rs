//! FLUX.2: dev, whose text comes from Mistral Small, and klein, whose text comes from Qwen3.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::layers::pixels_as_rows;
use crate::models::transformer::flux2::{Flux2, Flux2Config};
use crate::models::VarBuilder;
use crate::pipeline::language::{Question, Side};
use crate::pipeline::load::{Decoder, TextModels, TextSource};
use crate::pipeline::long_text::qwen3;
use crate::pipeline::text::{composed_long, Reading};
use crate::request::ImageRequest;
use crate::sampling::NoiseSchedule;
use crate::weights::folder::Folder;
use crate::weights::packed::{blocks, dim};
use crate::weights::{transformer, Weights};
use candle_core::{Result as CandleResult, Tensor};
use serde_json::json;
use std::ops::RangeInclusive;
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "FLUX.2",
    classes: &["Flux2Transformer2DModel"],
    marks: &["double_stream_modulation_img."],
    of_folder,
    of_tensors,
    renamed: transformer::flux2,
};

/// Most pictures that are looked at.
const REFERENCES: usize = 10;
/// Pixels above which such a picture is made smaller.
const MOST_PIXELS: usize = 1024 * 1024;
/// Tokens of a prompt, padding included.
const TOKENS: usize = 512;

/// How dev asks Mistral Small.
const MISTRAL: Question = Question {
    before: "[SYSTEM_PROMPT]You are an AI that reasons about image descriptions. You give structured responses focusing on object relationships, object\nattribution and actions without speculation.[/SYSTEM_PROMPT][INST]",
    after: "[/INST]",
    dropped: 0,
    longest: TOKENS,
    filled: Some(("<pad>", Side::Left)),
    states: quarters,
};

/// How klein asks Qwen3.
const QWEN: Question = Question {
    before: "<|im_start|>user\n",
    after: "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    dropped: 0,
    longest: TOKENS,
    filled: Some(("<|endoftext|>", Side::Right)),
    states: quarters,
};

/// The states after one, two and three quarters of the layers.
fn quarters(layers: usize) -> Vec<usize> {
    (1..4).map(|quarter| layers * quarter / 4).collect()
}

/// A model of the family.
#[derive(Debug, Clone)]
struct Flux2Family {
    config: Flux2Config,
    /// Whether it was distilled to few steps and has learnt guidance away; a single file does not tell.
    distilled: Option<bool>,
}

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    #[derive(serde::Deserialize)]
    struct Index {
        #[serde(default)]
        is_distilled: bool,
    }
    let index: Index = folder.json("model_index.json")?;
    let part = folder.part("transformer");
    let config: Flux2Config = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(Flux2Family {
        config,
        distilled: Some(index.is_distilled),
    }))
}

fn of_tensors(weights: &Weights) -> std::result::Result<Box<dyn TransformerFamily>, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let (width, head) = (
        dim("x_embedder.weight", 0)?,
        dim("transformer_blocks.0.attn.norm_q.weight", 0)?,
    );
    if !head.is_multiple_of(8) || !width.is_multiple_of(head) {
        return Err(format!("heads of {head} in a width of {width}"));
    }
    let inside = dim("transformer_blocks.0.ff.linear_out.weight", 1)?;
    let config = Flux2Config {
        in_channels: dim("x_embedder.weight", 1)?,
        out_channels: Some(dim("proj_out.weight", 0)?),
        num_layers: blocks(weights, "transformer_blocks", "attn.to_q.weight"),
        num_single_layers: blocks(
            weights,
            "single_transformer_blocks",
            "attn.to_qkv_mlp_proj.weight",
        ),
        attention_head_dim: head,
        num_attention_heads: width / head,
        joint_attention_dim: dim("context_embedder.weight", 1)?,
        mlp_ratio: inside as f64 / width as f64,
        axes_dims_rope: vec![head / 4; 4],
        guidance_embeds: has_guidance(weights),
        ..Flux2Config::default()
    };
    config.check()?;
    Ok(Box::new(Flux2Family {
        config,
        distilled: None,
    }))
}

fn has_guidance(weights: &Weights) -> bool {
    weights.contains("time_guidance_embed.guidance_embedder.linear_1.weight")
}

impl TransformerFamily for Flux2Family {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Flux2
    }

    fn adopt(&mut self, weights: &Weights) {
        self.config.guidance_embeds = has_guidance(weights);
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let (part, tokenizer) = ("text_encoder", "tokenizer");
        let decoder = match self.config.guidance_embeds {
            true => Decoder {
                label: "Mistral Small",
                own: "mistral3_24b",
                file: "mistral_3_small",
                part,
                tokenizer,
                known: json!({"model_type": "mistral", "rope_theta": 1e9, "rms_norm_eps": 1e-5, "head_dim": 128}),
                question: MISTRAL,
            },
            false => Decoder {
                label: "Qwen3",
                own: "qwen3_4b",
                file: "qwen_3_",
                part,
                tokenizer,
                known: qwen3(),
                question: QWEN,
            },
        };
        Ok(TextModels {
            towers: Vec::new(),
            long: vec![source.language(&decoder)?],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, name: &str) -> (usize, f64) {
        let base = self.config.guidance_embeds || name.to_lowercase().contains("base");
        match self.distilled.unwrap_or(!base) {
            true => (4, 1.0),
            false => (50, 4.0),
        }
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": true}"#
    }

    fn schedule(&self, schedule: NoiseSchedule) -> NoiseSchedule {
        schedule.with_empirical_shift()
    }

    /// The codec has made one latent of each patch.
    fn patch(&self) -> usize {
        1
    }

    fn evaluates_twice(&self) -> bool {
        !self.config.guidance_embeds && self.distilled != Some(true)
    }

    fn guidance_scale(&self, request: &ImageRequest) -> f64 {
        match self.evaluates_twice() {
            true => request.guidance,
            false => 1.0,
        }
    }

    fn references(&self) -> RangeInclusive<usize> {
        0..=REFERENCES
    }

    fn reference_size(
        &self,
        (width, height): (usize, usize),
        _request: &ImageRequest,
        _factor: usize,
    ) -> (usize, usize) {
        if width * height <= MOST_PIXELS {
            return (width, height);
        }
        let scale = (MOST_PIXELS as f64 / (width * height) as f64).sqrt();
        let scaled = |side: usize| ((side as f64 * scale) as usize).max(1);
        (scaled(width), scaled(height))
    }

    fn cuts_references(&self) -> bool {
        true
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Flux2::new(vb, &self.config)?))
    }
}

impl Network for Flux2 {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs {
            request,
            text,
            latents,
            references,
            ..
        } = inputs;
        let [_, height, width] = *latents else {
            candle_core::bail!("latents of {latents:?}")
        };
        let (rows, tokens) = (text.dim(0)?, text.dim(1)?);
        let mut sizes = Vec::with_capacity(references.len());
        for picture in &references {
            let (_, _, height, width) = picture.dims4()?;
            sizes.push((height, width));
        }
        let further = match references.is_empty() {
            true => None,
            false => {
                let flat = references.iter().map(pixels_as_rows);
                let flat = flat.collect::<CandleResult<Vec<_>>>()?;
                Some(Tensor::cat(&flat, 1)?.repeat((rows, 1, 1))?)
            }
        };
        let rope = self.rope(tokens, (height, width), &sizes, &text)?;
        let guidance = request.guidance;
        Ok(Box::new(move |x, level, _| {
            let time = level.time(|level| 1000.0 * level.sigma);
            self.forward(x, time, guidance, &text, further.as_ref(), &rope)
        }))
    }
}
