//! What a folder of pictures says about the lines that they are of, so that a batch goes on where it stopped.
//!
//! A file of JSON lines: one with the settings of each run, and one for each line that is done.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// Its name in the folder.
const NAME: &str = "batch.jsonl";
/// Longest journal.
const MAX_BYTES: u64 = 512 << 20;

/// A picture of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Written {
    /// Its file, in the folder.
    pub file: String,
    pub seed: u64,
}

/// An entry of the journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// What the lines after it were done with.
    Run { model: String, settings: String },
    /// A line that is done.
    Line {
        number: usize,
        text: String,
        images: Vec<Written>,
    },
}

/// The journal of a folder, which one process has at a time.
pub(super) struct Journal {
    folder: PathBuf,
    file: File,
    done: HashMap<(usize, String), Vec<Written>>,
}

impl Journal {
    /// Opens the journal of a folder, and begins a run with these settings.
    ///
    /// # Errors
    /// [`Error::Usage`] if another process has it; [`Error::Io`] if it cannot be read or written.
    pub(super) fn open(folder: &Path, model: &str, settings: &str) -> Result<Self> {
        let path = folder.join(NAME);
        let failed = |e| Error::io(&path)(e);
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let reason = format!("another batch writes to {}", folder.display());
                return Err(Error::Usage(reason));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() || about.len() > MAX_BYTES {
            let reason = format!(
                "{} is not a file of at most {MAX_BYTES} bytes",
                path.display()
            );
            return Err(Error::Usage(reason));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        file.seek(SeekFrom::End(0)).map_err(failed)?;
        let done = done(&String::from_utf8_lossy(&bytes), model, settings);
        let mut journal = Self {
            folder: folder.to_path_buf(),
            file,
            done,
        };
        if bytes.last().is_some_and(|last| *last != b'\n') {
            // It was cut off.
            journal.file.write_all(b"\n").map_err(failed)?;
        }
        journal.write(&Entry::Run {
            model: model.to_string(),
            settings: settings.to_string(),
        })?;
        Ok(journal)
    }

    /// The pictures of a line, if it is done and all of them are there.
    pub(super) fn done(&self, number: usize, text: &str) -> Option<&[Written]> {
        let images = self.done.get(&(number, text.to_string()))?;
        let is_there = |image: &Written| {
            let is_name = Path::new(&image.file).file_name() == Some(image.file.as_ref());
            let about = std::fs::metadata(self.folder.join(&image.file));
            is_name && about.is_ok_and(|about| about.is_file() && about.len() > 0)
        };
        (!images.is_empty() && images.iter().all(is_there)).then_some(images)
    }

    /// A line is done.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be written.
    pub(super) fn add(&mut self, number: usize, text: &str, images: &[Written]) -> Result<()> {
        self.write(&Entry::Line {
            number,
            text: text.to_string(),
            images: images.to_vec(),
        })
    }

    fn write(&mut self, entry: &Entry) -> Result<()> {
        let mut line = serde_json::to_vec(entry).map_err(|e| Error::Runtime(e.to_string()))?;
        line.push(b'\n');
        let written = self
            .file
            .write_all(&line)
            .and_then(|()| self.file.sync_data());
        written.map_err(Error::io(&self.folder.join(NAME)))
    }
}

/// The lines that were done with these settings. What is no entry was cut off, or is somebody else's.
fn done(text: &str, model: &str, settings: &str) -> HashMap<(usize, String), Vec<Written>> {
    let mut done = HashMap::new();
    let mut is_ours = false;
    for entry in text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
    {
        match entry {
            Entry::Run {
                model: of,
                settings: with,
            } => is_ours = of == model && with == settings,
            Entry::Line {
                number,
                text,
                images,
            } if is_ours => {
                done.insert((number, text), images);
            }
            Entry::Line { .. } => {}
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(file: &str) -> Vec<Written> {
        vec![Written {
            file: file.to_string(),
            seed: 5,
        }]
    }

    #[test]
    fn what_is_done_is_known_again() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.png", "b.png"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        {
            let mut journal = Journal::open(folder.path(), "m", "s").unwrap();
            journal.add(1, "a", &image("a.png")).unwrap();
            journal.add(2, "b", &image("gone.png")).unwrap();
            journal.add(3, "c", &image("../b.png")).unwrap();
            assert!(Journal::open(folder.path(), "m", "s").is_err());
        }
        let path = folder.path().join(NAME);
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"{\"line\": {\"number\": 4, \"te\xff");
        std::fs::write(&path, text).unwrap();
        {
            let mut journal = Journal::open(folder.path(), "m", "s").unwrap();
            assert_eq!(journal.done(1, "a"), Some(&image("a.png")[..]));
            for (number, text) in [(1, "b"), (2, "a"), (2, "b"), (3, "c"), (4, "d")] {
                assert_eq!(journal.done(number, text), None, "{number} {text}");
            }
            journal.add(5, "e", &image("b.png")).unwrap();
        }
        let again = Journal::open(folder.path(), "m", "s").unwrap();
        assert!(again.done(1, "a").is_some() && again.done(5, "e").is_some());
        drop(again);
        // Other settings make other pictures.
        for (model, settings) in [("m", "t"), ("n", "s")] {
            let other = Journal::open(folder.path(), model, settings).unwrap();
            assert_eq!(other.done(1, "a"), None);
        }
    }
}
