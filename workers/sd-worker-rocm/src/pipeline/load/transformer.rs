//! Models whose denoiser is a transformer: Stable Diffusion 3, FLUX.1, Z-Image.

use super::distilled::distilled;
use super::parts::{dtype, open_taesd, open_tower, open_vae, open_vae_part};
use crate::info::{Defaults, Family, ModelInfo};
use crate::models::clip::ClipConfig;
use crate::models::codec::CodecConfig;
use crate::pipeline::denoiser::transformer::{Kind, TransformerDenoiser};
use crate::pipeline::denoiser::Denoiser;
use crate::pipeline::long_text::{LongModel, LongText, Z_IMAGE};
use crate::pipeline::place::{GuidancePlace, Placement};
use crate::pipeline::text::{Layout, Reading, TextStage, Tower};
use crate::pipeline::types::PipelineOptions;
use crate::pipeline::vae::VaeStage;
use crate::pipeline::Pipeline;
use crate::prompt::ClipTokenizer;
use crate::sampling::noise_schedule::Spacing;
use crate::sampling::{NoiseSchedule, Sampler, Schedule};
use crate::textual_inversion::Concept;
use crate::weights::folder::Folder;
use crate::weights::{transformer, Weights};
use candle_core::Device;
use std::path::Path;
use worker::{Error, Result};

/// A tower read as Stable Diffusion 3 does.
const PENULTIMATE: Reading = Reading {
    leave_out: 1,
    norm: false,
};

/// A tower read to its end.
const LAST: Reading = Reading {
    leave_out: 0,
    norm: true,
};

/// Everything that a model with a transformer consists of, wherever it came from.
pub(super) struct TransformerModel {
    pub name: String,
    pub kind: Kind,
    pub weights: Weights,
    pub towers: Vec<(ClipConfig, Weights, ClipTokenizer)>,
    pub long: Option<LongModel>,
    pub vae: (CodecConfig, Weights),
    pub schedule: NoiseSchedule,
}

impl Kind {
    /// Tokens that the model reads of T5.
    pub(super) fn t5_tokens(&self) -> usize {
        match self {
            Self::Flux(config) if config.guidance_embeds => 512,
            _ => 256,
        }
    }
}

impl TransformerModel {
    /// The parts of a folder as diffusers writes it.
    pub(super) fn of_folder(
        folder: &Folder,
        name: String,
        options: &PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Class {
            _class_name: String,
        }
        progress("configuration");
        let part = folder.part("transformer");
        if !part.exists() {
            return Err(Error::BadModel {
                path: folder.path("transformer"),
                reason: "the model has neither a unet nor a transformer".to_string(),
            });
        }
        let class: Class = part.config()?;
        let mut kind = match class._class_name.as_str() {
            "SD3Transformer2DModel" => Kind::Sd3(part.config()?),
            "FluxTransformer2DModel" => Kind::Flux(part.config()?),
            "ZImageTransformer2DModel" => Kind::ZImage(part.config()?),
            other => {
                return Err(
                    part.bad_config(format!("a denoiser of kind {other} is not implemented"))
                )
            }
        };
        let checked = match &kind {
            Kind::Sd3(config) => config.check(),
            Kind::Flux(config) => config.check(),
            Kind::ZImage(config) => config.check(),
        };
        checked.map_err(|e| part.bad_config(e))?;
        let weights = match &options.transformer {
            Some(path) => open_transformer(path, &mut kind)?,
            None => part.weights()?,
        };
        let tokens = kind.t5_tokens();
        let (towers, long): (&[(&str, &str)], _) = match &kind {
            Kind::Sd3(_) => (
                &[
                    ("text_encoder", "tokenizer"),
                    ("text_encoder_2", "tokenizer_2"),
                ],
                match folder.part("text_encoder_3").exists() {
                    true => Some(LongModel::t5(
                        folder,
                        "text_encoder_3",
                        "tokenizer_3",
                        tokens,
                    )?),
                    false => None,
                },
            ),
            Kind::Flux(_) => (
                &[("text_encoder", "tokenizer")],
                Some(LongModel::t5(
                    folder,
                    "text_encoder_2",
                    "tokenizer_2",
                    tokens,
                )?),
            ),
            Kind::ZImage(_) => (
                &[],
                Some(LongModel::language(
                    folder,
                    "text_encoder",
                    "tokenizer",
                    Z_IMAGE,
                )?),
            ),
        };
        let towers = towers
            .iter()
            .map(|(encoder, tokenizer)| open_tower(folder, encoder, tokenizer));
        let scheduler = folder.bytes("scheduler/scheduler_config.json")?;
        Ok(Self {
            name,
            towers: towers.collect::<Result<_>>()?,
            long,
            vae: match &options.vae {
                Some(path) => open_vae(path, kind.family())?,
                None => open_vae_part(&folder.part("vae"))?,
            },
            schedule: NoiseSchedule::from_config(&String::from_utf8_lossy(&scheduler))?,
            kind,
            weights,
        })
    }
}

