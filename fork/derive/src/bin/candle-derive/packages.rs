//! The packages of the fork and where things are.

use std::path::{Path, PathBuf};
use std::process::Command;

use candle_derive::{upstream, Recipe};

use crate::Result;

// Only the recipes: nothing of candle is compiled for them.
#[path = "../../../../candle-core/recipe.rs"]
mod candle_core;
#[path = "../../../../candle-nn/recipe.rs"]
mod candle_nn;
#[path = "../../../../candle-transformers/recipe.rs"]
mod candle_transformers;

const RECIPES: [Recipe; 3] = [
    candle_core::RECIPE,
    candle_nn::RECIPE,
    candle_transformers::RECIPE,
];

/// A derived package.
pub struct Package {
    /// How it follows from the published crate.
    pub recipe: Recipe,
    /// Where its manifest, patches and overlay lie.
    pub folder: PathBuf,
}

/// All derived packages in the folder `fork`.
pub fn all(fork: &Path) -> impl Iterator<Item = Package> + '_ {
    RECIPES.into_iter().map(|recipe| Package {
        folder: fork.join(recipe.name),
        recipe,
    })
}

impl Package {
    /// The package of that name in the folder `fork`.
    pub fn named(fork: &Path, name: &str) -> Result<Self> {
        let found = all(fork).find(|package| package.recipe.name == name);
        found.ok_or_else(|| {
            let names: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
            format!(
                "{name} is not a crate of the fork; these are: {}",
                names.join(", ")
            )
        })
    }

    /// Where the published crate lies.
    pub fn upstream(&self) -> Result<PathBuf> {
        let scratch = target()?
            .join("derived")
            .join("upstream")
            .join(self.recipe.name);
        let found = upstream::locate(self.recipe.name, self.recipe.version, &scratch);
        found.map_err(|e| e.to_string())
    }
}

/// The folder `fork/` of the checkout that this program was built from.
pub fn fork() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.parent().map(Path::to_path_buf).unwrap_or(own)
}

/// Cargo's target folder.
pub fn target() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version=1",
            "--manifest-path",
        ])
        .arg(fork().join("derive/Cargo.toml"))
        .output()
        .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|_| {
        format!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
    })?;
    let target = metadata["target_directory"].as_str();
    target
        .map(PathBuf::from)
        .ok_or_else(|| "cargo metadata names no target folder".into())
}

/// Writes a file and says so, or says that it is as it was.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        println!("{}: unchanged", path.display());
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)?;
    println!("{}: written", path.display());
    Ok(())
}
