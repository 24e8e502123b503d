//! The networks of preprocessors: what kind a file or folder is, and those that are found in folders.

use super::kind::Kind;
use crate::models::preprocess::{lineart_anime, mlsd};
use crate::weights::folder::Folder;
use crate::weights::named::offers;
use crate::weights::Weights;
use serde_json::Value;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// What a network makes of pictures, told by its file's names or its folder's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkKind {
    /// ControlNet's HED.
    Hed,
    /// Line drawings.
    Lineart,
    /// Line drawings of anime.
    LineartAnime,
    /// M-LSD's straight lines.
    Mlsd,
    /// OpenPose's bodies.
    Body,
    /// Depths by DPT (MiDaS 3).
    Dpt,
    /// Depths by Depth Anything.
    DepthAnything,
}

/// Kinds of files, by tensors that only they have.
const FILES: [(&str, NetworkKind); 5] = [
    ("block1.projection.weight", NetworkKind::Hed),
    ("model0.1.weight", NetworkKind::Lineart),
    (lineart_anime::MARK, NetworkKind::LineartAnime),
    (mlsd::MARK, NetworkKind::Mlsd),
    ("conv5_1_CPM_L1.weight", NetworkKind::Body),
];

/// Kinds of folders, by transformers' `architectures`.
const CLASSES: [(&str, NetworkKind); 2] = [
    ("DPTForDepthEstimation", NetworkKind::Dpt),
    (
        "DepthAnythingForDepthEstimation",
        NetworkKind::DepthAnything,
    ),
];

impl NetworkKind {
    /// The kind of a safetensors file or a folder as transformers writes it.
    ///
    /// # Errors
    /// [`Error::BadModel`] for other ones, pickles with how to convert them, and damage.
    pub fn of(path: &Path) -> Result<Self> {
        let bad = |reason| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        if path.is_dir() {
            let json: Value = Folder::Disk(path.to_path_buf()).json("config.json")?;
            let class = json.pointer("/architectures/0").and_then(Value::as_str);
            let found = CLASSES.iter().find(|(name, _)| Some(*name) == class);
            return found.map(|(_, kind)| *kind).ok_or_else(|| {
                let known: Vec<_> = CLASSES.iter().map(|(name, _)| *name).collect();
                bad(format!(
                    "preprocessors of the class {} are not implemented; there are {}",
                    class.unwrap_or("(none named)"),
                    known.join(", ")
                ))
            });
        }
        if path.extension().is_some_and(|ending| ending == "onnx") {
            return Err(bad(
                "ONNX files are not read (DWPose is one): use OpenPose's body_pose_model as safetensors, or make the picture with another program"
                    .to_string(),
            ));
        }
        let weights = Weights::open(path)?;
        let found = FILES.iter().find(|(name, _)| weights.contains(name));
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            bad("this is no network of a preprocessor that is implemented".to_string())
        })
    }
}

/// Folders with networks that preprocessors need: safetensors files, and folders as transformers writes them.
#[derive(Debug, Clone, Default)]
pub struct NetworkFolders(Vec<PathBuf>);

impl NetworkFolders {
    /// Takes folders; those that do not exist have none.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self(folders)
    }

    /// Paths and kinds, sorted by path within each folder; what is of no kind is left out.
    pub fn list(&self) -> Vec<(PathBuf, NetworkKind)> {
        let mut found = Vec::new();
        for folder in &self.0 {
            let kinds = offers(folder, true).into_iter();
            found.extend(kinds.filter_map(|path| {
                let kind = NetworkKind::of(&path).ok()?;
                Some((path, kind))
            }));
        }
        found
    }

    /// The network that a preprocessor is made of, if there is one: the first that suits it.
    pub fn find(&self, kind: Kind) -> Option<PathBuf> {
        kind.network()?.choose(&self.list())
    }

    /// The preprocessors that can be had with these networks.
    pub fn kinds(&self) -> Vec<Kind> {
        let list = self.list();
        let has = |kind: &Kind| {
            kind.network()
                .is_none_or(|needs| needs.choose(&list).is_some())
        };
        Kind::all().filter(has).collect()
    }
}

/// Which networks a preprocessor takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Any of these kinds, the first preferred.
    pub kinds: &'static [NetworkKind],
    /// Words of which a file's name must have one; the kinds of networks with such a word that others of their kind do not
    /// want are in [`Self::without`].
    pub with: &'static [&'static str],
    /// Words that a file's name must not have.
    pub without: &'static [&'static str],
}

impl Needs {
    /// The first that suits.
    fn choose(&self, list: &[(PathBuf, NetworkKind)]) -> Option<PathBuf> {
        let named = |path: &Path, words: &[&str]| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name.to_lowercase();
            words.iter().any(|word| name.contains(word))
        };
        let suits = |path: &Path| {
            (self.with.is_empty() || named(path, self.with)) && !named(path, self.without)
        };
        self.kinds.iter().find_map(|wanted| {
            let of_kind = list.iter().filter(|(_, kind)| kind == wanted);
            let mut suiting = of_kind.filter(|(path, _)| suits(path));
            suiting.next().map(|(path, _)| path.clone())
        })
    }
}
