//! FLUX.1.

use super::{Evaluation, Inputs, Network, Row, TransformerFamily};
use crate::info::Family;
use crate::models::transformer::flux::{Flux, FluxConfig};
use crate::models::transformer::pack;
use crate::models::transformer::step_cache::{BlockCache, Takes, TEA_FLUX};
use crate::models::VarBuilder;
use crate::pipeline::denoiser::block_controls::{residuals, Seen};
use crate::pipeline::load::{distilled, without_projection, TextModels, TextSource};
use crate::pipeline::text::{composed_long, Reading};
use crate::request::{ImageRequest, StepCache};
use crate::weights::folder::Folder;
use crate::weights::{packed, transformer, Weights};
use candle_core::{Result as CandleResult, Tensor};
use std::ops::RangeInclusive;
use std::sync::Arc;
use worker::Result;

/// The family's row.
pub const ROW: Row = Row {
    label: "FLUX.1",
    classes: &["FluxTransformer2DModel"],
    marks: &["double_blocks.0.", "single_transformer_blocks.0."],
    of_folder,
    of_tensors: |weights| {
        let config = packed::flux_config(weights)?;
        let looks = Looks::of(&config, true)?;
        Ok(Box::new(FluxFamily { config, looks }))
    },
    renamed: transformer::flux,
};

/// Most pictures that Kontext looks at.
const REFERENCES: usize = 8;

/// Sizes at which Kontext was trained to look at pictures, of about as many pixels each.
const SIZES: [(usize, usize); 17] = [
    (672, 1568),
    (688, 1504),
    (720, 1456),
    (752, 1392),
    (800, 1328),
    (832, 1248),
    (880, 1184),
    (944, 1104),
    (1024, 1024),
    (1104, 944),
    (1184, 880),
    (1248, 832),
    (1328, 800),
    (1392, 752),
    (1456, 720),
    (1504, 688),
    (1568, 672),
];

/// What a model sees besides latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// Nothing: dev and schnell.
    Nothing,
    /// Pictures as further tokens: Kontext.
    References,
    /// A picture of the same size as further channels: Depth and Canny.
    Control,
    /// What a mask leaves of a picture, and the mask, as further channels: Fill.
    Masked,
}

impl Looks {
    /// What the channels tell; whether a model of the usual channels is Kontext, they do not.
    fn of(config: &FluxConfig, kontext: bool) -> std::result::Result<Self, String> {
        let (input, output) = (config.in_channels, config.out());
        match input - output {
            0 if kontext => Ok(Self::References),
            0 => Ok(Self::Nothing),
            more if more == output => Ok(Self::Control),
            more if more > output => Ok(Self::Masked),
            more => Err(format!(
                "{more} in_channels more than out_channels are of no model that is known"
            )),
        }
    }
}

/// A model of the family.
#[derive(Debug, Clone)]
struct FluxFamily {
    config: FluxConfig,
    looks: Looks,
}

fn of_folder(folder: &Folder) -> Result<Box<dyn TransformerFamily>> {
    #[derive(serde::Deserialize)]
    struct Index {
        #[serde(default)]
        _class_name: String,
    }
    let index: Index = folder.json("model_index.json")?;
    let part = folder.part("transformer");
    let config: FluxConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    let kontext = index._class_name.starts_with("FluxKontext");
    let looks = Looks::of(&config, kontext).map_err(|e| part.bad_config(e))?;
    Ok(Box::new(FluxFamily { config, looks }))
}

