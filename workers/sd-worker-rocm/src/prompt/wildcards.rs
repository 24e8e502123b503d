//! Wildcards: text files of which drawn prompts take lines.

use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// Largest file of a wildcard, in bytes.
const MOST_FILE_BYTES: u64 = 4 << 20;
/// Most files that a name with `*` can mean.
const MOST_FILES: usize = 1024;
/// Folders of text files.
#[derive(Debug, Clone, Default)]
pub struct Wildcards {
    folder: Option<PathBuf>,
}

impl Wildcards {
    /// The wildcards in a folder.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// The names of its files, sorted; those below `folder/` begin with it. What stands deeper, or cannot be read, is not
    /// listed.
    pub fn list(&self) -> Vec<String> {
        let Some(folder) = &self.folder else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for pattern in ["*", "*/*"] {
            for path in files(folder, pattern).unwrap_or_default() {
                let name = path.strip_prefix(folder).ok();
                let name = name.and_then(|path| path.to_str()?.strip_suffix(".txt"));
                names.extend(name.map(|name| name.replace('\\', "/")));
            }
        }
        names.sort();
        names
    }

    /// The lines of the files that a name means.
    pub(super) fn lines(&self, name: &str) -> Result<Vec<String>> {
        let Some(folder) = &self.folder else {
            return Err(Error::Usage(format!(
                "__{name}__ is a wildcard, and there is no folder of them (--wildcards-dir)"
            )));
        };
        let mut lines = Vec::new();
        for path in files(folder, name)? {
            let text = worker::file::read(&path, MOST_FILE_BYTES)
                .map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?;
            let text = String::from_utf8_lossy(&text);
            let all = text.lines().map(str::trim);
            let counted = all.filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.extend(counted.map(String::from));
        }
        match lines.is_empty() {
            true => Err(Error::Usage(format!(
                "there is no wildcard __{name}__ in {}, or it has no lines",
                folder.display()
            ))),
            false => Ok(lines),
        }
    }
}

/// The files below a folder that a wildcard's name means, sorted. A name does not lead out of the folder.
fn files(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let parts: Vec<&str> = name.split('/').collect();
    if parts
        .iter()
        .any(|part| part.is_empty() || part.starts_with('.'))
    {
        return Ok(Vec::new());
    }
    let mut found = vec![folder.to_path_buf()];
    for (i, part) in parts.iter().enumerate() {
        let is_last = i + 1 == parts.len();
        let mut next = Vec::new();
        for folder in found {
            if !part.contains('*') {
                next.push(match is_last {
                    true => folder.join(format!("{part}.txt")),
                    false => folder.join(part),
                });
                continue;
            }
            // A folder that cannot be read has nothing to offer.
            for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let name = match is_last {
                    true if path.extension().is_none_or(|end| end != "txt") => None,
                    true => path.file_stem(),
                    false => path.file_name(),
                };
                if name.and_then(|n| n.to_str()).is_some_and(|n| fits(part, n)) {
                    next.push(path);
                }
            }
        }
        next.retain(|path| {
            if is_last {
                path.is_file()
            } else {
                path.is_dir()
            }
        });
        if next.len() > MOST_FILES {
            return Err(Error::Usage(format!(
                "the wildcard __{name}__ means more than {MOST_FILES} files"
            )));
        }
        found = next;
    }
    found.sort();
    Ok(found)
}

/// Whether a name fits a pattern, in which `*` is any text.
fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let last = parts.pop();
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}
