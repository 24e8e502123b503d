//! Where a model's text encoders come from: its folder, or a single file and a folder beside it.

use super::parts::{open_tower, tower_names, without_projection};
use crate::models::clip::ClipConfig;
use crate::pipeline::builtin;
use crate::pipeline::language::{Question, Show};
use crate::pipeline::long_text::{LongModel, Padding};
use crate::pipeline::text::{Compose, Reading};
use crate::prompt::ClipTokenizer;
use crate::weights::folder::Folder;
use crate::weights::{ldm, Weights};
use serde_json::Value;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// A text tower's files.
pub type TowerFiles = (ClipConfig, Weights, ClipTokenizer);

/// A model's text encoders, and how they are read.
pub struct TextModels {
    /// CLIP's and OpenCLIP's towers.
    pub towers: Vec<TowerFiles>,
    /// Language models.
    pub long: Vec<LongModel>,
    /// How the towers are read.
    pub reading: Reading,
    /// What the denoiser gets.
    pub compose: Compose,
}

impl TextModels {
    /// The same, of which what is in 8-bit floats is loaded as wider numbers.
    pub fn expand(&mut self) {
        for tower in &mut self.towers {
            tower.1 = std::mem::take(&mut tower.1).expanded();
        }
        let long = std::mem::take(&mut self.long);
        self.long = long.into_iter().map(LongModel::expanded).collect();
    }
}

/// Where a family's language model lies, and what it is asked.
pub struct Decoder {
    /// Name for messages.
    pub label: &'static str,
    /// Its name among the text encoders of single files, as ComfyUI packs them.
    pub own: &'static str,
    /// What the names of files begin with that have it alone.
    pub file: &'static str,
    /// Its part of a folder.
    pub part: &'static str,
    /// The part that has its tokenizer.
    pub tokenizer: &'static str,
    /// What its configuration files say beside sizes.
    pub known: Value,
    /// What it is asked.
    pub question: Question,
}

/// Where a model's text encoders come from.
pub enum TextSource<'a> {
    /// A folder as diffusers writes it.
    Folder(&'a Folder),
    /// A single file.
    File(Beside<'a>),
}

impl TextSource<'_> {
    /// A text tower; `name` is that of single files, `clip_l` or `clip_g`, `part` and `tokenizer` are a folder's.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn tower(&self, name: &str, part: &str, tokenizer: &str) -> Result<TowerFiles> {
        match self {
            Self::Folder(folder) => open_tower(folder, part, tokenizer),
            Self::File(beside) => beside.tower(name, part, tokenizer),
        }
    }

    /// T5's encoder, if the model has it, for prompts of so many tokens.
    ///
    /// # Errors
    /// If it is damaged, or its tokenizer is missing.
    pub fn t5(&self, part: &str, tokenizer: &str, tokens: usize) -> Result<Option<LongModel>> {
        match self {
            Self::Folder(folder) if folder.part(part).exists() => {
                LongModel::t5(folder, part, tokenizer, tokens).map(Some)
            }
            Self::Folder(_) => Ok(None),
            Self::File(beside) => beside.t5(part, tokenizer, tokens),
        }
    }

    /// UMT5's encoder as Wan reads it, if the model has it, for prompts of so many tokens.
    ///
    /// # Errors
    /// If it is damaged, or its tokenizer is missing.
    pub fn umt5(&self, part: &str, tokenizer: &str, tokens: usize) -> Result<Option<LongModel>> {
        let found = match self {
            Self::Folder(_) => self.t5(part, tokenizer, tokens)?,
            Self::File(beside) => beside.t5_of(("umt5xxl", "umt5"), part, tokenizer, tokens)?,
        };
        Ok(found.map(|model| model.padded(Padding::Zeros)))
    }

    /// A decoder that reads prompts.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn language(&self, decoder: &Decoder) -> Result<LongModel> {
        let Decoder {
            part,
            tokenizer,
            question,
            ..
        } = *decoder;
        match self {
            Self::Folder(folder) => LongModel::language(folder, part, tokenizer, question),
            Self::File(beside) => beside.language(decoder, None),
        }
    }

    /// The same of one that sees; `processor` is the part that says how pictures are prepared. A file that has no tower
    /// for pictures gives one that does not see.
    ///
    /// # Errors
    /// Those of [`TextSource::language`].
    pub fn seeing(&self, decoder: &Decoder, processor: &str, show: Show) -> Result<LongModel> {
        let Decoder {
            part,
            tokenizer,
            question,
            ..
        } = *decoder;
        let of_folder =
            |folder: &Folder| LongModel::seeing(folder, part, tokenizer, processor, question, show);
        match self {
            Self::Folder(folder) => of_folder(folder),
            Self::File(beside) => match beside.part(part) {
                Some(folder) if beside.own(decoder.own).is_empty() => of_folder(&folder),
                _ => beside.language(decoder, Some(show)),
            },
        }
    }

    /// An error about an encoder that is nowhere: neither as `file` nor as `part`.
    pub fn lacks(&self, what: &str, file: &str, part: &str) -> Error {
        match self {
            Self::Folder(folder) => Error::BadModel {
                path: folder.path(part),
                reason: format!("the model has no {what}"),
            },
            Self::File(beside) => beside.lacks(what, file, part),
        }
    }
}

