//! What nodes tell each other first, and what must be the same on all of them.

use crate::engine::device::memory;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use worker::device::Selected;
use worker::{file, Error, Result};

/// A change of the messages is a new version.
const PROTOCOL: u32 = 1;
/// How much of the beginning of a model's file tells it from others: of GGUF files, names and sizes.
const BEGINNING: u64 = 1 << 20;
/// Further pieces, spread over the file, and the bytes of each: the weights.
const PIECES: u64 = 64;
const PIECE_BYTES: usize = 4096;

/// What a node has and runs. As JSON, which other versions read, too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The program and its version.
    pub program: String,
    /// Version of the messages.
    #[serde(default)]
    pub protocol: u32,
    /// The name of its host.
    #[serde(default)]
    pub host: String,
    /// The name of the model's file or folder.
    #[serde(default)]
    pub model: String,
    /// What the model is known by.
    #[serde(default)]
    pub fingerprint: String,
    /// What the adapters are known by, in their order.
    #[serde(default)]
    pub adapters: Vec<String>,
    /// The command that it was started with: `serve`, `generate`, …
    #[serde(default)]
    pub command: String,
    /// What it computes on.
    #[serde(default)]
    pub cards: Vec<Card>,
}

/// A GPU of a node, or its CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// `cpu` or `rocm:N`.
    pub name: String,
    /// The hardware in words.
    #[serde(default)]
    pub description: String,
    /// Free bytes of its memory, where that is known.
    #[serde(default)]
    pub free: Option<u64>,
}

impl Card {
    /// Of a device that was selected.
    pub fn of(selected: &Selected) -> Self {
        Self {
            name: selected.name.clone(),
            description: selected.description.clone(),
            free: memory(&selected.device).map(|(free, _)| free),
        }
    }
}

impl About {
    /// This process, for `command`, with a model and adapters that are on this host's disk.
    ///
    /// # Errors
    /// [`Error::Io`] if they cannot be read.
    pub fn of(command: &str, model: &Path, adapters: &[&Path], cards: Vec<Card>) -> Result<Self> {
        let name = model.file_name().unwrap_or_default();
        Ok(Self {
            program: format!("{} {}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
            protocol: PROTOCOL,
            host: worker::process::host_name().unwrap_or_else(|| "unnamed".to_string()),
            model: name.to_string_lossy().into_owned(),
            fingerprint: fingerprint(model)?,
            adapters: adapters
                .iter()
                .map(|path| fingerprint(path))
                .collect::<Result<_>>()?,
            command: command.to_string(),
            cards,
        })
    }

    /// What another node has that this one, the leader, has not, as a part of a sentence about that node.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let is_same = (&self.program, self.protocol) == (&other.program, other.protocol);
        if !is_same {
            return Some(format!(
                "runs {} (messages of version {}), node 0 runs {} (version {}): use the same program on all hosts",
                other.program, other.protocol, self.program, self.protocol
            ));
        }
        if self.command != other.command {
            return Some(format!(
                "was started for {:?}, node 0 for {:?}: give all nodes the same command",
                other.command, self.command
            ));
        }
        if self.fingerprint != other.fingerprint {
            return Some(format!(
                "has another model: {} ({}), node 0 has {} ({}): give all nodes the same file",
                other.model, other.fingerprint, self.model, self.fingerprint
            ));
        }
        (self.adapters != other.adapters).then(|| {
            format!(
                "has other adapters: {:?}, node 0 has {:?}: give all nodes the same --lora in the same order",
                other.adapters, self.adapters
            )
        })
    }
}

/// What a model or an adapter is known by: lengths of its files, their beginnings, and pieces of what follows.
///
/// # Errors
/// [`Error::Io`].
fn fingerprint(path: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    let mut add = |path: &Path| -> Result<()> {
        let file = file::open(path).map_err(Error::io(path))?;
        let length = file.metadata().map_err(Error::io(path))?.len();
        digest.update(length.to_le_bytes());
        add_content(&mut digest, &file, length).map_err(Error::io(path))
    };
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(Error::io(path))?;
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.is_file() && is_of_model(path))
            .collect();
        files.sort();
        files.iter().try_for_each(|path| add(path))?;
    } else {
        add(path)?;
    }
    let digits = digest.finalize();
    Ok(digits[..16].iter().map(|b| format!("{b:02x}")).collect())
}

/// Whether a file of a folder is one that models are read from: hosts may have other notes beside it.
fn is_of_model(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str());
    matches!(
        extension,
        Some("json" | "safetensors" | "model" | "jinja" | "txt" | "tiktoken")
    )
}

fn add_content(digest: &mut Sha256, file: &File, length: u64) -> std::io::Result<()> {
    let mut beginning = Vec::new();
    Read::take(file, BEGINNING).read_to_end(&mut beginning)?;
    digest.update(&beginning);
    let rest = length.saturating_sub(BEGINNING);
    let mut piece = [0; PIECE_BYTES];
    for i in 0..PIECES {
        let place = BEGINNING + (u128::from(rest) * u128::from(i) / u128::from(PIECES)) as u64;
        let count = length.saturating_sub(place).min(PIECE_BYTES as u64) as usize;
        file.read_exact_at(&mut piece[..count], place)?;
        digest.update(&piece[..count]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut bytes = vec![7u8; 3 << 20];
        std::fs::write(path("a.gguf"), &bytes).unwrap();
        // One of the pieces.
        bytes[2 << 20] = 8;
        std::fs::write(path("b.gguf"), &bytes).unwrap();
        let about = |model: &str, adapters: &[&Path]| {
            About::of("serve", &path(model), adapters, Vec::new()).unwrap()
        };
        let own = about("a.gguf", &[]);
        assert_eq!(own.difference(&own), None);
        let said = own.difference(&about("b.gguf", &[])).unwrap();
        assert!(
            said.contains("another model: b.gguf (") && said.contains("node 0 has a.gguf ("),
            "{said}"
        );
        let said = own
            .difference(&about("a.gguf", &[&path("b.gguf")]))
            .unwrap();
        assert!(said.contains("other adapters"), "{said}");
        let other = About {
            command: "bench".to_string(),
            ..own.clone()
        };
        assert!(own
            .difference(&other)
            .unwrap()
            .contains("for \"bench\", node 0 for \"serve\""));
        let other = About {
            program: "llm-worker-rocm 0.0.9".to_string(),
            ..own.clone()
        };
        assert!(own
            .difference(&other)
            .unwrap()
            .contains("runs llm-worker-rocm 0.0.9"));
    }

    #[test]
    fn a_folder_is_known_by_what_models_are_read_from() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("config.json", "{}");
        let first = fingerprint(folder.path()).unwrap();
        write("notes.md", "of this host");
        assert_eq!(fingerprint(folder.path()).unwrap(), first);
        write("config.json", "{ }");
        assert_ne!(fingerprint(folder.path()).unwrap(), first);
    }
}