impl TransformerFamily for FluxFamily {
    fn row(&self) -> &'static Row {
        &ROW
    }

    fn family(&self) -> Family {
        Family::Flux
    }

    fn adopt(&mut self, weights: &Weights) {
        // The difference between dev and schnell.
        self.config.guidance_embeds =
            weights.contains("time_text_embed.guidance_embedder.linear_1.weight");
        // It may be Kontext's, which has dev's tensors.
        if self.looks == Looks::Nothing {
            self.looks = Looks::References;
        }
    }

    fn head_shares(&self) -> &[usize] {
        &self.config.axes_dims_rope
    }

    fn text(&self, source: &TextSource) -> Result<TextModels> {
        let tokens = match self.config.guidance_embeds {
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
        match self.config.guidance_embeds && distilled(name).is_none() {
            true => (28, 3.5),
            false => (4, 1.0),
        }
    }

    fn scheduler(&self) -> &'static str {
        match self.config.guidance_embeds {
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

    fn guidance_scale(&self, request: &ImageRequest) -> f64 {
        request.true_guidance
    }

    fn references(&self) -> RangeInclusive<usize> {
        match self.looks {
            Looks::Nothing | Looks::Masked => 0..=0,
            Looks::References => 0..=REFERENCES,
            Looks::Control => 1..=1,
        }
    }

    fn reference_size(
        &self,
        (width, height): (usize, usize),
        request: &ImageRequest,
        factor: usize,
    ) -> (usize, usize) {
        if self.looks == Looks::Control {
            return (request.width, request.height);
        }
        let shape = width as f64 / height as f64;
        let off = |(w, h): &(usize, usize)| (shape - *w as f64 / *h as f64).abs();
        let nearest = SIZES.iter().min_by(|a, b| off(a).total_cmp(&off(b)));
        let (width, height) = nearest.copied().unwrap_or((width, height));
        // They are of latents of 8 pixels.
        (width * factor / 8, height * factor / 8)
    }

    fn inpaints(&self) -> bool {
        self.looks == Looks::Masked
    }

    fn masked(&self, mask: &Tensor, latents: &Tensor) -> CandleResult<Tensor> {
        // All pixels of a latent are channels, row by row.
        let (_, _, height, width) = latents.dims4()?;
        let (_, _, rows, columns) = mask.dims4()?;
        let (down, across) = (rows / height, columns / width);
        let mask = mask
            .reshape((height, down, width, across))?
            .permute((1, 3, 0, 2))?
            .contiguous()?
            .reshape((1, down * across, height, width))?;
        Tensor::cat(&[latents, &mask], 1)
    }

    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>> {
        Ok(Arc::new(Flux::new(vb, &self.config)?))
    }
}

impl Network for Flux {
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation> {
        let Inputs {
            request,
            text,
            pooled,
            latents,
            references,
            masked,
            controls,
            ..
        } = inputs;
        let [channels, height, width] = *latents else {
            candle_core::bail!("latents of {latents:?}")
        };
        let (rows, tokens) = (text.dim(0)?, text.dim(1)?);
        // Channels beside the latents', and tokens beside theirs.
        let (mut beside, mut further, mut sizes) = (masked, None, Vec::new());
        match references.as_slice() {
            [] => {}
            [like] if self.channels() > channels => {
                beside = Some(like.repeat((rows, 1, 1, 1))?);
            }
            pictures => {
                let packed = pictures
                    .iter()
                    .map(pack)
                    .collect::<CandleResult<Vec<_>>>()?;
                further = Some(Tensor::cat(&packed, 1)?.repeat((rows, 1, 1))?);
                for picture in pictures {
                    let (_, _, height, width) = picture.dims4()?;
                    sizes.push((height, width));
                }
            }
        }
        let rope = self.rope(tokens, (height, width), &sizes, &text)?;
        let guidance = request.guidance;
        let takes = match request.tuning.step_cache {
            Some(StepCache::FirstBlock(share)) => Some(Takes::FirstBlock(share)),
            Some(StepCache::Tea(threshold)) => Some(Takes::Tea(threshold, TEA_FLUX)),
            _ => None,
        };
        let cache = takes.map(BlockCache::new);
        Ok(Box::new(move |x, level, part| {
            let time = level.time(|level| 1000.0 * level.sigma);
            let seen = x;
            let x = match &beside {
                Some(beside) => &Tensor::cat(&[x, beside], 1)?,
                None => x,
            };
            let further = further.as_ref();
            let ends = part.step == 0 || part.step + 1 >= part.steps;
            let cache = cache.as_ref().map(|cache| (cache, ends));
            let seen = Seen {
                x: seen,
                entered: None,
                text: &text,
                pooled: &pooled,
                blocks: self.block_counts(),
            };
            let added = residuals(&controls, &seen, level, part)?;
            self.forward_cached(
                x, time, guidance, &text, &pooled, further, &rope, &added, cache,
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_looked_at_in_the_nearest_size_of_training() {
        let family = FluxFamily {
            config: serde_json::from_str("{}").unwrap(),
            looks: Looks::References,
        };
        let size = |width, height, factor| {
            family.reference_size((width, height), &ImageRequest::default(), factor)
        };
        assert_eq!(size(100, 100, 8), (1024, 1024));
        assert_eq!(size(1920, 1080, 8), (1392, 752));
        assert_eq!(size(10, 4000, 8), (672, 1568));
        assert_eq!(size(100, 120, 4), (472, 552));
    }
}
