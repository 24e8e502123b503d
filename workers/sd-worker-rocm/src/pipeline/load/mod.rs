//! From files to a pipeline.

mod distilled;
mod packed;
mod transformer;

use super::builtin;
use super::denoiser::{Denoiser, UNetDenoiser};
use super::part::Part;
use super::text::{Layout, Reading, TextStage, Tower};
use super::types::{Defaults, Family, ModelInfo, PipelineOptions, Precision};
use super::vae::VaeStage;
use super::Pipeline;
use crate::models::clip::ClipConfig;
use crate::models::taesd::Taesd;
use crate::models::unet::config::UNetConfig;
use crate::models::vae::VaeConfig;
use crate::prompt::ClipTokenizer;
use crate::sampling::noise_schedule::Spacing;
use crate::sampling::{NoiseSchedule, Prediction, Sampler, Schedule};
use crate::textual_inversion::Concept;
use crate::weights::folder::{Folder, Part as FolderPart};
use crate::weights::packed::Packed;
use crate::weights::{ldm, Weights};
use candle_core::{DType, Device};
use distilled::{distilled, Distilled};
use std::path::Path;
use worker::{Error, Result};

/// Everything that a UNet model consists of, wherever it came from.
struct UNetModel {
    name: String,
    unet: (UNetConfig, Weights),
    vae: (VaeConfig, Weights),
    towers: Vec<(ClipConfig, Weights, ClipTokenizer, usize)>,
    schedule: NoiseSchedule,
    /// Whether no negative prompt means zeros instead of an encoded empty text.
    zeros_for_empty: bool,
}

/// `model_index.json`, as far as it matters.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct ModelIndex {
    force_zeros_for_empty_prompt: bool,
}

impl Pipeline {
    /// Loads a model: a folder as diffusers writes it, or a single file. `progress` is told what is being read.
    ///
    /// # Errors
    /// [`Error::BadModel`] if the model is damaged, incomplete or of a kind that is not implemented, which is named; the device's errors.
    pub fn load(
        path: &Path,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let name = path.file_stem().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        Self::load_as(name, path, device, options, progress)
    }

    /// The same under a name of its own.
    ///
    /// # Errors
    /// Those of [`Pipeline::load`].
    pub fn load_as(
        name: String,
        path: &Path,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        if path.is_dir() {
            let folder = Folder::Disk(path.to_path_buf());
            return Self::from_folder(&folder, name, device, options, progress);
        }
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        progress("checkpoint");
        let weights = Weights::open(path)?;
        if let Some(packed) = Packed::take_apart(&weights) {
            return match packed.is_model() {
                true => Self::from_packed(packed, path, name, device, options, progress),
                false => Err(bad(format!(
                    "this file has a transformer of {} without the rest of the model; give the model's folder or id with --model and this file with --transformer",
                    packed.kind.label()
                ))),
            };
        }
        if !ldm::is_checkpoint(&weights) {
            return Err(bad(
                "this file is no checkpoint of a kind that is implemented (Stable Diffusion 1, 2, XL and 3, FLUX.1 and Z-Image as single files)"
                    .to_string(),
            ));
        }
        let checkpoint = ldm::take_apart(&weights).map_err(bad)?;
        let model = checkpoint_model(checkpoint, name, path)?;
        Self::from_unet_model(model, device, options, progress)
    }

    /// The model that the program carries.
    ///
    /// # Errors
    /// The device's.
    pub fn builtin(device: &Device, options: PipelineOptions) -> Result<Self> {
        let name = builtin::NAME.to_string();
        Self::from_folder(&builtin::FOLDER, name, device, options, &mut |_| {})
    }

    fn from_folder(
        folder: &Folder,
        name: String,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        if !folder.contains("model_index.json") {
            return Err(Error::BadModel {
                path: folder.path("model_index.json"),
                reason: "there is no such file; a model's folder has it, with a folder for each part beside it".to_string(),
            });
        }
        let index: ModelIndex = folder.json("model_index.json")?;
        if !folder.part("unet").exists() {
            return Self::from_transformer(folder, name, device, options, progress);
        }
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
        let scheduler = folder.bytes("scheduler/scheduler_config.json")?;
        let scheduler = String::from_utf8_lossy(&scheduler);
        let model = UNetModel {
            name,
            unet: (unet_config, unet.weights()?),
            vae,
            towers,
            schedule: NoiseSchedule::from_config(&scheduler)?,
            zeros_for_empty: index.force_zeros_for_empty_prompt && xl,
        };
        Self::from_unet_model(model, device, options, progress)
    }

