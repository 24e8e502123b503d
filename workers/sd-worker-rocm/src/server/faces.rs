//! What jobs can ask of faces.

use crate::faces::{FaceFolders, RestoreFaces, WEIGHT};
use schemars::JsonSchema;
use serde::Deserialize;
use worker::http::ApiError;

/// Faces restored.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FacesBody {
    /// One of the server's networks that restore faces, or `GFPGAN` or `CodeFormer` for the first of that kind.
    model: String,
    /// For CodeFormer, how much of the given face is let through.
    #[serde(default = "usual_weight")]
    weight: f64,
    /// How much of the restored faces is seen.
    #[serde(default = "one")]
    visibility: f64,
    /// Only the face nearest to the middle.
    #[serde(default)]
    only_center: bool,
}

fn usual_weight() -> f64 {
    WEIGHT
}

fn one() -> f64 {
    1.0
}

impl FacesBody {
    /// What is asked for.
    ///
    /// # Errors
    /// 400 for a network that the server does not have.
    pub(super) fn read(self, folders: &FaceFolders) -> Result<RestoreFaces, ApiError> {
        let found = folders.find(&self.model);
        Ok(RestoreFaces {
            weight: self.weight,
            visibility: self.visibility,
            only_center: self.only_center,
            ..found.map_err(|e| ApiError::field("restore_faces", e.to_string()))?
        })
    }
}
