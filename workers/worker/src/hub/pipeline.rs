//! Image models on the hub: a folder for each part, as diffusers writes them, or one file.

use super::repository::Repository;
use super::select::{files_below, has_gguf_extension, read_index, shards};
use super::{is_plain_relative, HubOptions, ModelSource};
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// Names the parts.
const INDEX: &str = "model_index.json";
/// Longest index that is read.
const MAX_INDEX_BYTES: u64 = 1 << 20;
/// Parts that are used, with or without a number behind; others (safety checkers, image processors) are not fetched.
const PARTS: [&str; 6] = [
    "scheduler",
    "tokenizer",
    "text_encoder",
    "unet",
    "transformer",
    "vae",
];
/// What a part has besides weights.
const PART_FILES: [&str; 8] = [
    "config.json",
    "scheduler_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];
/// Names of weights without variant and extension.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];
/// Forms in which weights are published.
const VARIANTS: [&str; 3] = ["", ".fp16", ".bf16"];

/// A part's weights.
#[derive(Debug, PartialEq, Eq)]
enum WeightFiles {
    Single(String),
    /// Named by this index.
    Sharded(String),
}

impl HubOptions {
    /// Resolves an image model: a file or folder on this machine as it is, `owner/name` to the folder of its parts,
    /// with `:fp16` or `:bf16` to smaller weights where the repository has them, `owner/name:FILE.safetensors` or
    /// `.gguf` to one file. The cache comes first.
    ///
    /// # Errors
    /// [`Error::Usage`] for another selector, [`Error::Hub`] if the repository is no image model or cannot be reached.
    pub fn resolve_pipeline(&self, source: &ModelSource) -> Result<PathBuf> {
        let ModelSource::Hub { repo, selector } = source else {
            return self.resolve(source);
        };
        self.check_revision()?;
        match selector.as_deref() {
            None => self.pipeline(repo, ""),
            Some("fp16") => self.pipeline(repo, ".fp16"),
            Some("bf16") => self.pipeline(repo, ".bf16"),
            Some(file) if file.ends_with(".safetensors") => self.one_file(repo, file),
            Some(file) if has_gguf_extension(file) => self.resolve(source),
            Some(other) => Err(Error::Usage(format!(
                "{repo}:{other}: variants are fp16 and bf16, and a file is named with its extension"
            ))),
        }
    }

    fn one_file(&self, repo: &str, file: &str) -> Result<PathBuf> {
        if !is_plain_relative(file) {
            return Err(Error::Usage(format!(
                "{repo}:{file}: that is not a file of a repository"
            )));
        }
        let cached = self.snapshot(repo).map(|snapshot| snapshot.join(file));
        if let Some(path) = cached.filter(|path| path.is_file()) {
            return Ok(path);
        }
        if self.offline {
            return Err(self.not_cached(repo, Some(file), &[]));
        }
        Repository::new(self, repo)?.fetch(file, None)
    }

    fn pipeline(&self, repo: &str, variant: &str) -> Result<PathBuf> {
        let cached = self.snapshot(repo);
        let complete = |snapshot: &PathBuf| is_complete(repo, snapshot, variant);
        if let Some(snapshot) = cached.clone().filter(complete) {
            return Ok(snapshot);
        }
        let cached_files = cached.as_deref().map(files_below).unwrap_or_default();
        if self.offline {
            return Err(self.not_cached(repo, None, &cached_files));
        }
        let repository = Repository::new(self, repo)?;
        let listing = repository.list()?;
        let files = listing.files;
        if !files.iter().any(|file| file == INDEX) {
            let single: Vec<&str> = files
                .iter()
                .map(String::as_str)
                .filter(|f| f.ends_with(".safetensors") || has_gguf_extension(f))
                .collect();
            return Err(Error::Hub(match single.is_empty() {
                true => format!("{repo} is not an image model: it has neither {INDEX} nor weights in safetensors or GGUF"),
                false => format!(
                    "{repo} has no {INDEX}; name one of its files as {repo}:FILE: {}",
                    single.join(", ")
                ),
            }));
        }
        let current = cached.filter(|snapshot| snapshot.ends_with(&listing.commit));
        let get = |file: &str| match &current {
            Some(snapshot) if cached_files.iter().any(|f| f == file) => Ok(snapshot.join(file)),
            _ => repository.fetch(file, Some(&listing.commit)),
        };
        let index = get(INDEX)?;
        for part in parts(repo, &index)? {
            let about = |file: &&String| {
                let rest = file.strip_prefix(&format!("{part}/"));
                rest.is_some_and(|rest| PART_FILES.contains(&rest))
            };
            for file in files.iter().filter(about) {
                get(file)?;
            }
            match weights_of(repo, &files, &part, variant)? {
                None => {}
                Some(WeightFiles::Single(file)) => drop(get(&file)?),
                Some(WeightFiles::Sharded(index)) => {
                    let shards = shards(&get(&index)?)
                        .map_err(|e| Error::Hub(format!("{repo}: {index}: {e}")))?;
                    for shard in shards {
                        get(&format!("{part}/{shard}"))?;
                    }
                }
            }
        }
        let folder = index.parent().map(Path::to_path_buf);
        folder.ok_or_else(|| Error::Hub(format!("{repo}: the cache has no folder for it")))
    }
}

/// The parts that an index names and that are used.
fn parts(repo: &str, index: &Path) -> Result<Vec<String>> {
    let json = read_index(index, MAX_INDEX_BYTES)
        .map_err(|e| Error::Hub(format!("{repo}: {INDEX}: {e}")))?;
    let Some(entries) = json.as_object() else {
        return Err(Error::Hub(format!("{repo}: {INDEX} is not an object")));
    };
    let used = entries.iter().filter(|(name, class)| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
        PARTS.contains(&stem) && class.get(1).is_some_and(serde_json::Value::is_string)
    });
    Ok(used.map(|(name, _)| name.clone()).collect())
}

