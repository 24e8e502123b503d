//! The networks for faces that clients may name: what is in folders that the operator chose.

use super::RestoreFaces;
use crate::models::faces::Kind;
use crate::upscale::UpscalerFolders;
use crate::weights::Weights;
use std::path::PathBuf;
use worker::{Error, Result};

/// Folders with networks for faces: safetensors files.
#[derive(Debug, Clone, Default)]
pub struct FaceFolders(UpscalerFolders);

impl FaceFolders {
    /// Takes folders; those that do not exist have no networks.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self(UpscalerFolders::new(folders))
    }

    /// Names, kinds and paths, sorted by name. Files that are no networks for faces are not among them.
    pub fn list(&self) -> Vec<(String, Kind, PathBuf)> {
        let files = self.0.list().into_iter();
        let known = files.filter_map(|(name, path)| {
            let (kind, _) = Kind::of(&Weights::open(&path).ok()?).ok()?;
            Some((name, kind, path))
        });
        known.collect()
    }

    /// Names of networks that restore faces; those that AUTOMATIC1111 knows as `GFPGAN` and `CodeFormer` are found by
    /// these names, too.
    pub fn restorers(&self) -> Vec<String> {
        let restorers = self
            .list()
            .into_iter()
            .filter(|(_, kind, _)| kind.restores());
        restorers.map(|(name, ..)| name).collect()
    }

    /// Faces restored by the network of this name: a file's, or a kind's. The first detector and parser of the folders go
    /// with it.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists what there is.
    pub fn find(&self, name: &str) -> Result<RestoreFaces> {
        let files = self.list();
        let stem = name.strip_suffix(".safetensors").unwrap_or(name);
        let restores = |kind: &Kind| kind.restores();
        let named = files
            .iter()
            .find(|(n, kind, _)| restores(kind) && n == stem);
        let named = named.or_else(|| {
            let is = |kind: &Kind| restores(kind) && kind.label().eq_ignore_ascii_case(stem);
            files.iter().find(|(_, kind, _)| is(kind))
        });
        let first = |wanted: Kind| {
            let mut files = files.iter();
            files
                .find(|(_, kind, _)| *kind == wanted)
                .map(|f| f.2.clone())
        };
        let Some((.., restorer)) = named else {
            let names = self.restorers();
            let known = match names.is_empty() {
                true => "there are none (--face-dir)".to_string(),
                false => format!("there are {}", names.join(", ")),
            };
            return Err(Error::Usage(format!(
                "there is no network {name:?} that restores faces; {known}"
            )));
        };
        let Some(detector) = first(Kind::Detector) else {
            return Err(Error::Usage(
                "there is no network that finds faces (RetinaFace) beside it (--face-dir)"
                    .to_string(),
            ));
        };
        Ok(RestoreFaces {
            parser: first(Kind::Parser),
            ..RestoreFaces::new(restorer.clone(), detector)
        })
    }
}
