//! Quantized checkpoints: matrices of several tensors (weights, scales, shapes) seen as one, in a format of blocks that
//! holds the same numbers.
//!
//! `quantization_config` says how modules are stored ([`Quantization`]). Tensors of a module are gathered ([`Parts`]) and
//! become a [`Matrix`], whose [`Layout`] makes rows when they are asked for. A layout more is a variant of
//! [`scheme::Scheme`], what a configuration must say for it, and a [`Layout`] that [`build`] makes of a module's tensors.
//!
//! Scales of activations are read by nobody: activations keep their types.

mod build;
mod float4;
mod float8;
mod integers;
mod matrix;
mod names;
mod parts;
mod scales;
mod scheme;
#[cfg(test)]
mod tests;

pub(super) use build::Known;
pub(super) use matrix::Matrix;
pub(super) use parts::Parts;
pub(super) use scheme::Quantization;

use crate::folder::read_json;
use serde_json::Value as Json;
use std::path::Path;
use worker::Result;

/// Adds what ModelOpt says beside `config.json` in a file of its own, if the latter says nothing.
///
/// # Errors
/// Those of [`read_json`].
pub(super) fn with_own_file(folder: &Path, config: &mut Json) -> Result<()> {
    if config.is_object() && config["quantization_config"].is_null() {
        if let Some(own) = read_json(folder, "hf_quant_config.json")? {
            if !own["quantization"]["quant_algo"].is_null() {
                config["quantization_config"] = own;
            }
        }
    }
    Ok(())
}
