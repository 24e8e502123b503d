//! Files with pictures, and their names.

use std::path::{Path, PathBuf};
use worker::{file, Error, Result};

/// Letters of the prompt in a file's name.
const MAX_SLUG: usize = 48;

/// Where pictures go: `00007-SEED-words-of-the-prompt.png` in a folder, numbered on from what is there.
pub(super) struct OutputFolder {
    folder: PathBuf,
    next: u32,
}

impl OutputFolder {
    /// Makes the folder if need be.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be made or read.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let failed = |source| Error::Io {
            path: folder.to_path_buf(),
            source,
        };
        std::fs::create_dir_all(folder).map_err(failed)?;
        let largest = std::fs::read_dir(folder)
            .map_err(failed)?
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let (number, _) = name.to_str()?.split_once('-')?;
                number.parse::<u32>().ok()
            })
            .max();
        Ok(Self {
            folder: folder.to_path_buf(),
            next: largest.map_or(0, |n| n.saturating_add(1)),
        })
    }

    /// The next file's name.
    pub(super) fn next(&mut self, prompt: &str, seed: u64, extension: &str) -> PathBuf {
        let number = self.next;
        self.next = self.next.saturating_add(1);
        let slug = slug(prompt);
        let dash = if slug.is_empty() { "" } else { "-" };
        self.folder
            .join(format!("{number:05}-{seed}{dash}{slug}.{extension}"))
    }
}

/// The prompt's words, as far as any file system takes them.
pub(super) fn slug(prompt: &str) -> String {
    let mut slug = String::new();
    for word in prompt
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
    {
        if slug.len() + word.len() + 1 > MAX_SLUG {
            break;
        }
        if !slug.is_empty() {
            slug.push('-');
        }
        slug.extend(word.chars().flat_map(char::to_lowercase));
    }
    slug
}

/// Writes a file in one step: nobody sees half a picture.
///
/// # Errors
/// [`Error::Io`] if it cannot be written.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    file::replace(path, bytes).map_err(Error::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_clear_and_numbered_on() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("00041-5-x.png"), "").unwrap();
        std::fs::write(folder.path().join("notes.txt"), "").unwrap();
        let mut output = OutputFolder::open(folder.path()).unwrap();
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_string();
        assert_eq!(
            name(output.next("A (red:1.2) Circle, ../é!", 7, "png")),
            "00042-7-a-red-1-2-circle-é.png"
        );
        assert_eq!(name(output.next("", 7, "webp")), "00043-7.webp");
        assert!(slug(&"word ".repeat(100)).len() <= MAX_SLUG);
    }
}