/// A part's weights among `files`, the variant first; `None` for parts that have none.
fn weights_of(
    repo: &str,
    files: &[String],
    part: &str,
    variant: &str,
) -> Result<Option<WeightFiles>> {
    if part.starts_with("scheduler") || part.starts_with("tokenizer") {
        return Ok(None);
    }
    let has = |name: &String| files.contains(name);
    let others = VARIANTS.iter().copied().filter(|v| *v != variant);
    for variant in std::iter::once(variant).chain(others) {
        for stem in STEMS {
            let single = format!("{part}/{stem}{variant}.safetensors");
            if has(&single) {
                return Ok(Some(WeightFiles::Single(single)));
            }
            for index in [
                format!("{part}/{stem}.safetensors.index{variant}.json"),
                format!("{part}/{stem}{variant}.safetensors.index.json"),
            ] {
                if has(&index) {
                    return Ok(Some(WeightFiles::Sharded(index)));
                }
            }
        }
    }
    Err(Error::Hub(format!(
        "{repo} has no safetensors for its part {part}; take a conversion of the model"
    )))
}

/// Whether a snapshot has all of the model.
fn is_complete(repo: &str, snapshot: &Path, variant: &str) -> bool {
    let Ok(parts) = parts(repo, &snapshot.join(INDEX)) else {
        return false;
    };
    let files = files_below(snapshot);
    let has = |name: &str| files.iter().any(|f| f == name);
    !parts.is_empty()
        && parts.iter().all(|part| {
            let about = match part {
                _ if part.starts_with("scheduler") => has(&format!("{part}/scheduler_config.json")),
                _ if part.starts_with("tokenizer") => {
                    has(&format!("{part}/tokenizer.json")) || has(&format!("{part}/merges.txt"))
                }
                _ => has(&format!("{part}/config.json")),
            };
            let weights = match weights_of(repo, &files, part, variant) {
                Err(_) => false,
                Ok(None | Some(WeightFiles::Single(_))) => true,
                Ok(Some(WeightFiles::Sharded(index))) => shards(&snapshot.join(index))
                    .is_ok_and(|s| s.iter().all(|shard| has(&format!("{part}/{shard}")))),
            };
            about && weights
        })
}
