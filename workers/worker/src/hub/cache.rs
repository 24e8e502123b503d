//! A repository's folder in the cache that Hugging Face's own tools use, in
//! [their layout](https://huggingface.co/docs/huggingface_hub/guides/manage-cache):
//!
//! ```text
//! models--owner--name/blobs/ETAG             content
//! models--owner--name/blobs/ETAG.incomplete  the beginning of it
//! models--owner--name/snapshots/COMMIT/FILE  a link to the blob
//! models--owner--name/refs/REVISION          the commit of a branch or tag
//! .locks/models--owner--name/ETAG.lock       held by whoever writes the blob
//! ```

use super::trouble::Trouble;
use crate::file;
use std::fs::File;
use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest text of a ref.
const MAX_REF_BYTES: u64 = 1 << 10;
/// How often a lock that another process holds is tried.
const LOCK_PAUSE: Duration = Duration::from_millis(250);
/// How often the user is told that another process holds a lock.
const LOCK_NOTICE: Duration = Duration::from_secs(60);

/// A repository's folder. Names are checked by the caller.
#[derive(Debug, Clone)]
pub(super) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    /// Of a model repository in this cache.
    pub fn new(cache: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self {
            folder: cache.join(&name),
            locks: cache.join(".locks").join(name),
        }
    }

    /// The commit that a branch or tag was at when it was last asked for.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        let text = file::read_text(&self.folder.join("refs").join(revision), MAX_REF_BYTES).ok()?;
        Some(text.trim().to_string())
    }

    /// The folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Where content is.
    fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Whether content is there, as far as its length tells.
    pub fn holds(&self, etag: &str, size: Option<u64>) -> bool {
        // Python may have a link to a store that several caches share.
        std::fs::metadata(self.blob(etag))
            .is_ok_and(|blob| blob.is_file() && size.is_none_or(|size| size == blob.len()))
    }

    /// Waits until no other process writes this content. The second value says whether one did.
    pub fn lock(&self, etag: &str) -> Result<(File, bool), Trouble> {
        std::fs::create_dir_all(&self.locks).map_err(Trouble::io(&self.locks))?;
        let path = self.locks.join(format!("{etag}.lock"));
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(Trouble::io(&path))?;
        let mut waited = false;
        let mut told: Option<Instant> = None;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok((lock, waited)),
                Err(std::fs::TryLockError::Error(source)) => {
                    return Err(Trouble::Io { path, source })
                }
                Err(std::fs::TryLockError::WouldBlock) => waited = true,
            }
            if told.is_none_or(|told| told.elapsed() >= LOCK_NOTICE) {
                tracing::info!(
                    "another process is downloading the same file; waiting for {}",
                    path.display()
                );
                told = Some(Instant::now());
            }
            std::thread::sleep(LOCK_PAUSE);
        }
    }

    /// What there is of content whose lock is held.
    pub fn part(&self, etag: &str) -> Result<Part, Trouble> {
        let blob = self.blob(etag);
        let path = self.folder.join("blobs").join(format!("{etag}.incomplete"));
        let blobs = self.folder.join("blobs");
        std::fs::create_dir_all(&blobs).map_err(Trouble::io(&blobs))?;
        let open = || {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(&path)?;
            let metadata = file.metadata()?;
            match metadata.is_file() {
                true => Ok((file, metadata.len())),
                false => Err(std::io::Error::other("it is not a regular file; remove it")),
            }
        };
        let (mut file, length) = open().map_err(Trouble::io(&path))?;
        file.seek(SeekFrom::End(0)).map_err(Trouble::io(&path))?;
        Ok(Part {
            file,
            path,
            blob,
            length,
        })
    }

    /// Makes content a file of a commit, and the commit that of the revision.
    pub fn point(
        &self,
        revision: &str,
        commit: &str,
        name: &str,
        etag: &str,
    ) -> Result<PathBuf, Trouble> {
        let pointer = self.snapshot(commit).join(name);
        let folder = pointer.parent().unwrap_or(&pointer);
        std::fs::create_dir_all(folder).map_err(Trouble::io(folder))?;
        let up = "../".repeat(name.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if std::fs::read_link(&pointer).ok().as_ref() != Some(&target) {
            if std::fs::symlink_metadata(&pointer).is_ok() {
                std::fs::remove_file(&pointer).map_err(Trouble::io(&pointer))?;
            }
            match std::os::unix::fs::symlink(&target, &pointer) {
                Ok(()) => {}
                // Another process made the same link.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                // A file system without links.
                Err(_) => {
                    std::fs::copy(self.blob(etag), &pointer)
                        .map(|_| ())
                        .map_err(Trouble::io(&pointer))?;
                }
            }
        }
        if revision != commit && self.commit_of(revision).as_deref() != Some(commit) {
            let path = self.folder.join("refs").join(revision);
            let folder = path.parent().unwrap_or(&path);
            std::fs::create_dir_all(folder).map_err(Trouble::io(folder))?;
            std::fs::write(&path, commit).map_err(Trouble::io(&path))?;
        }
        Ok(pointer)
    }
}

/// The beginning of content.
pub(super) struct Part {
    file: File,
    path: PathBuf,
    blob: PathBuf,
    length: u64,
}

impl Part {
    /// Bytes that are there.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Adds bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        self.file
            .write_all(bytes)
            .map_err(Trouble::io(&self.path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Forgets all bytes.
    pub fn clear(&mut self) -> Result<(), Trouble> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.rewind());
        cleared.map_err(Trouble::io(&self.path))?;
        self.length = 0;
        Ok(())
    }

    /// Its bytes from the first on.
    pub fn content(&mut self) -> Result<impl Read + '_, Trouble> {
        self.file.rewind().map_err(Trouble::io(&self.path))?;
        Ok(&mut self.file)
    }

    /// Where it is, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is whole: from now on it has the content's name.
    pub fn keep(self) -> Result<(), Trouble> {
        self.file.sync_data().map_err(Trouble::io(&self.path))?;
        std::fs::rename(&self.path, &self.blob).map_err(Trouble::io(&self.blob))
    }

    /// Removes it.
    pub fn discard(self) -> Result<(), Trouble> {
        std::fs::remove_file(&self.path).map_err(Trouble::io(&self.path))
    }
}
