//! Stable Diffusion 3 and 3.5.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::transformer::sd3::{Sd3, Sd3Config};
use crate::models::VarBuilder;
use crate::pipeline::denoiser::block_controls::{residuals, Seen};
use crate::pipeline::load::{distilled, TextModels, TextSource};
use crate::pipeline::text::{Encoded, Reading};
use crate::sampling::noise_schedule::Spacing;
use crate::sampling::NoiseSchedule;
use crate::weights::folder::Folder;
use crate::weights::{packed, transformer};
use candle_core::{DType, Result as CandleResult, Tensor, D};
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "Stable Diffusion 3",
    classes: &["SD3Transformer2DModel"],
    marks: &["joint_blocks.0.", "pos_embed.pos_embed"],
    of_folder,
    of_tensors: |weights| Ok(Box::new(packed::sd3_config(weights)?)),
    renamed: transformer::sd3,
};

/// Tokens that are read of T5.
const T5_TOKENS: usize = 256;

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: Sd3Config = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(config))
}

impl TransformerFamily for Sd3Config {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Sd3
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let width = self.joint_attention_dim;
        let towers = vec![
            source.tower("clip_l", "text_encoder", "tokenizer")?,
            source.tower("clip_g", "text_encoder_2", "tokenizer_2")?,
        ];
        let t5 = source.t5("text_encoder_3", "tokenizer_3", T5_TOKENS)?;
        Ok(TextModels {
            towers,
            long: t5.into_iter().collect(),
            reading: Reading {
                leave_out: 1,
                norm: false,
            },
            // The towers side by side, filled up with zeros to T5's width, before T5's text or zeros in its place.
            compose: Arc::new(move |texts| {
                let towers = Tensor::cat(&texts.towers, D::Minus1)?;
                let missing = width.saturating_sub(towers.dim(D::Minus1)?);
                let towers = towers.pad_with_zeros(D::Minus1, 0, missing)?;
                let shape = (1, T5_TOKENS, towers.dim(D::Minus1)?);
                let long = match texts.long.into_iter().next() {
                    Some(long) => long,
                    None => Tensor::zeros(shape, DType::F32, towers.device())?,
                };
                Ok(Encoded {
                    text: Tensor::cat(&[&towers, &long], 1)?,
                    pooled: Tensor::cat(&texts.pooled, D::Minus1)?,
                    more: Vec::new(),
                })
            }),
        })
    }

    fn defaults(&self, name: &str) -> (usize, f64) {
        match distilled(name) {
            Some(_) => (4, 1.0),
            None => (28, 4.5),
        }
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#
    }

    fn schedule(&self, schedule: NoiseSchedule) -> NoiseSchedule {
        // The others' pipelines have steps of their own.
        schedule.with_spacing(Spacing::Linspace)
    }

    fn head_shares(&self) -> &[usize] {
        std::slice::from_ref(&self.attention_head_dim)
    }

    fn prompt_weights(&self) -> bool {
        true
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Sd3::new(vb, self)?))
    }
}

impl Network for Sd3 {
    fn without_attention(&self, blocks: &[String]) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(self.apart(blocks)?))
    }

    fn without_layers(&self, layers: &[usize]) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(self.without(layers)?))
    }

    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs {
            text,
            pooled,
            controls,
            ..
        } = inputs;
        Ok(Box::new(move |x, level, part| {
            let time = level.time(|level| 1000.0 * level.sigma);
            let entered = self.entered(x)?;
            let seen = Seen {
                x,
                entered: Some(&entered),
                text: &text,
                pooled: &pooled,
                blocks: (self.blocks(), 0),
            };
            let added = residuals(&controls, &seen, level, part)?;
            self.forward_steered(x, entered, time, &text, &pooled, &added)
        }))
    }
}
