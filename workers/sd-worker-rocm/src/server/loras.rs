//! The LoRAs that clients may name: files in folders that the operator chose, nothing else of the machine.

use crate::lora::Lora;
use crate::weights::named::named;
use std::path::{Path, PathBuf};
use worker::http::ApiError;

/// Folders with `.safetensors` files.
#[derive(Debug, Clone, Default)]
pub struct LoraFolders(Vec<PathBuf>);

impl LoraFolders {
    /// Takes folders; those that do not exist have no LoRAs.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self(folders)
    }

    /// Names and files, sorted by name; of two files with one name the first folder's counts.
    pub fn list(&self) -> Vec<(String, PathBuf)> {
        named(&self.0, false)
    }

    /// A client's LoRA, by name, file name, or a path that leads to one of the folders' files, as the file on disk.
    ///
    /// # Errors
    /// 400 that lists what is there.
    pub fn find(&self, lora: &Lora) -> Result<Lora, ApiError> {
        let known = self.list();
        let wanted = Path::new(&lora.name);
        let found = known.iter().find(|(name, path)| {
            *name == lora.name
                || path == wanted
                || path.file_name().is_some_and(|f| wanted.as_os_str() == f)
        });
        match found {
            Some((_, path)) => Ok(Lora {
                name: path.display().to_string(),
                ..lora.clone()
            }),
            None => {
                let names: Vec<_> = known.iter().map(|(name, _)| name.as_str()).collect();
                Err(ApiError::field(
                    "loras",
                    if names.is_empty() {
                        format!(
                            "there is no LoRA {:?}: this server has none (--lora-dir)",
                            lora.name
                        )
                    } else {
                        format!(
                            "there is no LoRA {:?}; this server has {}",
                            lora.name,
                            names.join(", ")
                        )
                    },
                ))
            }
        }
    }
}
