//! `preprocessor_config.json` of transformers' image processors: what the kinds that are read here have in common.

use super::config::read;
use crate::weights::folder::Folder;
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;
use worker::{Error, Result};

/// Without effect in every file: notes, how PyTorch is given the picture, what belongs to other steps that are off.
pub const WITHOUT_EFFECT: [&str; 14] = [
    "crop_size",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    // Pictures have three colours here already.
    "do_convert_rgb",
    "feature_extractor_type",
    "image_processor_type",
    // Of prompts in which pictures stand.
    "image_seq_length",
    "input_data_format",
    "pad_size",
    "processor_class",
    "return_tensors",
    "size_divisor",
];

/// A size, in the ways in which files of several ages write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum Size {
    /// Both sides, in pixels.
    Sides {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// The shorter side, in pixels.
    Shortest(usize),
    /// Pixels of the whole picture, under the names of edges.
    Area {
        /// Fewest.
        least: usize,
        /// Most.
        most: usize,
    },
}

impl TryFrom<Value> for Size {
    type Error = String;

    fn try_from(value: Value) -> std::result::Result<Self, String> {
        let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let named = |name: &str| value.get(name).and_then(number);
        let fields = value.as_object().into_iter().flatten();
        let fields = fields.filter(|(_, value)| !value.is_null()).count();
        let size = match fields {
            0 => number(&value).map(|side| Self::Sides {
                height: side,
                width: side,
            }),
            1 => named("shortest_edge").map(Self::Shortest),
            2 => match (named("height"), named("width")) {
                (Some(height), Some(width)) => Some(Self::Sides { height, width }),
                _ => named("shortest_edge")
                    .zip(named("longest_edge"))
                    .map(|(least, most)| Self::Area { least, most }),
            },
            _ => None,
        };
        size.ok_or_else(|| format!("a size of {value} is not known"))
    }
}

/// The settings in this file of a folder, or the usual ones where it is not there.
///
/// # Errors
/// [`Error::BadModel`] for what cannot be read, and what `check` refuses.
pub fn of_folder<T: DeserializeOwned>(
    folder: &Folder,
    name: &str,
    usual: T,
    check: impl FnOnce(&T) -> std::result::Result<(), String>,
) -> Result<T> {
    let settings = match folder.contains(name) {
        true => read(folder.json(name)?),
        false => Ok(usual),
    };
    let checked = settings.and_then(|settings| check(&settings).map(|()| settings));
    checked.map_err(|reason| Error::BadModel {
        path: folder.path(name),
        reason,
    })
}
