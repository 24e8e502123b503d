//! Models in folders.

use crate::hub::split_of;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// How deep a model's folder is looked through for its weights.
const DEPTH: usize = 3;
/// Endings of files with weights.
const WEIGHTS: [&str; 4] = ["gguf", "safetensors", "bin", "pt"];

/// What models of a program look like on a disk.
#[derive(Debug, Clone, Copy)]
pub struct ModelFiles {
    /// Endings of files that are models by themselves.
    pub endings: &'static [&'static str],
    /// Files by which a folder is known to be a model.
    pub folder_marks: &'static [&'static str],
}

impl ModelFiles {
    /// The models in a folder, by name, in the order of their names.
    ///
    /// # Errors
    /// [`Error::Usage`] for a folder that cannot be read.
    pub(super) fn in_folder(&self, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
        let refuse =
            |e: std::io::Error| Error::Usage(format!("--models {}: {e}", folder.display()));
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(refuse)? {
            let path = entry.map_err(refuse)?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            if path.is_dir() {
                found.extend(
                    self.in_model_folder(&path)
                        .map(|model| (name.to_string(), model)),
                );
            } else if self.is_model(&path) {
                found.push((stem(name), path));
            }
        }
        found.sort();
        Ok(found)
    }

    /// The model of a folder that is one, or that has the parts of one.
    fn in_model_folder(&self, folder: &Path) -> Option<PathBuf> {
        if self
            .folder_marks
            .iter()
            .any(|mark| folder.join(mark).is_file())
        {
            return Some(folder.to_path_buf());
        }
        let entries = std::fs::read_dir(folder)
            .ok()?
            .filter_map(std::result::Result::ok);
        let mut models: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| self.is_model(path))
            .collect();
        models.sort();
        models.into_iter().next()
    }

    /// Whether a file is a model by itself, or the first part of one, and not one that accompanies a model.
    fn is_model(&self, path: &Path) -> bool {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return false;
        };
        let ending = path
            .extension()
            .and_then(|ending| ending.to_str())
            .unwrap_or_default();
        let lower = name.to_lowercase();
        self.endings
            .iter()
            .any(|known| known.eq_ignore_ascii_case(ending))
            && !lower.starts_with("mmproj")
            && !lower.contains("imatrix")
            && split_of(name).is_none_or(|split| split.part == 1)
            && path.is_file()
    }

    /// Bytes of a model's weights on the disk; 0 where they are not here yet.
    pub(super) fn bytes(&self, path: &Path) -> u64 {
        if path.is_dir() {
            return weights_below(path, DEPTH);
        }
        let Ok(about) = std::fs::metadata(path) else {
            return 0;
        };
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let Some(split) = split_of(name) else {
            return about.len();
        };
        let part = |part| std::fs::metadata(path.with_file_name(split.name(part)));
        let parts = (1..=split.count).filter_map(|number| part(number).ok());
        parts.map(|about| about.len()).sum()
    }
}

/// A file's name without its ending and without the number of its part.
fn stem(name: &str) -> String {
    match split_of(name) {
        Some(split) => split.stem.to_string(),
        None => Path::new(name)
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
    }
}

fn weights_below(folder: &Path, depth: usize) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let bytes = entries.filter_map(std::result::Result::ok).map(|entry| {
        let path = entry.path();
        let ending = path
            .extension()
            .and_then(|ending| ending.to_str())
            .unwrap_or_default();
        match path.is_dir() {
            true if depth > 1 => weights_below(&path, depth - 1),
            true => 0,
            false if WEIGHTS.contains(&ending) => {
                std::fs::metadata(&path).map_or(0, |about| about.len())
            }
            false => 0,
        }
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_folders_parts_and_what_is_none() {
        let files = ModelFiles {
            endings: &["gguf"],
            folder_marks: &["config.json"],
        };
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: usize| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, vec![0; bytes]).unwrap();
        };
        for (name, bytes) in [
            ("plain.gguf", 5),
            ("mmproj-plain.gguf", 1),
            ("split-00001-of-00002.gguf", 3),
            ("split-00002-of-00002.gguf", 4),
            ("notes.txt", 9),
            (".hidden.gguf", 1),
            ("seeing/model-Q8_0.gguf", 2),
            ("seeing/mmproj-F16.gguf", 7),
            ("hf/config.json", 1),
            ("hf/model.safetensors", 6),
            ("empty/readme", 1),
        ] {
            write(name, bytes);
        }
        let found = files.in_folder(folder.path()).unwrap();
        let at = |name: &str| folder.path().join(name);
        let expected = [
            ("hf", at("hf")),
            ("plain", at("plain.gguf")),
            ("seeing", at("seeing/model-Q8_0.gguf")),
            ("split", at("split-00001-of-00002.gguf")),
        ];
        let expected = expected.map(|(name, path)| (name.to_string(), path));
        assert_eq!(found, expected);
        let bytes: Vec<u64> = found.iter().map(|(_, path)| files.bytes(path)).collect();
        assert_eq!(bytes, [6, 5, 2, 7]);
        assert_eq!(files.bytes(Path::new("ORG/NAME")), 0);
        assert!(files
            .in_folder(&at("absent"))
            .unwrap_err()
            .to_string()
            .contains("absent"));
    }
}
