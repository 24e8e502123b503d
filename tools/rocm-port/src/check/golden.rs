//! Recorded outputs: written on one machine, such as one with an NVIDIA GPU, and compared with on another.

use super::case::Role;
use super::finding::Kind;
use super::judge::{judge_pair, Fault, Outputs};
use super::npy;
use super::prepare::Ready;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// What is done with recorded outputs.
pub(super) struct Golden {
    folder: PathBuf,
    records: bool,
    /// Why files could not be written.
    errors: Mutex<Vec<String>>,
}

impl Golden {
    /// Writes outputs to a folder.
    pub fn record(folder: &Path) -> Self {
        Self::new(folder, true)
    }

    /// Compares outputs with those in a folder.
    pub fn compare(folder: &Path) -> Self {
        Self::new(folder, false)
    }

    fn new(folder: &Path, records: bool) -> Self {
        Golden {
            folder: folder.to_path_buf(),
            records,
            errors: Mutex::default(),
        }
    }

    /// What could not be written.
    pub fn errors(&self) -> Vec<String> {
        self.errors
            .lock()
            .unwrap_or_else(|error| error.into_inner())
            .clone()
    }

    /// `FOLDER/CASE/SIZES/BUFFER.npy`.
    fn file(&self, ready: &Ready, buffer: &str) -> PathBuf {
        let plain = |text: &str| -> String {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '=');
            text.chars()
                .map(|c| if plain(c) { c } else { '_' })
                .collect()
        };
        let sizes: Vec<String> = ready
            .point
            .iter()
            .map(|(name, n)| format!("{name}={n}"))
            .collect();
        let sizes = if sizes.is_empty() {
            "one".to_string()
        } else {
            sizes.join("_")
        };
        let folder = self
            .folder
            .join(plain(&ready.case.name))
            .join(plain(&sizes));
        folder.join(format!("{}.npy", plain(buffer)))
    }

    /// Records the outputs of the first setup, or compares those of any.
    pub fn judge(&self, ready: &Ready, outputs: &Outputs, is_first: bool) -> Option<Fault> {
        let mut recorded = Outputs::new();
        for (buffer, after) in ready.buffers.iter().zip(outputs) {
            let file = self.file(ready, buffer.name);
            if buffer.spec.role == Role::In {
                recorded.push(after.clone());
            } else if self.records {
                if is_first {
                    if let Err(why) = npy::write(&file, buffer.spec.dtype, after) {
                        self.errors
                            .lock()
                            .unwrap_or_else(|error| error.into_inner())
                            .push(why);
                    }
                }
                recorded.push(after.clone());
            } else {
                match npy::read(&file, buffer.spec.dtype, buffer.length) {
                    Ok(bytes) => recorded.push(bytes),
                    Err(message) => {
                        return Some(Fault {
                            kind: Kind::Golden,
                            message,
                            difference: None,
                        })
                    }
                }
            }
        }
        judge_pair(ready, Kind::Golden, outputs, &recorded)
    }
}
