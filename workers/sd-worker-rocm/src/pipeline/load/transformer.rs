//! Models whose denoiser is a transformer.

use super::parts::{dtype, open_taesd, open_vae, open_vae_part};
use super::texts::{TextModels, TextSource};
use crate::info::{Defaults, ModelInfo, Purpose, VideoInfo};
use crate::models::codec::CodecConfig;
use crate::pipeline::denoiser::transformer::TransformerDenoiser;
use crate::pipeline::denoiser::Denoiser;
use crate::pipeline::families::{Row, Start, TransformerFamily};
use crate::pipeline::long_text::LongText;
use crate::pipeline::place::{GuidancePlace, Placement};
use crate::pipeline::redux::Shelf;
use crate::pipeline::text::{TextStage, Tower};
use crate::pipeline::types::PipelineOptions;
use crate::pipeline::vae::VaeStage;
use crate::pipeline::vision::{VisionModel, VisionStage};
use crate::pipeline::Pipeline;
use crate::sampling::{NoiseSchedule, Sampler, Schedule};
use crate::textual_inversion::Concept;
use crate::weights::folder::Folder;
use crate::weights::Weights;
use candle_core::Device;
use std::path::Path;
use std::sync::Arc;
use worker::{Error, Result};

/// Everything that a model with a transformer consists of, wherever it came from.
pub(super) struct TransformerModel {
    pub name: String,
    pub family: Arc<dyn TransformerFamily>,
    pub weights: Weights,
    /// Of the network of late steps, where that is another one.
    pub late: Option<Weights>,
    /// What looks at pictures to start from.
    pub vision: Option<VisionModel>,
    pub text: TextModels,
    pub vae: (CodecConfig, Weights),
    pub schedule: NoiseSchedule,
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
        let class = part.config::<Class>()?._class_name;
        let row = Row::of_class(&class).ok_or_else(|| {
            part.bad_config(format!("a denoiser of kind {class} is not implemented"))
        })?;
        let mut family = (row.of_folder)(folder)?;
        let weights = match &options.transformer {
            Some(path) => open_transformer(path, &mut *family)?,
            None => part.weights()?,
        };
        let scheduler = folder.bytes("scheduler/scheduler_config.json")?;
        Ok(Self {
            name,
            text: family.text(&TextSource::Folder(folder))?,
            vae: match &options.vae {
                Some(path) => open_vae(path, family.family())?,
                None => open_vae_part(&folder.part("vae"))?,
            },
            schedule: NoiseSchedule::from_config(&String::from_utf8_lossy(&scheduler))?,
            late: match (family.boundary(), &options.late_transformer) {
                (Some(_), Some(path)) => Some(open_transformer(path, &mut *family)?),
                (Some(_), None) => Some(folder.part("transformer_2").weights()?),
                (None, Some(_)) => {
                    return Err(Error::Usage(
                        "--late-transformer is for models with a second transformer for late steps"
                            .to_string(),
                    ))
                }
                (None, None) => None,
            },
            vision: match family.video() {
                Some(video) if video.views => Some(VisionModel::open(folder)?),
                _ => None,
            },
            family: family.into(),
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
            family,
            weights,
            late,
            vision,
            text,
            ..
        } = model;
        let dtype_on = |device: &Device| dtype(options.precision, &weights, device);
        let (text_dtype, dtype, vae_dtype) = (
            dtype_on(&place.text),
            dtype_on(&place.denoiser),
            dtype_on(&place.vae),
        );
        let quantization = weights.most_quantized();
        let offload = options.offload;

        progress("text encoders");
        let long = (text.long.into_iter())
            .map(|long| LongText::new(long, text_dtype, &place.text, offload))
            .collect::<Result<_>>()?;
        let concepts = Concept::open_all(&options.embeddings)?;
        let mut towers = Vec::new();
        for (config, weights, tokenizer) in text.towers {
            towers.push(Tower::new(
                config,
                weights,
                tokenizer,
                &concepts,
                text.reading,
                text_dtype,
                &place.text,
                offload,
            )?);
        }

        progress("denoiser");
        let second = match &place.guidance {
            GuidancePlace::Second(there) if family.evaluates_twice() => {
                let (family, weights, late) = (family.clone(), weights.clone(), late.clone());
                let dtype = dtype_on(there);
                let second =
                    TransformerDenoiser::new(family, weights, late, dtype, there, offload)?;
                Some(Denoiser::Transformer(Box::new(second)))
            }
            _ => None,
        };
        let denoiser = TransformerDenoiser::new(
            family.clone(),
            weights,
            late,
            dtype,
            &place.denoiser,
            offload,
        )?;
        let vision = vision
            .map(|model| VisionStage::new(model, text_dtype, &place.text, offload))
            .transpose()?;
        progress("VAE");
        let (vae_config, vae_weights) = model.vae;
        let factor = vae_config.factor();
        let latent_channels = vae_config.latent_channels();
        let time_factor = vae_config.time_factor();
        let video = family.video().map(|video| VideoInfo {
            time_factor,
            frames: video.frames,
            fps: video.fps,
            first: video.first,
            last: video.last,
            late: family.boundary().is_some(),
            key_frames: video.start == Start::Latents,
            frame_noise: video.frame_noise.is_some(),
            denoising_decoder: vae_config.denoises(),
        });
        let vae = VaeStage::new(
            vae_config,
            vae_weights,
            vae_dtype,
            &place.vae,
            offload,
            options.vae_tiling,
        )?;
        let taesd = open_taesd(&options, latent_channels, vae_dtype, &place.vae)?;
        let schedule = family.schedule(model.schedule);
        let (steps, guidance) = family.defaults(&name);
        let (width, height) = family.size(factor);
        let info = ModelInfo {
            defaults: Defaults {
                width,
                height,
                steps,
                guidance,
                sampler: schedule.sampler.unwrap_or(Sampler::Euler),
                schedule: Some(schedule.named.unwrap_or(Schedule::Discrete)),
                strength: None,
                unknown_scheduler: schedule.unknown.clone(),
                video,
            },
            name,
            family: family.family(),
            inpainting: family.inpaints(),
            prompt_weights: family.prompt_weights(),
            references: family.references(),
            purpose: Purpose::Pictures,
            refined: false,
            precision: quantization.unwrap_or_else(|| format!("{dtype:?}").to_lowercase()),
            size_multiple: family.patch() * factor,
        };
        Ok(Self {
            place,
            info,
            schedule,
            text: TextStage::new(towers, long, text.compose),
            zeros_for_empty: false,
            denoiser: Denoiser::Transformer(Box::new(denoiser)),
            second,
            vae,
            refiner: None,
            picture_is_scaled: true,
            vision,
            taesd,
            redux: Shelf::new(text_dtype),
            upscaler: None,
            faces: None,
            latent_channels,
            factor,
            time_factor,
            options,
            merged: Default::default(),
            lora_files: Default::default(),
        })
    }
}

/// A transformer of its own, which must be of the model's family.
pub(super) fn open_transformer(path: &Path, family: &mut dyn TransformerFamily) -> Result<Weights> {
    let bad = |reason: String| Error::BadModel {
        path: path.to_path_buf(),
        reason,
    };
    let weights = Weights::open(path)?;
    let Some((found, weights)) = Row::take(&weights) else {
        return Err(bad(format!(
            "this is not a transformer of a family that is implemented: {}",
            Row::labels()
        )));
    };
    let wanted = family.row();
    if found.label != wanted.label {
        return Err(bad(format!(
            "this is a transformer of {}, and the model is {}",
            found.label, wanted.label
        )));
    }
    family.adopt(&weights);
    Ok(weights)
}
