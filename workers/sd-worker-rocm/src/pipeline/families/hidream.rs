//! HiDream-I1.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::config::Others;
use crate::models::transformer::hidream::{HiDream, HiDreamConfig};
use crate::models::VarBuilder;
use crate::pipeline::language::{Question, Side};
use crate::pipeline::load::{Decoder, TextModels, TextSource};
use crate::pipeline::long_text::{LongModel, Padding};
use crate::pipeline::text::{Encoded, Reading};
use crate::sampling::noise_schedule::Spacing;
use crate::sampling::NoiseSchedule;
use crate::weights::folder::Folder;
use crate::weights::packed::{blocks, dim};
use crate::weights::Weights;
use candle_core::{Result as CandleResult, Tensor, D};
use serde_json::json;
use std::sync::Arc;
use worker::{Error, Result};

/// The family's row.
pub const ROW: Row = Row {
    label: "HiDream",
    classes: &["HiDreamImageTransformer2DModel"],
    marks: &["double_stream_blocks.0.block."],
    of_folder,
    of_tensors,
    // The originals have the same names.
    renamed: Clone::clone,
};

/// Tokens that are read of each language model.
const TOKENS: usize = 128;

/// How it asks Llama: for every layer's state, padding's, too.
const LLAMA: Question = Question {
    before: "",
    after: "",
    dropped: 0,
    longest: TOKENS,
    filled: Some(("<|eot_id|>", Side::Right)),
    states: |layers| (1..=layers).collect(),
};

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: HiDreamConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(config))
}

fn of_tensors(weights: &Weights) -> std::result::Result<Box<dyn TransformerFamily>, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let (width, patch) = (
        dim("x_embedder.proj.weight", 0)?,
        dim("x_embedder.proj.weight", 1)?,
    );
    // What all published models have in common.
    const HEAD: usize = 128;
    if !width.is_multiple_of(HEAD) || !patch.is_multiple_of(4) {
        return Err(format!(
            "heads of {HEAD} in a width of {width}, {patch} numbers a patch"
        ));
    }
    let double = blocks(weights, "double_stream_blocks", "block.attn1.to_q.weight");
    let single = blocks(weights, "single_stream_blocks", "block.attn1.to_q.weight");
    let experts = blocks(
        weights,
        "double_stream_blocks.0.block.ff_i.experts",
        "w1.weight",
    );
    let last = format!("caption_projection.{}.linear.weight", double + single);
    let config = HiDreamConfig {
        in_channels: patch / 4,
        num_layers: double,
        num_single_layers: single,
        attention_head_dim: HEAD,
        num_attention_heads: width / HEAD,
        caption_channels: vec![
            dim(&last, 1)?,
            dim("caption_projection.0.linear.weight", 1)?,
        ],
        text_emb_dim: dim("p_embedder.pooled_embedder.linear_1.weight", 1)?,
        num_routed_experts: experts,
        num_activated_experts: experts.min(2),
        axes_dims_rope: vec![HEAD / 2, HEAD / 4, HEAD / 4],
        max_resolution: vec![128, 128],
        // Layer by layer, and of those that remain the last.
        llama_layers: (0..double + single).map(|block| block.min(31)).collect(),
        out_channels: None,
        others: Others::default(),
        patch_size: 2,
    };
    config.check()?;
    Ok(Box::new(config))
}

impl TransformerFamily for HiDreamConfig {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::HiDream
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let towers = vec![
            source.tower("clip_l", "text_encoder", "tokenizer")?,
            source.tower("clip_g", "text_encoder_2", "tokenizer_2")?,
        ];
        let part = "text_encoder_3";
        let t5 = source.t5(part, "tokenizer_3", TOKENS)?;
        let t5 = t5.ok_or_else(|| source.lacks("T5", "t5xxl", part))?;
        let llama = source.language(&Decoder {
            label: "Llama 3.1",
            own: "llama",
            file: "llama_3.1_8b",
            part: "text_encoder_4",
            tokenizer: "tokenizer_4",
            known: json!({"model_type": "llama", "head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192}}),
            question: LLAMA,
        })?;
        if let LongModel::Language(model) = &llama {
            let (layers, width) = (model.config.layers, model.config.width);
            let most = self.llama_layers.iter().max().copied().unwrap_or(0);
            if most >= layers || width != self.caption_channels[1] {
                return Err(Error::Usage(format!(
                    "the denoiser reads layers up to {most} of width {} of a language model of {layers} layers of width {width}",
                    self.caption_channels[1]
                )));
            }
        }
        Ok(TextModels {
            towers,
            long: vec![t5.padded(Padding::Unseen), llama],
            reading: Reading::LAST,
            compose: Arc::new(|texts| {
                let Ok([t5, llama]) = <[Tensor; 2]>::try_from(texts.long) else {
                    candle_core::bail!("the model has no two language models")
                };
                Ok(Encoded {
                    text: t5,
                    pooled: Tensor::cat(&texts.pooled, D::Minus1)?,
                    more: vec![llama],
                })
            }),
        })
    }

    fn defaults(&self, name: &str) -> (usize, f64) {
        let name = name.to_lowercase();
        // Distilled models say so in their names only.
        match (name.ends_with("fast"), name.ends_with("dev")) {
            (true, _) => (16, 1.0),
            (_, true) => (28, 1.0),
            _ => (50, 5.0),
        }
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#
    }

    fn schedule(&self, schedule: NoiseSchedule) -> NoiseSchedule {
        // Its pipeline leaves the steps to the scheduler.
        schedule.with_spacing(Spacing::Linspace)
    }

    /// Its pipeline counts those of the largest picture, whatever a request's are.
    fn image_tokens(&self, _latents: &[usize]) -> usize {
        self.most_patches()
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(HiDream::new(vb, self)?))
    }
}

impl Network for HiDream {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs {
            text, pooled, more, ..
        } = inputs;
        let ([_, height, width], [states]) = (inputs.latents, more.as_slice()) else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let texts = self.texts(&text, states)?;
        let tokens = text.dim(1)? + 2 * states.dim(1)?;
        let places = self.places(tokens, *height, *width, &text)?;
        Ok(Box::new(move |x, level, _| {
            // It predicts the way to the picture.
            let time = level.time(|level| 1000.0 * level.sigma);
            self.forward(x, time, &texts, &pooled, &places)?.neg()
        }))
    }
}
