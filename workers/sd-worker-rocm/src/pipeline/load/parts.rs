//! Parts of a model as files have them, with their configurations.

use crate::info::Family;
use crate::models::clip::ClipConfig;
use crate::models::codec::CodecConfig;
use crate::models::taesd::Taesd;
use crate::pipeline::module::Module;
use crate::pipeline::types::{PipelineOptions, Precision};
use crate::prompt::{ClipTokenizer, Tokenize};
use crate::weights::folder::{Folder, Part};
use crate::weights::{ldm, Weights};
use candle_core::{DType, Device};
use std::path::Path;
use worker::{Error, Result};

/// A tower's tensors under the names that most files have. Older transformers wrote a list of numbers that is always
/// the same, newer ones leave out the first part of the names.
pub(super) fn tower_names(weights: &Weights) -> Weights {
    let bare = weights.contains("embeddings.token_embedding.weight");
    weights.renamed(|name| match name {
        _ if name.ends_with("position_ids") => None,
        _ if bare && !name.starts_with("text_projection.") => Some(format!("text_model.{name}")),
        _ => Some(name.to_string()),
    })
}

/// A text tower of a folder.
pub(super) fn open_tower(
    folder: &Folder,
    encoder: &str,
    tokenizer: &str,
) -> Result<(ClipConfig, Weights, ClipTokenizer)> {
    let part = folder.part(encoder);
    let config = ClipConfig::from_json(part.config()?).map_err(|e| part.bad_config(e))?;
    let tokenizer = open_tokenizer(folder, tokenizer)?;
    config
        .check_end(tokenizer.eos())
        .map_err(|e| part.bad_config(e))?;
    Ok((config, tower_names(&part.weights()?), tokenizer))
}

/// A tower whose pooled text is its own.
pub fn without_projection(tower: &Weights) -> Weights {
    tower.renamed(|name| (name != "text_projection.weight").then(|| name.to_string()))
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
pub(super) fn open_vae_part(part: &Part) -> Result<(CodecConfig, Weights)> {
    let config = CodecConfig::of_class(part.config()?).map_err(|e| part.bad_config(e))?;
    let weights = part.weights()?.expanded();
    let weights = match &config {
        CodecConfig::Kl(_) | CodecConfig::Patched(_) => ldm::modern_vae_names(&weights),
        CodecConfig::Wan(_) | CodecConfig::Ltx(_) | CodecConfig::Dc(_) => weights,
    };
    Ok((config, weights))
}

/// A VAE of its own: a folder, or a file under the original's or diffusers' names.
pub(super) fn open_vae(path: &Path, family: Family) -> Result<(CodecConfig, Weights)> {
    if path.is_dir() {
        return open_vae_part(&Folder::Disk(path.to_path_buf()).part(""));
    }
    let weights = Weights::open(path)?;
    let weights = match weights.contains("first_stage_model.decoder.conv_in.weight") {
        true => weights.under("first_stage_model."),
        false => weights,
    };
    ldm::codec(&weights, family).ok_or_else(|| Error::BadModel {
        path: path.to_path_buf(),
        reason: "this is not a VAE under the original's names; give a folder with config.json for diffusers' names".to_string(),
    })
}

/// The small autoencoder for previews, if one is wanted.
pub(super) fn open_taesd(
    options: &PipelineOptions,
    channels: usize,
    dtype: DType,
    device: &Device,
) -> Result<Option<Module<Taesd>>> {
    let Some(path) = &options.taesd else {
        return Ok(None);
    };
    let weights = match path.is_dir() {
        true => Folder::Disk(path.to_path_buf()).part("").weights()?,
        false => Weights::open(path)?,
    }
    .expanded();
    let build = move |vb: crate::models::VarBuilder| Taesd::new(vb, channels);
    Module::new("TAESD", weights, dtype, device, false, build).map(Some)
}

/// The arithmetic of a model with these weights on this device.
pub(super) fn dtype(precision: Precision, weights: &Weights, device: &Device) -> DType {
    precise(precision, weights, device.is_cpu())
}

/// The arithmetic of a model with these weights on the CPU or on a GPU.
pub(super) fn precise(precision: Precision, weights: &Weights, on_cpu: bool) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::F16 => DType::F16,
        Precision::Bf16 => DType::BF16,
        Precision::Auto if on_cpu => DType::F32,
        Precision::Auto => match weights.dtype() {
            // 8-bit floats have been bf16 before.
            DType::BF16 | DType::F8E4M3 => DType::BF16,
            _ => DType::F16,
        },
    }
}
