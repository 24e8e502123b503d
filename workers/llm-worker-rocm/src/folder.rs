//! The files of a Hugging Face model folder.

use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use worker::{file, Error, Result};

/// Longest JSON file that is read: the largest `tokenizer.json` in use has 35 MB.
const MAX_JSON_BYTES: u64 = 256 << 20;
/// Names the weight files of a model in several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// The model in one file.
pub(crate) const SINGLE: &str = "model.safetensors";

/// A JSON file of the folder, `None` if there is none of that name.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, is too long or no regular file, [`Error::BadModel`] if it is not JSON.
pub(crate) fn read_json(folder: &Path, name: &str) -> Result<Option<Json>> {
    let path = folder.join(name);
    let text = match file::read(&path, MAX_JSON_BYTES) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(Error::io(&path))?,
    };
    worker::json::of_python(&text)
        .map(Some)
        .map_err(|e| Error::BadModel {
            path: path.clone(),
            reason: format!("it is not the JSON that is expected: {e}"),
        })
}

/// The same of a file that a model folder has to have.
///
/// # Errors
/// Those of [`read_json`], [`Error::BadModel`] if it is not there.
pub(crate) fn required_json(folder: &Path, name: &str) -> Result<Json> {
    const NEEDED: &str = "a model folder needs config.json, tokenizer.json and .safetensors files";
    let other = match name {
        "tokenizer.json" if folder.join("tekken.json").exists() => " (tekken.json is not read)",
        _ => "",
    };
    read_json(folder, name)?.ok_or_else(|| Error::BadModel {
        path: folder.to_path_buf(),
        reason: format!("it has no {name}{other}; {NEEDED}"),
    })
}

/// The model's files: those that the index names, else the single file, else all.
///
/// # Errors
/// [`Error::BadModel`] if there are none or the index is damaged.
pub(crate) fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let bad = |reason: String| Error::BadModel {
        path: folder.to_path_buf(),
        reason,
    };
    if let Some(index) = read_json(folder, INDEX)? {
        let map = index["weight_map"]
            .as_object()
            .ok_or_else(|| bad(format!("{INDEX} has no weight_map")))?;
        let names: BTreeSet<&str> = map.values().filter_map(|file| file.as_str()).collect();
        let plain = |name: &&str| Path::new(name).file_name().is_some_and(|f| f == *name);
        return match names.iter().find(|name| !plain(name)) {
            Some(other) => Err(bad(format!(
                "{INDEX} names {other}, which is not a file beside it"
            ))),
            None => Ok(names.into_iter().map(|name| folder.join(name)).collect()),
        };
    }
    if folder.join(SINGLE).exists() {
        return Ok(vec![folder.join(SINGLE)]);
    }
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .and_then(Iterator::collect::<std::io::Result<Vec<_>>>)
        .map_err(|source| Error::Io {
            path: folder.to_path_buf(),
            source,
        })?
        .into_iter()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    match files.is_empty() {
        true => Err(bad("it has no .safetensors file; pickled checkpoints (.bin, .pt) can run code and are not read, convert them with the safetensors package".to_string())),
        false => Ok(files),
    }
}
