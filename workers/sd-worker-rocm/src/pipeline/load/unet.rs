//! Models whose denoiser is a UNet: Stable Diffusion 1, 2 and XL.

use super::distilled::{distilled, Distilled};
use super::parts::{dtype, open_taesd, open_tower, open_vae, open_vae_part, tower_names};
use super::purpose;
use crate::info::{Defaults, Family, ModelInfo, Purpose};
use crate::models::clip::ClipConfig;
use crate::models::codec::CodecConfig;
use crate::models::config::PerBlock;
use crate::models::unet::config::UNetConfig;
use crate::pipeline::denoiser::unet::UNetDenoiser;
use crate::pipeline::denoiser::Denoiser;
use crate::pipeline::place::{GuidancePlace, Placement};
use crate::pipeline::redux::Shelf;
use crate::pipeline::refiner::Refiner;
use crate::pipeline::text::{composed_towers, Reading, TextStage, Tower};
use crate::pipeline::types::PipelineOptions;
use crate::pipeline::vae::VaeStage;
use crate::pipeline::{builtin, Pipeline};
use crate::prompt::ClipTokenizer;
use crate::sampling::noise_schedule::Spacing;
use crate::sampling::{NoiseSchedule, Prediction, Sampler, Schedule};
use crate::textual_inversion::Concept;
use crate::weights::folder::Folder;
use crate::weights::{ldm, Weights};
use candle_core::{DType, Device};
use std::path::Path;
use std::sync::Arc;
use worker::{Error, Result};

/// Everything that a UNet model consists of, wherever it came from.
pub(super) struct UNetModel {
    name: String,
    pub unet: (UNetConfig, Weights),
    pub vae: (CodecConfig, Weights),
    pub towers: Vec<(ClipConfig, Weights, ClipTokenizer, usize)>,
    schedule: NoiseSchedule,
    /// Whether no negative prompt means zeros instead of an encoded empty text.
    zeros_for_empty: bool,
    purpose: Purpose,
    /// Whether the picture that instructions are on has the scale of latents: CosXL's edits.
    picture_is_scaled: bool,
    /// The model that does the last steps.
    pub refiner: Option<Box<UNetModel>>,
}

/// `model_index.json`, as far as it matters.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct ModelIndex {
    _class_name: String,
    force_zeros_for_empty_prompt: bool,
    is_cosxl_edit: bool,
}

/// What a UNet beside these text encoders is for.
fn purpose(
    unet: &UNetConfig,
    towers: &[(ClipConfig, Weights, ClipTokenizer, usize)],
) -> std::result::Result<Purpose, String> {
    let towers: Vec<&ClipConfig> = towers.iter().map(|tower| &tower.0).collect();
    purpose::of(unet, &towers)
}

impl UNetModel {
    /// The parts of a folder as diffusers writes it.
    pub(super) fn of_folder(
        folder: &Folder,
        name: String,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let index: ModelIndex = folder.json("model_index.json")?;
        let bad_index = |reason: String| Error::BadModel {
            path: folder.path("model_index.json"),
            reason,
        };
        purpose::check_class(&index._class_name).map_err(bad_index)?;
        progress("configuration");
        let unet = folder.part("unet");
        let unet_config: UNetConfig = unet.config()?;
        unet_config.plan().map_err(|e| unet.bad_config(e))?;
        let xl = unet_config.addition_embed_type.is_some();
        let vae = open_vae_part(&folder.part("vae"))?;
        let mut towers = Vec::new();
        for (encoder, tokenizer) in [
            ("text_encoder", "tokenizer"),
            ("text_encoder_2", "tokenizer_2"),
        ] {
            if folder.part(encoder).exists() {
                let (config, weights, tokenizer) = open_tower(folder, encoder, tokenizer)?;
                towers.push((config, weights, tokenizer, usize::from(xl)));
            }
        }
        let purpose = purpose(&unet_config, &towers).map_err(|e| unet.bad_config(e))?;
        let scheduler = folder.bytes("scheduler/scheduler_config.json")?;
        let scheduler = String::from_utf8_lossy(&scheduler);
        Ok(Self {
            name,
            unet: (unet_config, unet.weights()?),
            vae,
            towers,
            schedule: NoiseSchedule::from_config(&scheduler)?,
            zeros_for_empty: index.force_zeros_for_empty_prompt && xl,
            picture_is_scaled: index.is_cosxl_edit,
            purpose,
            refiner: None,
        })
    }

