//! FLUX.1.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::transformer::flux::{Flux, FluxConfig};
use crate::models::VarBuilder;
use crate::pipeline::load::{distilled, without_projection, TextModels, TextSource};
use crate::pipeline::text::{composed_long, Reading};
use crate::request::ImageRequest;
use crate::weights::folder::Folder;
use crate::weights::{packed, transformer, Weights};
use candle_core::Result as CandleResult;
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "FLUX.1",
    classes: &["FluxTransformer2DModel"],
    marks: &["double_blocks.0.", "single_transformer_blocks.0."],
    of_folder,
    of_tensors: |weights| Ok(Box::new(packed::flux_config(weights)?)),
    renamed: transformer::flux,
};

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    let part = folder.part("transformer");
    let config: FluxConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok(Box::new(config))
}

impl TransformerFamily for FluxConfig {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Flux
    }

    fn adopt(&mut self, weights: &Weights) {
        // The difference between dev and schnell.
        self.guidance_embeds =
            weights.contains("time_text_embed.guidance_embedder.linear_1.weight");
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let tokens = match self.guidance_embeds {
            true => 512,
            false => 256,
        };
        let (part, tokenizer) = ("text_encoder_2", "tokenizer_2");
        let t5 = source.t5(part, tokenizer, tokens)?;
        let mut tower = source.tower("clip_l", "text_encoder", "tokenizer")?;
        // Its pooled text is the tower's own, whatever else the file has.
        tower.1 = without_projection(&tower.1);
        Ok(TextModels {
            towers: vec![tower],
            long: vec![t5.ok_or_else(|| source.lacks("T5", "t5xxl", part))?],
            reading: Reading::LAST,
            compose: Arc::new(composed_long),
        })
    }

    fn defaults(&self, name: &str) -> (usize, f64) {
        match self.guidance_embeds && distilled(name).is_none() {
            true => (28, 3.5),
            false => (4, 1.0),
        }
    }

    fn scheduler(&self) -> &'static str {
        match self.guidance_embeds {
            true => {
                r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": true,
                "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096}"#
            }
            false => r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0}"#,
        }
    }

    /// Guidance is a condition of the network, or, where it was distilled to few steps, there is none: its pipelines
    /// leave it out there, too.
    fn evaluates_twice(&self) -> bool {
        false
    }

    fn guidance_scale(&self, _request: &ImageRequest) -> f64 {
        1.0
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Flux::new(vb, self)?))
    }
}

impl Network for Flux {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs { text, pooled, .. } = inputs;
        let [_, height, width] = *inputs.latents else {
            candle_core::bail!("latents of {:?}", inputs.latents)
        };
        let rope = self.rope(text.dim(1)?, height, width, &text)?;
        let guidance = inputs.request.guidance;
        Ok(Box::new(move |x, level, _| {
            let time = 1000.0 * level.sigma;
            self.forward(x, time, guidance, &text, &pooled, &rope)
        }))
    }
}