impl Pipeline {
    /// Loads the parts onto their devices.
    pub(super) fn from_transformer_model(
        model: TransformerModel,
        place: Placement,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let TransformerModel {
            name,
            kind,
            weights,
            ..
        } = model;
        let family = kind.family();
        let dtype_on = |device: &Device| dtype(options.precision, &weights, device);
        let (text_dtype, dtype, vae_dtype) = (
            dtype_on(&place.text),
            dtype_on(&place.denoiser),
            dtype_on(&place.vae),
        );
        let quantization = weights.most_quantized();
        let offload = options.offload;

        progress("text encoders");
        let long = model.long;
        let long = long.map(|long| LongText::new(long, text_dtype, &place.text, offload));
        let long = long.transpose()?;
        let (reading, layout) = match &kind {
            Kind::Sd3(config) => (
                PENULTIMATE,
                Layout::Both {
                    width: config.joint_attention_dim,
                    missing_tokens: kind.t5_tokens(),
                },
            ),
            _ => (LAST, Layout::Long),
        };
        let concepts = Concept::open_all(&options.embeddings)?;
        let mut towers = Vec::new();
        for (config, mut weights, tokenizer) in model.towers {
            if family == Family::Flux {
                // Its pooled text is the tower's own, whatever else the file has.
                weights = without_projection(&weights);
            }
            towers.push(Tower::new(
                config,
                weights,
                tokenizer,
                &concepts,
                reading,
                text_dtype,
                &place.text,
                offload,
            )?);
        }

        progress("denoiser");
        let second = match &place.guidance {
            GuidancePlace::Second(there) if kind.evaluates_twice() => {
                let (kind, weights) = (kind.clone(), weights.clone());
                let dtype = dtype_on(there);
                let second = TransformerDenoiser::new(kind, weights, dtype, there, offload)?;
                Some(Denoiser::Transformer(Box::new(second)))
            }
            _ => None,
        };
        let denoiser =
            TransformerDenoiser::new(kind.clone(), weights, dtype, &place.denoiser, offload)?;
        progress("VAE");
        let (vae_config, vae_weights) = model.vae;
        let factor = vae_config.factor();
        let latent_channels = vae_config.latent_channels();
        let vae = VaeStage::new(
            vae_config,
            vae_weights,
            vae_dtype,
            &place.vae,
            offload,
            options.vae_tiling,
        )?;
        let taesd = open_taesd(&options, latent_channels, vae_dtype, &place.vae)?;
        let mut schedule = model.schedule;
        if matches!(kind, Kind::Sd3(_)) {
            // The others' pipelines have steps of their own.
            schedule = schedule.with_spacing(Spacing::Linspace);
        }
        let (steps, guidance) = match &kind {
            // Z-Image-Turbo, whose very name says that it is distilled, wants eight.
            Kind::ZImage(_) => (8, 1.0),
            _ if distilled(&name).is_some() => (4, 1.0),
            Kind::Sd3(_) => (28, 4.5),
            Kind::Flux(config) if config.guidance_embeds => (28, 3.5),
            Kind::Flux(_) => (4, 1.0),
        };
        let info = ModelInfo {
            defaults: Defaults {
                width: 128 * factor,
                height: 128 * factor,
                steps,
                guidance,
                sampler: schedule.sampler.unwrap_or(Sampler::Euler),
                schedule: Some(schedule.named.unwrap_or(Schedule::Discrete)),
                unknown_scheduler: schedule.unknown.clone(),
            },
            name,
            family,
            inpainting: false,
            precision: quantization.unwrap_or_else(|| format!("{dtype:?}").to_lowercase()),
            // Patches of 2x2 latents.
            size_multiple: 2 * factor,
        };
        Ok(Self {
            place,
            info,
            schedule,
            text: TextStage::new(towers, long, layout),
            zeros_for_empty: false,
            denoiser: Denoiser::Transformer(Box::new(denoiser)),
            second,
            vae,
            taesd,
            latent_channels,
            factor,
            options,
            loras: Vec::new(),
        })
    }
}

/// A tower whose pooled text is its own.
pub(super) fn without_projection(tower: &Weights) -> Weights {
    tower.renamed(|name| (name != "text_projection.weight").then(|| name.to_string()))
}

/// A transformer of its own, which must be of the model's family.
pub(super) fn open_transformer(path: &Path, kind: &mut Kind) -> Result<Weights> {
    let bad = |reason: String| Error::BadModel {
        path: path.to_path_buf(),
        reason,
    };
    let weights = Weights::open(path)?;
    let Some((found, weights)) = transformer::take(&weights) else {
        return Err(bad(
            "this is not a transformer of FLUX.1, Stable Diffusion 3 or Z-Image".to_string(),
        ));
    };
    let wanted = match kind {
        Kind::Sd3(_) => transformer::Kind::Sd3,
        Kind::Flux(config) => {
            // The difference between dev and schnell.
            config.guidance_embeds =
                weights.contains("time_text_embed.guidance_embedder.linear_1.weight");
            transformer::Kind::Flux
        }
        Kind::ZImage(_) => transformer::Kind::ZImage,
    };
    match found == wanted {
        true => Ok(weights),
        false => Err(bad(format!(
            "this is a transformer of {}, and the model is {}",
            found.label(),
            wanted.label()
        ))),
    }
}
