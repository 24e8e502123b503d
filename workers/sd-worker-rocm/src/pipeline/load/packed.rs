//! Single files that have a transformer with other parts of its model; what they lack comes from a folder beside.

use super::parts::{open_tower, open_vae, tower_names};
use super::transformer::{open_transformer, without_projection, TransformerModel};
use crate::models::clip::ClipConfig;
use crate::pipeline::builtin;
use crate::pipeline::denoiser::transformer::Kind;
use crate::pipeline::long_text::{qwen3, LongModel, Z_IMAGE};
use crate::pipeline::types::PipelineOptions;
use crate::prompt::ClipTokenizer;
use crate::sampling::NoiseSchedule;
use crate::weights::folder::Folder;
use crate::weights::packed::{flux_config, sd3_config, z_image_config, Packed};
use crate::weights::{ldm, transformer, Weights};
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// The schedules of these families, which their files do not have.
const SHIFTED: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#;
const UNSHIFTED: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 1.0}"#;
const SHIFTED_BY_SIZE: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": true, "base_shift": 0.5, "max_shift": 1.15,
    "base_image_seq_len": 256, "max_image_seq_len": 4096}"#;

impl TransformerModel {
    /// The parts of a single file, and of what is given beside it.
    pub(super) fn of_packed(
        packed: Packed,
        path: &Path,
        name: String,
        options: &PipelineOptions,
    ) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let mut weights = packed.transformer;
        let kind = match packed.kind {
            transformer::Kind::Sd3 => sd3_config(&weights).map(Kind::Sd3),
            transformer::Kind::Flux => flux_config(&weights).map(Kind::Flux),
            transformer::Kind::ZImage => z_image_config(&weights).map(Kind::ZImage),
        };
        let mut kind = kind.map_err(bad)?;
        if let Some(path) = &options.transformer {
            weights = open_transformer(path, &mut kind)?;
        }
        let vae = match &options.vae {
            Some(path) => open_vae(path, kind.family())?,
            None => {
                let own = ldm::vae(&packed.vae, kind.family());
                let (config, weights) = own.ok_or_else(|| {
                    bad("the file has no complete VAE; give one with --vae".to_string())
                })?;
                (config.into(), weights)
            }
        };
        vae.0.check().map_err(bad)?;
        let beside = Beside {
            file: path,
            folder: options.text_encoders.as_deref(),
        };
        let tokens = kind.t5_tokens();
        let clip_l = |own| beside.tower(own, "clip_l", "text_encoder", "tokenizer");
        let (towers, long, schedule) = match &kind {
            Kind::Sd3(_) => (
                vec![
                    clip_l(packed.clip_l)?,
                    beside.tower(packed.clip_g, "clip_g", "text_encoder_2", "tokenizer_2")?,
                ],
                beside.t5(packed.t5, "text_encoder_3", "tokenizer_3", tokens)?,
                SHIFTED,
            ),
            Kind::Flux(config) => {
                let long = beside.t5(packed.t5, "text_encoder_2", "tokenizer_2", tokens)?;
                (
                    vec![clip_l(packed.clip_l)?],
                    Some(long.ok_or_else(|| beside.lacks("T5", "t5xxl", "text_encoder_2"))?),
                    match config.guidance_embeds {
                        true => SHIFTED_BY_SIZE,
                        false => UNSHIFTED,
                    },
                )
            }
            Kind::ZImage(_) => (Vec::new(), Some(beside.qwen(packed.qwen)?), SHIFTED),
        };
        Ok(Self {
            name,
            kind,
            weights,
            towers,
            long,
            vae,
            schedule: NoiseSchedule::from_config(schedule)?,
        })
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

    /// A safetensors file of the folder, or of the one that makers' repositories have in it, whose name has this
    /// prefix.
    fn named(&self, prefix: &str) -> Option<PathBuf> {
        let folder = self.folder?;
        let mut found: Vec<PathBuf> = [folder.to_path_buf(), folder.join("text_encoders")]
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with(prefix) && name.ends_with(".safetensors")
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

    /// A language model's weights, the file's own or from a file of the folder, and where they are.
    fn weights(&self, own: Weights, prefix: &str) -> Result<Option<(PathBuf, Weights)>> {
        if !own.is_empty() {
            return Ok(Some((self.file.to_path_buf(), own)));
        }
        let path = self.named(prefix);
        path.map(|path| Ok((path.clone(), Weights::open(&path)?)))
            .transpose()
    }

    /// The folder and the file in it that has a language model's tokenizer.
    fn tokenizer(&self, what: &str, part: &str) -> Result<(Folder, String)> {
        let name = format!("{part}/tokenizer.json");
        let folder = self.folder.map(|folder| Folder::Disk(folder.to_path_buf()));
        let found = folder.and_then(|folder| {
            let names = [name.clone(), "tokenizer.json".to_string()];
            let name = names.into_iter().find(|name| folder.contains(name))?;
            Some((folder, name))
        });
        found.ok_or_else(|| Error::BadModel {
            path: self.file.to_path_buf(),
            reason: format!(
                "{what} is there without its tokenizer, which no file of weights has; give a folder that has {name} (as the model's repository has it) with --text-encoders"
            ),
        })
    }

    /// T5's encoder.
    fn t5(
        &self,
        own: Weights,
        part: &str,
        tokenizer: &str,
        tokens: usize,
    ) -> Result<Option<LongModel>> {
        if let Some(folder) = self.part(part).filter(|_| own.is_empty()) {
            return LongModel::t5(&folder, part, tokenizer, tokens).map(Some);
        }
        let Some((path, weights)) = self.weights(own, "t5xxl")? else {
            return Ok(None);
        };
        let (folder, name) = self.tokenizer("T5", tokenizer)?;
        let shared = weights.contains("shared.weight");
        let weights = weights.renamed(|name| {
            Some(match name {
                "encoder.embed_tokens.weight" if !shared => "shared.weight".to_string(),
                other => other.to_string(),
            })
        });
        LongModel::t5_alone(&path, weights, &folder, &name, tokens).map(Some)
    }

    /// Qwen3.
    fn qwen(&self, own: Weights) -> Result<LongModel> {
        const PART: &str = "text_encoder";
        if let Some(folder) = self.part(PART).filter(|_| own.is_empty()) {
            return LongModel::language(&folder, PART, "tokenizer", Z_IMAGE);
        }
        let Some((path, weights)) = self.weights(own, "qwen_3_4b")? else {
            return Err(self.lacks("Qwen3", "qwen_3_4b", PART));
        };
        let (folder, name) = self.tokenizer("Qwen3", "tokenizer")?;
        LongModel::language_alone(&path, &weights, &qwen3(), &folder, &name, Z_IMAGE)
    }
}
