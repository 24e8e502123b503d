//! Z-Image.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::transformer::z_image::{ZImage, ZImageConfig};
use crate::models::VarBuilder;
use crate::pipeline::load::{Decoder, TextModels, TextSource};
use crate::pipeline::long_text::{qwen3, Z_IMAGE};
use crate::pipeline::text::{composed_long, Reading};
use crate::request::ImageRequest;
use crate::weights::folder::Folder;
use crate::weights::{packed, transformer};
use candle_core::Result as CandleResult;
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "Z-Image",
    classes: &["ZImageTransformer2DModel"],
    marks: &["noise_refiner.0."],
    of_folder,
    of_tensors: |weights| Ok(Box::new(packed::z_image_config(weights)?)),
    renamed: transformer::z_image,
};

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: ZImageConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(config))
}

impl TransformerFamily for ZImageConfig {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::ZImage
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        Ok(TextModels {
            towers: Vec::new(),
            long: vec![source.language(&Decoder {
                label: "Qwen3",
                own: "qwen3_4b",
                file: "qwen_3_4b",
                part: "text_encoder",
                tokenizer: "tokenizer",
                known: qwen3(),
                question: Z_IMAGE,
            })?],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, _name: &str) -> (usize, f64) {
        // Z-Image-Turbo, whose very name says that it is distilled, wants eight.
        (8, 1.0)
    }

    fn scheduler(&self) -> &'static str {
        r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#
    }

    /// Its own pipeline adds the whole difference to the prompt's prediction.
    fn guidance_scale(&self, request: &ImageRequest) -> f64 {
        match request.guidance > 1.0 {
            true => request.guidance + 1.0,
            false => request.guidance,
        }
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(ZImage::new(vb, self)?))
    }
}

impl Network for ZImage {
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
