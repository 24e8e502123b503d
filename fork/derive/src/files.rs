//! Reading and writing folders of source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The path of a file below `base` with `/` between its parts, on every system.
pub(crate) fn relative_name(path: &Path, base: &Path) -> String {
    let relative = path.strip_prefix(base).unwrap_or(path);
    let parts: Vec<_> = relative.iter().map(|p| p.to_string_lossy()).collect();
    parts.join("/")
}

/// All files below `dir`, sorted; none if there is no such folder.
pub(crate) fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !dir.is_dir() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Leaves the file's time stamp alone if nothing changed, so that nothing is rebuilt for nothing. Nobody sees half of
/// the file.
pub(crate) fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
    let part = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&part, bytes).map_err(Error::io(&part))?;
    std::fs::rename(&part, path).map_err(Error::io(path))
}

/// Removes the files of `out/src` and `out/tests` that `keep` does not name.
pub(crate) fn remove_stale(out: &Path, keep: &BTreeSet<String>) -> Result<()> {
    for folder in ["src", "tests"] {
        for path in files_below(&out.join(folder))? {
            if !keep.contains(&relative_name(&path, out)) {
                std::fs::remove_file(&path).map_err(Error::io(&path))?;
            }
        }
    }
    Ok(())
}

/// The text files below `folder`, by their name relative to it.
///
/// # Errors
/// If one of them cannot be read.
pub fn texts_below(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for path in files_below(folder)? {
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        if let Ok(text) = String::from_utf8(bytes) {
            texts.insert(relative_name(&path, folder), text);
        }
    }
    Ok(texts)
}