    fn from_unet_model(
        model: UNetModel,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        if options.transformer.is_some() {
            return Err(Error::Usage(format!(
                "--transformer is for models that have one; the denoiser of {} is a UNet",
                model.name
            )));
        }
        let (unet_config, unet_weights) = model.unet;
        let dtype = dtype(options.precision, &unet_weights, device);
        let family = family(&unet_config);
        let concepts = Concept::open_all(&options.embeddings)?;
        progress("text encoder");
        let mut towers = Vec::new();
        for (config, weights, tokenizer, leave_out) in model.towers {
            let reading = Reading {
                leave_out,
                norm: family != Family::Sdxl,
            };
            towers.push(Tower::new(
                config,
                weights,
                tokenizer,
                &concepts,
                reading,
                dtype,
                device,
                options.offload,
            )?);
        }
        progress("denoiser");
        let inpainting = unet_config.in_channels != unet_config.out_channels;
        let latents = unet_config.sample_size.as_ref().map(sample_size);
        let denoiser =
            UNetDenoiser::new(unet_config, unet_weights, dtype, device, options.offload)?;
        progress("VAE");
        let (vae_config, vae_weights) = match &options.vae {
            Some(path) => open_vae(path, family)?,
            None => model.vae,
        };
        // XL's autoencoder is known to exceed f16; what else does is noticed when it happens.
        let upcast = dtype == DType::F16 && family == Family::Sdxl && vae_config.force_upcast;
        let vae_dtype = if upcast { DType::F32 } else { dtype };
        let factor = vae_config.factor();
        let latent_channels = vae_config.latent_channels;
        let vae = VaeStage::new(
            vae_config,
            vae_weights,
            vae_dtype,
            device,
            options.offload,
            options.vae_tiling,
        )?;
        let taesd = open_taesd(&options, latent_channels, dtype, device)?;
        let usual = match family {
            Family::Sd1 => (64, 64),
            Family::Sd2 => (96, 96),
            _ => (128, 128),
        };
        let (height, width) = latents.unwrap_or(usual);
        let conditioned = denoiser.config.time_cond_proj_dim.is_some();
        let info = ModelInfo {
            defaults: defaults(
                &model.name,
                (width * factor, height * factor),
                &model.schedule,
                conditioned,
            ),
            name: model.name,
            family,
            inpainting,
            precision: format!("{dtype:?}").to_lowercase(),
            size_multiple: factor,
        };
        Ok(Self {
            device: device.clone(),
            info,
            schedule: model.schedule,
            text: TextStage::new(towers, None, Layout::Towers),
            zeros_for_empty: model.zeros_for_empty,
            denoiser: Denoiser::UNet(Box::new(denoiser)),
            vae,
            taesd,
            latent_channels,
            factor,
            options,
            loras: Vec::new(),
        })
    }
}

/// A tower's tensors under the names that most files have. Older transformers wrote a list of numbers that is always the same, newer ones leave out the first part of the
/// names.
fn tower_names(weights: &Weights) -> Weights {
    let bare = weights.contains("embeddings.token_embedding.weight");
    weights.renamed(|name| match name {
        _ if name.ends_with("position_ids") => None,
        _ if bare && !name.starts_with("text_projection.") => Some(format!("text_model.{name}")),
        _ => Some(name.to_string()),
    })
}

fn checkpoint_model(checkpoint: ldm::Checkpoint, name: String, path: &Path) -> Result<UNetModel> {
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
        let tokenizer = ClipTokenizer::from_json(builtin::CLIP_TOKENIZER, openclip.then_some("!"))?;
        let weights = tower_names(&tower.weights);
        towers.push((tower.config, weights, tokenizer, tower.leave_out));
    }
    Ok(UNetModel {
        name,
        zeros_for_empty: checkpoint.unet_config.addition_embed_type.is_some(),
        unet: (checkpoint.unet_config, checkpoint.unet),
        vae: (checkpoint.vae_config, checkpoint.vae),
        towers,
        schedule,
    })
}

/// A text tower of a folder.
fn open_tower(
    folder: &Folder,
    encoder: &str,
    tokenizer: &str,
) -> Result<(ClipConfig, Weights, ClipTokenizer)> {
    let part = folder.part(encoder);
    let config: ClipConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    let tokenizer = open_tokenizer(folder, tokenizer)?;
    Ok((config, tower_names(&part.weights()?), tokenizer))
}

