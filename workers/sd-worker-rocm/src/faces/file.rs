//! Files with networks for faces.

use crate::models::faces::Kind;
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::weights::Weights;
use candle_core::{DType, Device};
use std::path::Path;
use worker::{Error, Result};

/// A file and what it is.
pub(super) struct Opened {
    pub kind: Kind,
    pub weights: Weights,
}

impl Opened {
    /// Opens a file that must be of a kind that is wanted.
    ///
    /// # Errors
    /// [`Error::BadModel`] for pickles, with how to convert them, other files, and damage.
    pub fn of(path: &Path, wanted: impl Fn(Kind) -> bool) -> Result<Self> {
        let weights = Weights::open(path)?;
        let (kind, weights) = Kind::of(&weights).map_err(|reason| bad(path, reason))?;
        match wanted(kind) {
            true => Ok(Self { kind, weights }),
            false => Err(bad(
                path,
                format!("this is {}, another network is wanted here", kind.label()),
            )),
        }
    }
}

pub(super) fn bad(path: &Path, reason: String) -> Error {
    Error::BadModel {
        path: path.to_path_buf(),
        reason,
    }
}

/// A network of these weights. It computes in f32: faces are few and small, and their networks exceed f16.
pub(super) fn network<M>(
    name: &'static str,
    weights: Weights,
    device: &Device,
    build: impl Fn(VarBuilder) -> candle_core::Result<M> + Send + Sync + 'static,
) -> Result<Module<M>> {
    Module::new(name, weights, DType::F32, device, false, build)
}
