//! The page `FIXES.md` of a package, from the headers of its patches.

use std::path::Path;

use crate::error::{Error, Result};
use crate::patch::{Kind, Patch};
use crate::recipe::{Recipe, Stage};

/// `FIXES.md` of the package in `package`.
///
/// # Errors
/// [`Error::Patch`] if a patch gives no reason or cannot be read.
pub fn fixes_page(recipe: &Recipe, package: &Path) -> Result<String> {
    let patches = Stage::Upstream.series(package)?.patches;
    let mut page = format!(
        "# Faults of {} {} that are mended here\n\n\
         With the feature `rocm` or without. `cargo run -p candle-derive -- fixes` writes this page from the headers of `patches/`.\n",
        recipe.name, recipe.version
    );
    for patch in patches.iter().filter(|patch| patch.kind == Kind::Fix) {
        page.push_str(&section(patch)?);
    }
    if patches.iter().any(|patch| patch.kind == Kind::Speed) {
        page.push_str("\n# No faults, but faster here\n");
    }
    for patch in patches.iter().filter(|patch| patch.kind == Kind::Speed) {
        page.push_str(&section(patch)?);
    }
    Ok(page)
}

fn section(patch: &Patch) -> Result<String> {
    if patch.reason.is_empty() {
        let message = "it gives no reason: say after the subject and a blank line what upstream does and what the patch does instead";
        return Err(Error::patch(&patch.path, message));
    }
    let files: Vec<_> = patch.files().map(|file| format!("`{file}`")).collect();
    let (subject, reason, name) = (&patch.subject, &patch.reason, patch.name());
    Ok(format!(
        "\n## {subject}\n\n{reason}\n\nIn {}: [the patch](patches/{name}).\n",
        files.join(", ")
    ))
}
