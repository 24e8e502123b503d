//! Single files that have a transformer with other parts of its model; what they lack comes from a folder beside.

use super::transformer::{open_transformer, without_projection, TransformerModel};
use super::{builtin, open_tower, open_vae, tower_names};
use crate::models::clip::ClipConfig;
use crate::pipeline::long_text::LongModel;
use crate::pipeline::transformer::Kind;
use crate::pipeline::types::PipelineOptions;
use crate::pipeline::Pipeline;
use crate::prompt::ClipTokenizer;
use crate::sampling::NoiseSchedule;
use crate::weights::folder::Folder;
use crate::weights::packed::{flux_config, sd3_config, Packed};
use crate::weights::{ldm, transformer, Weights};
use candle_core::Device;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// The schedules of these families, which their files do not have.
const SHIFTED: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#;
const UNSHIFTED: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0}"#;
const SHIFTED_BY_SIZE: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": true, "base_shift": 0.5, "max_shift": 1.15,
    "base_image_seq_len": 256, "max_image_seq_len": 4096}"#;

impl Pipeline {
    pub(super) fn from_packed(
        packed: Packed,
        path: &Path,
        name: String,
        device: &Device,
        options: PipelineOptions,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let mut weights = packed.transformer;
        let kind = match packed.kind {
            transformer::Kind::Sd3 => sd3_config(&weights).map(Kind::Sd3),
            transformer::Kind::Flux => flux_config(&weights).map(Kind::Flux),
            transformer::Kind::ZImage => Err(
                "complete single files of Z-Image are not implemented; give the model's folder or id with --model and this file with --transformer"
                    .to_string(),
            ),
        };
        let mut kind = kind.map_err(bad)?;
        if let Some(path) = &options.transformer {
            weights = open_transformer(path, &mut kind)?;
        }
        let vae = match &options.vae {
            Some(path) => open_vae(path, kind.family())?,
            None => ldm::vae(&packed.vae, kind.family()).ok_or_else(|| {
                bad("the file has no complete VAE; give one with --vae".to_string())
            })?,
        };
        vae.0.check().map_err(bad)?;
        let beside = Beside {
            file: path,
            folder: options.text_encoders.as_deref(),
        };
        let mut towers =
            vec![beside.tower(packed.clip_l, "clip_l", "text_encoder", "tokenizer")?];
        let (part, tokenizer, schedule) = match &kind {
            Kind::Sd3(_) => {
                let tower = beside.tower(packed.clip_g, "clip_g", "text_encoder_2", "tokenizer_2");
                towers.push(tower?);
                ("text_encoder_3", "tokenizer_3", SHIFTED)
            }
            Kind::Flux(config) if config.guidance_embeds => {
                ("text_encoder_2", "tokenizer_2", SHIFTED_BY_SIZE)
            }
            _ => ("text_encoder_2", "tokenizer_2", UNSHIFTED),
        };
        let long = beside.t5(packed.t5, part, tokenizer, kind.t5_tokens())?;
        if long.is_none() && !matches!(kind, Kind::Sd3(_)) {
            return Err(beside.lacks("T5", "t5xxl", part));
        }
        let model = TransformerModel {
            name,
            kind,
            weights,
            towers,
            long,
            vae,
            schedule: NoiseSchedule::from_config(schedule)?,
        };
        Self::from_transformer_model(model, device, options, progress)
    }
}

/// Where what a file lacks is looked for.
struct Beside<'a> {
    file: &'a Path,
    folder: Option<&'a Path>,
}

