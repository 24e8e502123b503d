//! Chroma.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::config::Others;
use crate::models::transformer::chroma::{Chroma, ChromaConfig};
use crate::models::VarBuilder;
use crate::pipeline::load::{TextModels, TextSource};
use crate::pipeline::long_text::Padding;
use crate::pipeline::text::{composed_long, Reading};
use crate::weights::folder::Folder;
use crate::weights::packed::{blocks, dim};
use crate::weights::{transformer, Weights};
use candle_core::Result as CandleResult;
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "Chroma",
    classes: &["ChromaTransformer2DModel"],
    marks: &["distilled_guidance_layer."],
    of_folder,
    of_tensors,
    renamed: transformer::chroma,
};

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: ChromaConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(config))
}

fn of_tensors(weights: &Weights) -> std::result::Result<Box<dyn TransformerFamily>, String> {
    let dim = |name: &str, at| dim(weights, name, at);
    let (width, head) = (
        dim("x_embedder.weight", 0)?,
        dim("transformer_blocks.0.attn.norm_q.weight", 0)?,
    );
    // An eighth of a head turns with the index, the rest in equal parts with row and column.
    if !head.is_multiple_of(16) || !width.is_multiple_of(head) {
        return Err(format!("heads of {head} in a width of {width}"));
    }
    let place = head / 16 * 7;
    let small = "distilled_guidance_layer";
    let config = ChromaConfig {
        patch_size: 1,
        in_channels: dim("x_embedder.weight", 1)?,
        out_channels: Some(dim("proj_out.weight", 0)?),
        num_layers: blocks(weights, "transformer_blocks", "attn.to_q.weight"),
        num_single_layers: blocks(weights, "single_transformer_blocks", "proj_mlp.weight"),
        attention_head_dim: head,
        num_attention_heads: width / head,
        joint_attention_dim: dim("context_embedder.weight", 1)?,
        axes_dims_rope: vec![head - 2 * place, place, place],
        approximator_num_channels: dim(&format!("{small}.in_proj.weight"), 1)?,
        approximator_hidden_dim: dim(&format!("{small}.in_proj.weight"), 0)?,
        approximator_layers: blocks(weights, &format!("{small}.layers"), "linear_1.weight"),
        others: Others::default(),
    };
    config.check()?;
    Ok(Box::new(config))
}

impl TransformerFamily for ChromaConfig {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Chroma
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let part = "text_encoder";
        let t5 = source.t5(part, "tokenizer", 512)?;
        let t5 = t5.ok_or_else(|| source.lacks("T5", "t5xxl", part))?;
        Ok(TextModels {
            towers: Vec::new(),
            // What is not text the network has learnt not to see, but for the first token of it.
            long: vec![t5.padded(Padding::One)],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, _name: &str) -> (usize, f64) {
        (35, 5.0)
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Chroma::new(vb, self)?))
    }
}

impl Network for Chroma {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let text = inputs.text;
        let [_, height, width] = *inputs.latents else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let rope = self.rope(text.dim(1)?, (height, width), &text)?;
        Ok(Box::new(move |x, level, _| {
            let time = level.time(|level| 1000.0 * level.sigma);
            self.forward(x, time, &text, &rope)
        }))
    }
}