fn open_tokenizer(folder: &Folder, name: &str) -> Result<ClipTokenizer> {
    match folder {
        Folder::Disk(path) => ClipTokenizer::open(&path.join(name)),
        Folder::Embedded(_) => {
            let json = folder.bytes(&format!("{name}/tokenizer.json"))?;
            ClipTokenizer::from_json(&json, None)
        }
    }
}

/// A VAE with its configuration.
fn open_vae_part(part: &FolderPart) -> Result<(VaeConfig, Weights)> {
    let config: VaeConfig = part.config()?;
    config.check().map_err(|e| part.bad_config(e))?;
    Ok((config, ldm::modern_vae_names(&part.weights()?)))
}

/// A VAE of its own: a folder, or a file under the original's or diffusers' names.
fn open_vae(path: &Path, family: Family) -> Result<(VaeConfig, Weights)> {
    if path.is_dir() {
        return open_vae_part(&Folder::Disk(path.to_path_buf()).part(""));
    }
    let weights = Weights::open(path)?;
    let weights = match weights.contains("first_stage_model.decoder.conv_in.weight") {
        true => weights.under("first_stage_model."),
        false => weights,
    };
    ldm::vae(&weights, family).ok_or_else(|| Error::BadModel {
        path: path.to_path_buf(),
        reason: "this is no VAE under the original's names; give a folder with config.json for diffusers' names".to_string(),
    })
}

/// The small autoencoder for previews, if one is wanted.
fn open_taesd(
    options: &PipelineOptions,
    channels: usize,
    dtype: DType,
    device: &Device,
) -> Result<Option<Part<Taesd>>> {
    let Some(path) = &options.taesd else {
        return Ok(None);
    };
    let weights = match path.is_dir() {
        true => Folder::Disk(path.to_path_buf()).part("").weights()?,
        false => Weights::open(path)?,
    };
    let build = move |vb: crate::models::VarBuilder| Taesd::new(vb, channels);
    Part::new("TAESD", weights, dtype, device, false, build).map(Some)
}

fn dtype(precision: Precision, weights: &Weights, device: &Device) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::F16 => DType::F16,
        Precision::Bf16 => DType::BF16,
        Precision::Auto if device.is_cpu() => DType::F32,
        Precision::Auto => match weights.dtype() {
            // 8-bit floats have been bf16 before.
            DType::BF16 | DType::F8E4M3 => DType::BF16,
            _ => DType::F16,
        },
    }
}

fn family(config: &UNetConfig) -> Family {
    use crate::models::config::PerBlock;
    match &config.cross_attention_dim {
        _ if config.addition_embed_type.is_some() => Family::Sdxl,
        PerBlock::One(1024) => Family::Sd2,
        _ => Family::Sd1,
    }
}

fn sample_size(size: &crate::models::config::PerBlock<usize>) -> (usize, usize) {
    use crate::models::config::PerBlock;
    match size {
        PerBlock::One(size) => (*size, *size),
        PerBlock::Each(sizes) => (
            sizes.first().copied().unwrap_or(64),
            sizes.get(1).or(sizes.first()).copied().unwrap_or(64),
        ),
    }
}

/// What suits a model of this name and size. `conditioned` says that its guidance is a condition of the network, as only distilled ones have it.
fn defaults(
    name: &str,
    (width, height): (usize, usize),
    schedule: &NoiseSchedule,
    conditioned: bool,
) -> Defaults {
    let distilled = distilled(name);
    let few = conditioned || distilled.is_some();
    let sampler = match distilled {
        Some(Distilled::Consistency) => Sampler::Lcm,
        _ => schedule.sampler.unwrap_or(Sampler::EulerAncestral),
    };
    Defaults {
        width,
        height,
        steps: if few { 4 } else { 20 },
        guidance: match (few, name) {
            (true, _) => 1.0,
            (false, builtin::NAME) => 5.0,
            _ => 7.0,
        },
        sampler: sampler.label().to_string(),
        schedule: Schedule::Discrete.label().to_string(),
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
        let usual = (20, 7.0, "Euler a".to_string());
        assert_eq!(of("hyperrealism_v3"), usual);
        assert_eq!(of("turbocharged"), usual);
        assert_eq!(of("sd-turbo"), (4, 1.0, "Euler a".to_string()));
        assert_eq!(of("LCM_Dreamshaper_v7"), (4, 1.0, "LCM".to_string()));
    }
}
