//! What an output belongs to, in a small file beside it.

use crate::batch::input::Fingerprint;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use worker::{file, Error, Result};

/// Longest such file.
const MAX_BYTES: u64 = 64 << 10;
/// How much of a model's files tells them apart: in GGUF files that is what there is of names and sizes.
const MODEL_BYTES: u64 = 1 << 20;

/// What an output belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The input, unless it came through a pipe.
    pub input: Option<Fingerprint>,
    /// The model, or the server's address.
    pub model: String,
}

impl State {
    /// Where the state of an output is.
    pub fn path_of(output: &Path) -> PathBuf {
        let mut name = output.file_name().unwrap_or_default().to_os_string();
        name.push(".state");
        output.with_file_name(name)
    }

    /// Reads a state; nothing if there is none.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Usage`] for a file of other content.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let text = match file::read(path, MAX_BYTES) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(Error::io(path))?,
        };
        serde_json::from_slice(&text).map(Some).map_err(|e| {
            Error::Usage(format!(
                "{}: {e}; remove it and use --force",
                path.display()
            ))
        })
    }

    /// Writes the state.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|e| Error::Runtime(e.to_string()))?;
        file::replace(path, &text).map_err(Error::io(path))
    }

    /// What is not as it was.
    pub fn difference(&self, now: &Self) -> Option<&'static str> {
        match () {
            () if self.input != now.input => Some("input"),
            () if self.model != now.model => Some("model"),
            () => None,
        }
    }
}

/// What a model is known by: names, lengths and beginnings of its files.
///
/// # Errors
/// [`Error::Io`].
pub(super) fn of_model(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    let mut add = |path: &Path| -> Result<()> {
        let file = file::open(path).map_err(Error::io(path))?;
        let length = file.metadata().map_err(Error::io(path))?.len();
        let mut beginning = Vec::new();
        let mut part = Read::take(file, MODEL_BYTES);
        part.read_to_end(&mut beginning).map_err(Error::io(path))?;
        digest.update(length.to_le_bytes());
        digest.update(&beginning);
        Ok(())
    };
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(Error::io(path))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.is_file())
            .collect();
        files.sort();
        files.iter().try_for_each(|path| add(path))?;
    } else {
        add(path)?;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digest = digest.finalize();
    let digits: String = digest[..16].iter().map(|b| format!("{b:02x}")).collect();
    Ok(format!("{name}:{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        std::fs::write(&model, "one").unwrap();
        let input = |text: &[u8]| Some(Fingerprint::of(text, |_| true).unwrap());
        let first = State {
            input: input(b"a"),
            model: of_model(&model).unwrap(),
        };
        let path = State::path_of(&folder.path().join("out.jsonl"));
        assert_eq!(State::read(&path).unwrap(), None);
        first.write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), Some(first.clone()));
        let other = State {
            input: input(b"b"),
            ..first.clone()
        };
        assert_eq!(first.difference(&other), Some("input"));
        std::fs::write(&model, "two").unwrap();
        let other = State {
            model: of_model(&model).unwrap(),
            ..first.clone()
        };
        assert_eq!(first.difference(&other), Some("model"));
        assert_eq!(first.difference(&first), None);
        let in_folder = of_model(folder.path()).unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        assert_ne!(of_model(folder.path()).unwrap(), in_folder);
        std::fs::write(&path, "x").unwrap();
        assert_eq!(State::read(&path).unwrap_err().exit_code(), 2);
    }
}
