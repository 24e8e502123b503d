//! Lumina Image 2.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::transformer::lumina2::{Lumina2, Lumina2Config};
use crate::models::VarBuilder;
use crate::pipeline::language::{last_but_one, Question};
use crate::pipeline::load::{Decoder, TextModels, TextSource};
use crate::pipeline::text::{composed_long, Reading};
use crate::sampling::guidance::Length;
use crate::weights::folder::Folder;
use crate::weights::{packed, transformer};
use candle_core::Result as CandleResult;
use serde_json::json;
use std::sync::Arc;
use worker::Result;

/// The family's row. Z-Image's files have most of its marks, too.
pub const ROW: Row = Row {
    label: "Lumina 2",
    classes: &["Lumina2Transformer2DModel"],
    marks: &[
        "noise_refiner.0.norm1.linear.",
        "noise_refiner.0.adaLN_modulation.1.",
    ],
    of_folder,
    of_tensors: |weights| Ok(Box::new(packed::lumina2_config(weights)?)),
    renamed: transformer::lumina2,
};

/// How it asks Gemma 2. What stands before prompts counts among the tokens that are read; negative prompts stand alone.
const GEMMA: Question = Question {
    before: "You are an assistant designed to generate superior images with the superior degree of image-text alignment based on textual prompts or user prompts. <Prompt Start> ",
    after: "",
    dropped: 0,
    longest: 256,
    filled: None,
    states: last_but_one,
};

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: Lumina2Config = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(config))
}

impl TransformerFamily for Lumina2Config {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Lumina2
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let gemma = source.language(&Decoder {
            label: "Gemma 2",
            own: "gemma2_2b",
            file: "gemma_2_2b",
            part: "text_encoder",
            tokenizer: "tokenizer",
            known: json!({"model_type": "gemma2", "head_dim": 256}),
            question: GEMMA,
        })?;
        Ok(TextModels {
            towers: Vec::new(),
            long: vec![gemma.with_before_negative("")],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, _name: &str) -> (usize, f64) {
        (30, 4.0)
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 6.0}"#
    }

    /// Its pipeline counts channels where others count patches.
    fn image_tokens(&self, latents: &[usize]) -> usize {
        latents[0]
    }

    fn guidance_length(&self) -> Length {
        Length::Rows
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Lumina2::new(vb, self)?))
    }
}

impl Network for Lumina2 {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let text = inputs.text;
        let [_, height, width] = *inputs.latents else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let positions = self.positions(text.dim(1)?, height, width, &text)?;
        Ok(Box::new(move |x, level, _| {
            // It counts time from noise to picture, and predicts the way to the picture.
            let time = level.time(|level| 1.0 - level.sigma);
            self.forward(x, time, &text, &positions)?.neg()
        }))
    }
}
