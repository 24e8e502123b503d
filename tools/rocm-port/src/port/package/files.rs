//! Files of a port: the copy of a crate, and what is written into it.

use super::{PackageError, Place};
use crate::source::Sources;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use walkdir::WalkDir;

/// What a copy does not take along: results of builds, and what the registry put beside the sources. The lock file names
/// versions of candle that the port leaves.
const LEFT: &[&str] = &[
    "target",
    ".git",
    "node_modules",
    "Cargo.lock",
    "Cargo.toml.orig",
    ".cargo-ok",
    ".cargo_vcs_info.json",
];

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> PackageError + '_ {
    move |error| PackageError::Io {
        path: path.to_path_buf(),
        error,
    }
}

/// Makes the folder that the result goes to, with the crate's files, and gives its path.
pub(super) fn prepare(sources: &Sources, place: &Place) -> Result<PathBuf, PackageError> {
    let real = empty(sources, place)?;
    if *place == Place::InPlace {
        return Ok(real);
    }
    let walk = WalkDir::new(&sources.root).max_depth(64).into_iter();
    let walk = walk.filter_entry(|entry| {
        entry.depth() == 0 || !LEFT.iter().any(|left| entry.file_name() == *left)
    });
    for entry in walk {
        let entry = entry.map_err(|error| failed(&sources.root)(error.into()))?;
        let Ok(name) = entry.path().strip_prefix(&sources.root) else {
            continue;
        };
        let to = real.join(name);
        // A link that is there already could lead anywhere.
        if to.is_symlink() {
            fs::remove_file(&to).map_err(failed(&to))?;
        }
        if entry.file_type().is_dir() {
            fs::create_dir_all(&to).map_err(failed(&to))?;
        } else if entry.file_type().is_file() {
            fs::copy(entry.path(), &to).map_err(failed(&to))?;
        }
    }
    Ok(real)
}

/// Makes the folder that the result goes to, and gives its path; in place, it is the crate's own.
pub(in crate::port) fn empty(sources: &Sources, place: &Place) -> Result<PathBuf, PackageError> {
    let (folder, force) = match place {
        Place::InPlace if is_clean(&sources.root) => return Ok(sources.root.clone()),
        Place::InPlace => return Err(PackageError::NotClean(sources.root.clone())),
        Place::Folder(folder, force) => (folder, *force),
    };
    // Nothing is made in the crate, not even for a moment.
    let absolute = std::path::absolute(folder).map_err(failed(folder))?;
    let existing = absolute
        .ancestors()
        .find_map(|path| path.canonicalize().ok());
    if existing.is_some_and(|path| path.starts_with(&sources.root)) {
        return Err(PackageError::Inside(folder.clone()));
    }
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let real = folder.canonicalize().map_err(failed(folder))?;
    if sources.root.starts_with(&real) {
        return Err(PackageError::Inside(folder.clone()));
    }
    let mut entries = fs::read_dir(&real).map_err(failed(folder))?;
    if entries.next().is_some() && !force {
        return Err(PackageError::NotEmpty(folder.clone()));
    }
    Ok(real)
}

fn is_clean(folder: &Path) -> bool {
    let status = Command::new("git")
        .args(["status", "--porcelain"])
        .current_dir(folder)
        .output();
    status.is_ok_and(|output| output.status.success() && output.stdout.is_empty())
}

/// The text of a file of the result.
pub(super) fn read(path: &Path) -> Result<String, PackageError> {
    fs::read_to_string(path).map_err(failed(path))
}

/// Writes a file of the result, with its folder.
pub(in crate::port) fn write(path: &Path, text: &str) -> Result<(), PackageError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed(parent))?;
    }
    if path.is_symlink() {
        fs::remove_file(path).map_err(failed(path))?;
    }
    fs::write(path, text).map_err(failed(path))
}
