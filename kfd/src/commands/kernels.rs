//! `kfd kernels`: this program's kernels, for a machine without clang.

use crate::kernels::object;
use crate::output::{size, Output};
use crate::session::Choice;
use crate::{Error, Result};
use candle_kfd::generation::Generation;
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// For which GPU, and where to.
#[derive(Args, Debug)]
pub struct Options {
    /// The GPU's arch, such as gfx1100.
    arch: String,

    /// The file.
    file: PathBuf,
}

/// Compiles and writes them.
///
/// # Errors
/// [`Error::Usage`] for an arch that candle-kfd refuses, [`Error::Other`] without a compiler, [`Error::File`].
pub fn run(choice: &Choice, options: &Options) -> Result<()> {
    let generation = Generation::of(&options.arch);
    let arch = generation
        .map_err(|error| Error::Usage(error.to_string()))?
        .arch;
    let object = object(arch).map_err(Error::Other)?;
    let path = options.file.display().to_string();
    std::fs::write(&options.file, &object).map_err(|error| Error::File {
        path: path.clone(),
        error,
    })?;
    Output::new(choice.common.json).say(
        "kernels",
        &format!("{path}: kernels for {arch}, {}", size(object.len() as u64)),
        json!({ "file": path, "arch": arch, "bytes": object.len() }),
    );
    Ok(())
}
