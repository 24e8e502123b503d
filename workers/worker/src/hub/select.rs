//! Which files of a repository make up the model that is meant.

use crate::{Error, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// Quantisations taken, in this order, when a repository has several files and none was named.
const PREFERRED_QUANTS: [&str; 12] = [
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "Q5_K_M", "Q6_K", "Q8_0", "Q3_K_M",
    "BF16", "F16",
];
/// Names the files of a model in several safetensors files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The model in one safetensors file.
const SINGLE: &str = "model.safetensors";
/// What a model folder may have besides its weights.
const FOLDER_FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "1_Pooling/config.json",
];
/// Longest index that is read.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// What a selector means in a repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// A GGUF file, or the first part of one that is split.
    Gguf(String),
    /// The folder with safetensors files.
    Folder,
}

pub(super) fn has_gguf_extension(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

/// Picks what a selector means.
pub(super) fn choose(repo: &str, files: &[String], selector: Option<&str>) -> Result<Choice> {
    let has_folder = files.iter().any(|f| f == "config.json")
        && files.iter().any(|f| f.ends_with(".safetensors"));
    // Of a split file the first part stands for all.
    let ggufs: Vec<&String> = files
        .iter()
        .filter(|f| has_gguf_extension(f) && split_of(f).is_none_or(|split| split.part == 1))
        .collect();
    let names = |files: &[&String]| -> String {
        let names: Vec<&str> = files.iter().map(|f| f.as_str()).collect();
        names.join(", ")
    };
    let listing = || match (ggufs.is_empty(), has_folder) {
        (true, true) => "it has safetensors files only".to_string(),
        (true, false) => {
            "it has neither GGUF files nor config.json with safetensors files".to_string()
        }
        (false, _) => format!("it has {}", names(&ggufs)),
    };
    let none = |what: String| Error::Hub(format!("{repo} has no GGUF file {what}; {}", listing()));
    let chosen = match selector {
        Some(name) if name.eq_ignore_ascii_case("safetensors") => {
            return match has_folder {
                true => Ok(Choice::Folder),
                false => Err(Error::Hub(format!(
                    "{repo} has no safetensors model; {}",
                    listing()
                ))),
            }
        }
        Some(name) if has_gguf_extension(name) => ggufs
            .iter()
            .find(|f| **f == name)
            .ok_or_else(|| none(name.to_string()))?,
        Some(quant) => {
            let matching: Vec<&String> = models(&ggufs).filter(|f| is_quant_of(f, quant)).collect();
            match matching[..] {
                [] => return Err(none(format!("of quantisation {quant}"))),
                [one] => return Ok(Choice::Gguf(one.clone())),
                _ => {
                    return Err(Error::Hub(format!(
                    "{repo} has several files of quantisation {quant}: {}; name one as {repo}:FILE",
                    names(&matching)
                )))
                }
            }
        }
        None => match models(&ggufs).collect::<Vec<_>>()[..] {
            [one] => return Ok(Choice::Gguf(one.clone())),
            [] if has_folder => return Ok(Choice::Folder),
            _ => PREFERRED_QUANTS
                .iter()
                .find_map(|quant| ggufs.iter().find(|f| is_quant_of(f, quant)))
                .ok_or_else(|| {
                    Error::Hub(format!(
                        "{repo}: which file? {}; name one as {repo}:FILE",
                        listing()
                    ))
                })?,
        },
    };
    Ok(Choice::Gguf((*chosen).clone()))
}

/// Without the files that only accompany a model: image encoders, importance matrices.
fn models<'a>(ggufs: &'a [&'a String]) -> impl Iterator<Item = &'a String> {
    ggufs.iter().copied().filter(|f| {
        let name = f.rsplit('/').next().unwrap_or(f).to_lowercase();
        !name.starts_with("mmproj") && !name.contains("imatrix")
    })
}

/// The whole models among a repository's files, each with the shortest selector that means it: its quantisation, or its
/// name.
pub(super) fn ggufs_of(repo: &str, files: &[String]) -> Vec<(String, String)> {
    let whole = files.iter().filter(|file| {
        let first = split_of(file).is_none_or(|split| split.part == 1);
        has_gguf_extension(file) && first && parts_of(repo, file, files).is_ok()
    });
    let whole: Vec<&String> = whole.collect();
    let named = models(&whole).map(|file| {
        let stem = split_of(file).map_or_else(
            || {
                file.rsplit_once('.')
                    .map_or(file.as_str(), |(stem, _)| stem)
            },
            |split| split.stem,
        );
        let quant = stem.rsplit(['-', '.', '/']).next().unwrap_or_default();
        let is_quant = quant.chars().any(|c| c.is_ascii_digit())
            && !quant.starts_with(|c: char| c.is_ascii_digit());
        let means = |selector: &str| {
            choose(repo, files, Some(selector)).ok() == Some(Choice::Gguf(file.clone()))
        };
        let selector = if is_quant && means(quant) {
            quant
        } else {
            file.as_str()
        };
        (selector.to_string(), file.clone())
    });
    named.collect()
}

/// All parts of a GGUF file, in order; of one that is not split, itself.
pub(super) fn parts_of(repo: &str, file: &str, files: &[String]) -> Result<Vec<String>> {
    let Some(split) = split_of(file) else {
        return Ok(vec![file.to_string()]);
    };
    let parts: Vec<String> = (1..=split.count).map(|part| split.name(part)).collect();
    match parts.iter().find(|part| !files.contains(part)) {
        Some(missing) => Err(Error::Hub(format!(
            "{repo}: {file} is one of {} parts, and {missing} is missing",
            split.count
        ))),
        None => Ok(parts),
    }
}

/// The files of a model folder that are to be fetched besides `config.json` and the index.
pub(super) fn folder_files(
    repo: &str,
    files: &[String],
    index: Option<&Path>,
) -> Result<Vec<String>> {
    let mut wanted: Vec<String> = files
        .iter()
        .filter(|f| FOLDER_FILES.contains(&f.as_str()))
        .cloned()
        .collect();
    let weights: Vec<String> = match index {
        Some(index) => shards(index)
            .map_err(|e| Error::Hub(format!("{repo}: {INDEX}: {e}")))?
            .into_iter()
            .collect(),
        None if files.iter().any(|f| f == SINGLE) => vec![SINGLE.to_string()],
        None => files
            .iter()
            .filter(|f| f.ends_with(".safetensors") && !f.contains('/'))
            .cloned()
            .collect(),
    };
    match weights.iter().find(|shard| !files.contains(shard)) {
        Some(missing) => Err(Error::Hub(format!(
            "{repo}: its index names {missing}, which it does not have"
        ))),
        None => {
            wanted.extend(weights);
            Ok(wanted)
        }
    }
}

/// An index of at most `most` bytes.
pub(super) fn read_index(path: &Path, most: u64) -> std::result::Result<serde_json::Value, String> {
    let text = crate::file::read(path, most).map_err(|e| e.to_string())?;
    serde_json::from_slice(&text).map_err(|e| e.to_string())
}

/// The files that an index names.
pub(super) fn shards(index: &Path) -> std::result::Result<BTreeSet<String>, String> {
    let json = read_index(index, MAX_INDEX_BYTES)?;
    let map = json["weight_map"]
        .as_object()
        .ok_or("it has no weight_map")?;
    map.values()
        .map(|file| match file.as_str() {
            Some(file) if super::is_plain_relative(file) && file.ends_with(".safetensors") => {
                Ok(file.to_string())
            }
            _ => Err(format!("{file} is not a safetensors file")),
        })
        .collect()
}

/// Whether a snapshot has all of a safetensors model.
pub(super) fn complete_folder(snapshot: &Path) -> bool {
    let files = files_below(snapshot);
    let has = |name: &str| files.iter().any(|f| f == name);
    let index = snapshot.join(INDEX);
    let weights = match index.exists() {
        true => shards(&index).is_ok_and(|shards| shards.iter().all(|shard| has(shard))),
        false => files.iter().any(|f| f.ends_with(".safetensors")),
    };
    has("config.json") && weights
}

/// The files of a snapshot and its subfolders, relative to it.
pub(super) fn files_below(snapshot: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![snapshot.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            // Files are links into the blob folder; only real folders are walked, so there are no cycles.
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                folders.push(path);
            } else if let Some(name) = path.strip_prefix(snapshot).ok().and_then(Path::to_str) {
                if path.exists() {
                    found.push(name.to_string());
                }
            }
        }
    }
    found.sort();
    found
}

