//! The valid inputs.

use std::path::PathBuf;

/// The files of a folder of the corpus, by name.
///
/// # Panics
/// If there are none: the checkout is not complete.
pub fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let path = root().join(folder);
    let mut found: Vec<_> = std::fs::read_dir(&path)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name, std::fs::read(entry.path()).ok()?))
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{} has no files", path.display());
    found
}

/// The same as text.
///
/// # Panics
/// As [`files`].
pub fn texts(folder: &str) -> Vec<String> {
    let files = files(folder).into_iter();
    files
        .map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned())
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus")
}