impl Beside<'_> {
    fn lacks(&self, what: &str, file: &str, part: &str) -> Error {
        let reason = match self.folder {
            None => format!("the file has no {what}; give a folder that has {file}.safetensors or {part} with --text-encoders"),
            Some(folder) => format!(
                "the file has no {what}, and {} has neither {file}.safetensors nor {part}",
                folder.display()
            ),
        };
        Error::BadModel {
            path: self.file.to_path_buf(),
            reason,
        }
    }

    /// The folder, if it has this part of a model, with configuration.
    fn part(&self, name: &str) -> Option<Folder> {
        let folder = Folder::Disk(self.folder?.to_path_buf());
        folder.part(name).exists().then_some(folder)
    }

    /// A safetensors file of the folder, or of the one that makers' repositories have in it, whose name begins so.
    fn named(&self, beginning: &str) -> Option<PathBuf> {
        let folder = self.folder?;
        let mut found: Vec<PathBuf> = [folder.to_path_buf(), folder.join("text_encoders")]
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(beginning) && name.ends_with(".safetensors")
            })
            .collect();
        // 16 bits sort before 8.
        found.sort();
        found.into_iter().next()
    }

    /// A text tower, the file's own or from beside. CLIP's vocabulary is known, unless the folder has another.
    fn tower(
        &self,
        own: Weights,
        name: &str,
        part: &str,
        tokenizer: &str,
    ) -> Result<(ClipConfig, Weights, ClipTokenizer)> {
        let (path, weights) = match own.is_empty() {
            false => (self.file.to_path_buf(), own),
            true => match (self.part(part), self.named(name)) {
                (Some(folder), _) => return open_tower(&folder, part, tokenizer),
                (None, Some(path)) => {
                    let weights = Weights::open(&path)?;
                    (path, weights)
                }
                (None, None) => {
                    return Err(self.lacks(&format!("text encoder {name}"), name, part))
                }
            },
        };
        let bad = |reason: String| Error::BadModel {
            path: path.clone(),
            reason: format!("{name}: {reason}"),
        };
        let openclip = name == "clip_g";
        let mut weights = tower_names(&weights);
        if !openclip {
            // CLIP's own pooled text is read as it is.
            weights = without_projection(&weights);
        }
        let config = ldm::clip_config(&weights, openclip)
            .ok_or_else(|| bad("the text tower is incomplete".to_string()))?;
        config.check().map_err(bad)?;
        let folder = self.folder.map(|folder| folder.join(tokenizer));
        let tokenizer = match folder.filter(|folder| folder.is_dir()) {
            Some(folder) => ClipTokenizer::open(&folder)?,
            None => ClipTokenizer::from_json(builtin::CLIP_TOKENIZER, openclip.then_some("!"))?,
        };
        Ok((config, weights, tokenizer))
    }

    /// T5's encoder, the file's own or from beside.
    fn t5(
        &self,
        own: Weights,
        part: &str,
        tokenizer: &str,
        tokens: usize,
    ) -> Result<Option<LongModel>> {
        let (path, weights) = match own.is_empty() {
            false => (self.file.to_path_buf(), own),
            true => match (self.part(part), self.named("t5xxl")) {
                (Some(folder), _) => {
                    return LongModel::t5(&folder, part, tokenizer, tokens).map(Some)
                }
                (None, Some(path)) => {
                    let weights = Weights::open(&path)?;
                    (path, weights)
                }
                (None, None) => return Ok(None),
            },
        };
        let folder = self.folder.map(|folder| Folder::Disk(folder.to_path_buf()));
        let names = [
            format!("{tokenizer}/tokenizer.json"),
            "tokenizer.json".to_string(),
        ];
        let found = folder.as_ref().and_then(|folder| {
            let name = names.iter().find(|name| folder.contains(name))?;
            Some((folder, name))
        });
        let Some((folder, name)) = found else {
            return Err(Error::BadModel {
                path,
                reason: format!(
                    "T5 is there without its tokenizer, which no file of weights has; give a folder that has {} (T5's, as the model's repository has it) with --text-encoders",
                    names[0]
                ),
            });
        };
        let weights = match weights.contains("shared.weight") {
            true => weights,
            false => weights.renamed(|name| {
                Some(match name {
                    "encoder.embed_tokens.weight" => "shared.weight".to_string(),
                    other => other.to_string(),
                })
            }),
        };
        LongModel::t5_alone(&path, weights, folder, name, tokens).map(Some)
    }
}