/// Whether the quantisation stands in the file name as a word of its own, in either case: `Q4_K` is not `Q4_K_M`.
fn is_quant_of(file: &str, quant: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_lowercase();
    let quant = quant.to_lowercase();
    let is_word = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !quant.is_empty()
        && name.match_indices(&quant).any(|(start, matched)| {
            is_word(name[..start].chars().next_back())
                && is_word(name[start + matched.len()..].chars().next())
        })
}

/// A part of a split GGUF file: `STEM-00001-of-00003.gguf`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split<'a> {
    pub(crate) stem: &'a str,
    extension: &'a str,
    pub(crate) part: u32,
    pub(crate) count: u32,
}

impl Split<'_> {
    /// The name of a part.
    pub(crate) fn name(&self, part: u32) -> String {
        format!(
            "{}-{part:05}-of-{:05}.{}",
            self.stem, self.count, self.extension
        )
    }
}

/// What a file's name says about its being one part of several.
pub(crate) fn split_of(file: &str) -> Option<Split<'_>> {
    let (stem, extension) = file.rsplit_once('.')?;
    let number = |text: &str| -> Option<u32> {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok()).flatten()
    };
    let (head, count) = stem.rsplit_once("-of-")?;
    let (stem, part) = head.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (part >= 1 && part <= count).then_some(Split {
        stem,
        extension,
        part,
        count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| s.to_string()).collect()
    }

    fn gguf(name: &str) -> Choice {
        Choice::Gguf(name.to_string())
    }

    #[test]
    fn quantisation_matches_whole_words_only() {
        assert!(is_quant_of("Model-Q4_K_M.gguf", "q4_k_m"));
        assert!(is_quant_of("dir/Model.Q8_0.gguf", "Q8_0"));
        assert!(is_quant_of("Model-Q8_0-00001-of-00002.gguf", "Q8_0"));
        assert!(!is_quant_of("Model-Q4_K_M.gguf", "Q4_K"));
        assert!(!is_quant_of("Model-IQ4_XS.gguf", "Q4_XS"));
        assert!(!is_quant_of("Q4_0/Model-Q8_0.gguf", "Q4_0"));
    }

    #[test]
    fn choice_of_a_file() {
        let files = names(&[
            "m-Q2_K.gguf",
            "m-Q4_K_M.gguf",
            "m-Q8_0.gguf",
            "mmproj-m-F16.gguf",
        ]);
        let choose = |files: &[String], selector| choose("o/n", files, selector);
        assert_eq!(choose(&files, None).unwrap(), gguf("m-Q4_K_M.gguf"));
        assert_eq!(choose(&files, Some("Q2_K")).unwrap(), gguf("m-Q2_K.gguf"));
        assert_eq!(
            choose(&files, Some("m-Q8_0.gguf")).unwrap(),
            gguf("m-Q8_0.gguf")
        );
        assert_eq!(choose(&files[..1], None).unwrap(), gguf("m-Q2_K.gguf"));
        let with_projector = names(&["m-Q2_K.gguf", "mmproj-m-F16.gguf"]);
        assert_eq!(choose(&with_projector, None).unwrap(), gguf("m-Q2_K.gguf"));
        let error = choose(&files, Some("Q3_K")).unwrap_err().to_string();
        assert!(
            error.contains("Q3_K") && error.contains("m-Q2_K.gguf"),
            "{error}"
        );
        let ambiguous = names(&["a-Q2_K.gguf", "b-Q2_K.gguf"]);
        assert!(choose(&ambiguous, Some("Q2_K")).is_err());
        assert!(choose(&ambiguous, None).is_err());
        assert!(choose(&names(&["README.md"]), None).is_err());
    }

    #[test]
    fn choice_of_a_folder() {
        let folder = names(&["config.json", "model.safetensors"]);
        let both = names(&["config.json", "model.safetensors", "m-Q8_0.gguf"]);
        assert_eq!(choose("o/n", &folder, None).unwrap(), Choice::Folder);
        assert_eq!(choose("o/n", &both, None).unwrap(), gguf("m-Q8_0.gguf"));
        assert_eq!(
            choose("o/n", &both, Some("safetensors")).unwrap(),
            Choice::Folder
        );
        assert!(choose("o/n", &folder[1..], None).is_err());
        assert!(choose("o/n", &folder, Some("Q4_0")).is_err());
    }

    #[test]
    fn a_split_file_needs_all_its_parts() {
        let files = names(&[
            "a/m-Q8_0-00001-of-00002.gguf",
            "a/m-Q8_0-00002-of-00002.gguf",
        ]);
        let first = &files[0];
        assert_eq!(choose("o/n", &files, Some("Q8_0")).unwrap(), gguf(first));
        assert_eq!(parts_of("o/n", first, &files).unwrap(), files);
        let error = parts_of("o/n", first, &files[..1]).unwrap_err().to_string();
        assert!(
            error.contains("m-Q8_0-00002-of-00002.gguf is missing"),
            "{error}"
        );
        for whole in [
            "m.gguf",
            "m-1-of-2.gguf",
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
        ] {
            assert_eq!(split_of(whole), None, "{whole}");
        }
    }

    #[test]
    fn an_index_cannot_name_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let index = folder.path().join(INDEX);
        let read = |text: &str| {
            std::fs::write(&index, text).unwrap();
            shards(&index)
        };
        let good = read(
            r#"{"weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "x.safetensors"}}"#,
        );
        assert_eq!(
            good.unwrap().into_iter().collect::<Vec<_>>(),
            ["x.safetensors", "y.safetensors"]
        );
        for bad in [
            r#"{"weight_map": {"a": "../x.safetensors"}}"#,
            r#"{"weight_map": {"a": "x.bin"}}"#,
            r#"{"weight_map": {"a": 1}}"#,
            "{}",
            "x",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