    /// The parts of a single file.
    pub(super) fn of_checkpoint(
        checkpoint: ldm::Checkpoint,
        name: String,
        path: &Path,
    ) -> Result<Self> {
        let bad = |reason: &str| Error::BadModel {
            path: path.to_path_buf(),
            reason: reason.to_string(),
        };
        if checkpoint.towers.is_empty() {
            return Err(bad(
                "the file has a denoiser but no text encoder; use a complete checkpoint or a folder",
            ));
        }
        let prediction = match checkpoint.predicts_velocity {
            true => Prediction::Velocity,
            false => Prediction::Epsilon,
        };
        let mut schedule = NoiseSchedule::stable_diffusion(prediction);
        if checkpoint.zero_terminal_snr {
            schedule = schedule.with_zero_terminal_snr();
        }
        if distilled(&name).is_some() {
            schedule = schedule.with_spacing(Spacing::Trailing);
        }
        let mut towers = Vec::new();
        for tower in checkpoint.towers {
            tower.config.check().map_err(|e| bad(&e))?;
            // OpenCLIP fills up with token 0, which is "!".
            let openclip = tower.config.hidden_act == crate::models::clip::Activation::Gelu;
            let tokenizer =
                ClipTokenizer::from_json(builtin::CLIP_TOKENIZER, openclip.then_some("!"))?;
            let weights = tower_names(&tower.weights);
            towers.push((tower.config, weights, tokenizer, tower.leave_out));
        }
        let purpose = purpose(&checkpoint.unet_config, &towers).map_err(|e| bad(&e))?;
        Ok(Self {
            name,
            zeros_for_empty: checkpoint.unet_config.addition_embed_type.is_some(),
            unet: (checkpoint.unet_config, checkpoint.unet),
            vae: (checkpoint.vae_config.into(), checkpoint.vae),
            towers,
            schedule,
            purpose,
            picture_is_scaled: false,
            refiner: None,
        })
    }
}

impl Pipeline {
    /// Loads the parts onto their devices.
    pub(super) fn from_unet_model(
        model: UNetModel,
        place: Placement,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        if options.transformer.is_some() {
            return Err(Error::Usage(format!(
                "--transformer is for models that have one; the denoiser of {} is a UNet",
                model.name
            )));
        }
        if model.purpose == Purpose::Refiner && model.refiner.is_some() {
            return Err(Error::Usage(format!(
                "{} is a refiner itself; give it with --refiner and the model that it refines with --model",
                model.name
            )));
        }
        let family = family(&model.unet.0);
        let vae_dtype = dtype(options.precision, &model.unet.1, &place.vae);
        let arithmetic = dtype(options.precision, &model.unet.1, &place.denoiser);
        let precision = model.unet.1.most_quantized();
        let precision = precision.unwrap_or_else(|| format!("{arithmetic:?}").to_lowercase());
        let (input, output) = (model.unet.0.in_channels, model.unet.0.out_channels);
        let latents = model.unet.0.sample_size.as_ref().map(sample_size);
        let conditioned = model.unet.0.time_cond_proj_dim.is_some();
        progress("text encoder");
        let text = text_stage(model.towers, &model.unet, &place, &options)?;
        progress("denoiser");
        let refines = model.purpose == Purpose::Refiner;
        let second = match &place.guidance {
            // Its ControlNets are beside it.
            GuidancePlace::Second(there) => Some(denoiser(
                model.unet.clone(),
                refines,
                there,
                there,
                &options,
            )?),
            GuidancePlace::Together | GuidancePlace::InTurn => None,
        };
        let denoiser = denoiser(
            model.unet,
            refines,
            &place.denoiser,
            &place.controlnet,
            &options,
        )?;
        let refiner = match model.refiner {
            Some(refiner) => Some(Refiner::load(*refiner, output, &place, &options)?),
            None => None,
        };
        progress("VAE");
        let (vae_config, vae_weights) = match &options.vae {
            Some(path) => open_vae(path, family)?,
            None => model.vae,
        };
        let taesd_dtype = vae_dtype;
        // XL's autoencoder is known to exceed f16; what else does is noticed when it happens.
        let upcast = vae_dtype == DType::F16 && family == Family::Sdxl && vae_config.force_upcast();
        let vae_dtype = if upcast { DType::F32 } else { vae_dtype };
        let factor = vae_config.factor();
        let latent_channels = vae_config.latent_channels();
        let vae = VaeStage::new(
            vae_config,
            vae_weights,
            vae_dtype,
            &place.vae,
            options.offload,
            options.vae_tiling,
        )?;
        let taesd = open_taesd(&options, latent_channels, taesd_dtype, &place.vae)?;
        let usual = match family {
            Family::Sd1 => (64, 64),
            Family::Sd2 => (96, 96),
            _ => (128, 128),
        };
        let (height, width) = latents.unwrap_or(usual);
        let info = ModelInfo {
            defaults: Defaults {
                // Where the picture is a condition, the steps begin with noise.
                strength: (model.purpose == Purpose::Instructions).then_some(1.0),
                ..defaults(
                    &model.name,
                    (width * factor, height * factor),
                    &model.schedule,
                    conditioned,
                )
            },
            name: model.name,
            family,
            inpainting: input == 2 * output + 1,
            prompt_weights: true,
            references: 0..=0,
            purpose: model.purpose,
            refined: refiner.is_some(),
            precision,
            size_multiple: factor,
        };
        Ok(Self {
            place,
            info,
            schedule: model.schedule,
            text,
            zeros_for_empty: model.zeros_for_empty,
            denoiser,
            second,
            vae,
            refiner,
            picture_is_scaled: model.picture_is_scaled,
            vision: None,
            taesd,
            redux: Shelf::new(arithmetic),
            upscaler: None,
            faces: None,
            latent_channels,
            factor,
            time_factor: 1,
            options,
            merged: Default::default(),
            lora_files: Default::default(),
        })
    }
}