/// The text encoders of a single file, and where what it lacks is looked for.
pub struct Beside<'a> {
    /// Tensors as ComfyUI packs text encoders: under each one's name.
    pub own: Weights,
    /// The file.
    pub file: &'a Path,
    /// A folder beside it.
    pub folder: Option<&'a Path>,
}

impl Beside<'_> {
    /// The file's own encoder of this name; empty if it has none.
    pub fn own(&self, name: &str) -> Weights {
        self.own.under(&format!("{name}.transformer."))
    }

    /// An error about an encoder that is nowhere: as `file` of the folder, or its `part`.
    pub fn lacks(&self, what: &str, file: &str, part: &str) -> Error {
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
    pub fn part(&self, name: &str) -> Option<Folder> {
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
    fn tower(&self, name: &str, part: &str, tokenizer: &str) -> Result<TowerFiles> {
        let own = self.own(name);
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
    pub fn weights(&self, own: &str, prefix: &str) -> Result<Option<(PathBuf, Weights)>> {
        let own = self.own(own);
        if !own.is_empty() {
            return Ok(Some((self.file.to_path_buf(), own)));
        }
        let path = self.named(prefix);
        path.map(|path| Ok((path.clone(), Weights::open(&path)?)))
            .transpose()
    }

    /// The folder and the file in it that has a language model's tokenizer.
    pub fn tokenizer(&self, what: &str, part: &str) -> Result<(Folder, String)> {
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
    fn t5(&self, part: &str, tokenizer: &str, tokens: usize) -> Result<Option<LongModel>> {
        self.t5_of(("t5xxl", "t5xxl"), part, tokenizer, tokens)
    }

    /// An encoder of T5's kind, by its name among those that single files have, and by what the names of files begin
    /// with that have it alone.
    fn t5_of(
        &self,
        (own, file): (&str, &str),
        part: &str,
        tokenizer: &str,
        tokens: usize,
    ) -> Result<Option<LongModel>> {
        if let Some(folder) = self.part(part).filter(|_| self.own(own).is_empty()) {
            return LongModel::t5(&folder, part, tokenizer, tokens).map(Some);
        }
        let Some((path, weights)) = self.weights(own, file)? else {
            return Ok(None);
        };
        let (folder, name) = self.tokenizer("T5", tokenizer)?;
        let shared = weights.contains("shared.weight");
        let weights = weights.renamed(|name| {
            Some(match name {
                "encoder.embed_tokens.weight" if !shared => "shared.weight".to_string(),
                // A tokenizer in another form.
                "spiece_model" => return None,
                other => other.to_string(),
            })
        });
        LongModel::t5_alone(&path, weights, &folder, &name, tokens).map(Some)
    }

    /// A decoder, which may see.
    fn language(&self, decoder: &Decoder, show: Option<Show>) -> Result<LongModel> {
        let Decoder {
            label,
            own,
            file,
            part,
            tokenizer,
            ref known,
            question,
        } = *decoder;
        if let Some(folder) = self.part(part).filter(|_| self.own(own).is_empty()) {
            return LongModel::language(&folder, part, tokenizer, question);
        }
        let Some((path, weights)) = self.weights(own, file)? else {
            return Err(self.lacks(label, file, part));
        };
        let (folder, name) = self.tokenizer(label, tokenizer)?;
        LongModel::language_alone(&path, &weights, known, &folder, &name, question, show)
    }
}