impl Refiner {
    /// Loads what does the last steps of a model with `channels` of latents.
    fn load(
        model: UNetModel,
        channels: usize,
        place: &Placement,
        options: &PipelineOptions,
    ) -> Result<Self> {
        let theirs = (model.unet.0.in_channels, model.unet.0.out_channels);
        if theirs != (channels, channels) {
            return Err(Error::Usage(format!(
                "--refiner {}: its denoiser takes {} channels for {}, the model's latents have {channels}",
                model.name, theirs.0, theirs.1
            )));
        }
        Ok(Self {
            text: text_stage(model.towers, &model.unet, place, options)?,
            denoiser: denoiser(
                model.unet,
                model.purpose == Purpose::Refiner,
                &place.denoiser,
                &place.controlnet,
                options,
            )?,
            schedule: model.schedule,
            zeros_for_empty: model.zeros_for_empty,
        })
    }
}

/// Loads the text encoders of a UNet.
fn text_stage(
    towers: Vec<(ClipConfig, Weights, ClipTokenizer, usize)>,
    unet: &(UNetConfig, Weights),
    place: &Placement,
    options: &PipelineOptions,
) -> Result<TextStage> {
    let concepts = Concept::open_all(&options.embeddings)?;
    let norm = family(&unet.0) != Family::Sdxl;
    let towers = towers.into_iter();
    let towers = towers.map(|(config, weights, tokenizer, leave_out)| {
        Tower::new(
            config,
            weights,
            tokenizer,
            &concepts,
            Reading { leave_out, norm },
            dtype(options.precision, &unet.1, &place.text),
            &place.text,
            options.offload,
        )
    });
    let towers = towers.collect::<Result<_>>()?;
    Ok(TextStage::new(
        towers,
        Vec::new(),
        Arc::new(composed_towers),
    ))
}

/// Loads a UNet, which may be a refiner's; `controls` is where its ControlNets are to be.
fn denoiser(
    (config, weights): (UNetConfig, Weights),
    refines: bool,
    device: &Device,
    controls: &Device,
    options: &PipelineOptions,
) -> Result<Denoiser> {
    let dtype = dtype(options.precision, &weights, device);
    let unet = (config, refines);
    let unet = UNetDenoiser::new(unet, weights, dtype, device, controls, options.offload)?;
    let encoder = options.image_encoder.clone();
    let unet = unet.with_image_encoder(encoder, options.offload);
    Ok(Denoiser::UNet(Box::new(unet)))
}

fn family(config: &UNetConfig) -> Family {
    match &config.cross_attention_dim {
        _ if config.addition_embed_type.is_some() => Family::Sdxl,
        PerBlock::One(1024) => Family::Sd2,
        _ => Family::Sd1,
    }
}

fn sample_size(size: &PerBlock<usize>) -> (usize, usize) {
    match size {
        PerBlock::One(size) => (*size, *size),
        PerBlock::Each(sizes) => (
            sizes.first().copied().unwrap_or(64),
            sizes.get(1).or(sizes.first()).copied().unwrap_or(64),
        ),
    }
}

/// What suits a model of this name and size. `conditioned` says that its guidance is a condition of the network, as
/// only distilled ones have it.
fn defaults(
    name: &str,
    (width, height): (usize, usize),
    schedule: &NoiseSchedule,
    conditioned: bool,
) -> Defaults {
    let distilled = distilled(name);
    let few = conditioned || distilled.is_some();
    Defaults {
        width,
        height,
        steps: if few { 4 } else { 20 },
        guidance: match (few, builtin::GUIDANCE.iter().find(|(own, _)| *own == name)) {
            (true, _) => 1.0,
            (false, Some((_, guidance))) => *guidance,
            (false, None) => 7.0,
        },
        sampler: match distilled {
            Some(Distilled::Consistency) => Sampler::Lcm,
            _ => schedule.sampler.unwrap_or(Sampler::EulerAncestral),
        },
        schedule: Some(schedule.named.unwrap_or(Schedule::Discrete)),
        strength: None,
        unknown_scheduler: schedule.unknown.clone(),
        video: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_distilled_models_get_few_steps() {
        let schedule = NoiseSchedule::stable_diffusion(Prediction::Epsilon);
        let of = |name: &str| {
            let defaults = defaults(name, (512, 512), &schedule, false);
            (defaults.steps, defaults.guidance, defaults.sampler)
        };
        let usual = (20, 7.0, Sampler::EulerAncestral);
        assert_eq!(of("hyperrealism_v3"), usual);
        assert_eq!(of("turbocharged"), usual);
        assert_eq!(of("sd-turbo"), (4, 1.0, Sampler::EulerAncestral));
        assert_eq!(of("LCM_Dreamshaper_v7"), (4, 1.0, Sampler::Lcm));
    }
}
