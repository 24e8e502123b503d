//! Files that nobody but their owner may have written: what is read from them is run.
//!
//! A file counts only if it and its directory belong to this user (or to root, who can do anything anyway) and no
//! others may write them. Links are not followed, and special files are not opened: a directory that others may write
//! to, below `/tmp` or on a shared disk, would otherwise run their code, overwrite files that they have linked, or wait
//! for ever for a FIFO.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// Why a directory's files are not used, and what to do; none if it is not there yet.
///
/// # Errors
/// The reason.
pub fn check_directory(directory: &Path) -> Result<(), String> {
    let name = directory.display();
    if directory.is_relative() {
        return Err(format!("{name} is a relative path; give an absolute one"));
    }
    match std::fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("{name} cannot be used: {error}")),
        Ok(metadata) if !metadata.is_dir() => Err(format!("{name} is not a directory")),
        Ok(metadata) => system::only_ours(&metadata).map_err(|reason| format!("{name} {reason}")),
    }
}

/// All of a file of at most `most` bytes.
///
/// # Errors
/// The operating system's; [`io::ErrorKind::PermissionDenied`] if others may have written it.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > most {
        return Err(io::Error::other(format!("it is longer than {most} bytes")));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file for reading.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn open(path: &Path) -> io::Result<File> {
    check_parent(path)?;
    let file = system::careful(OpenOptions::new().read(true)).open(path)?;
    check_file(&file)?;
    Ok(file)
}

/// Opens a file for locking, made if it is not there; its directory, too.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn open_lock(path: &Path) -> io::Result<File> {
    make_parent(path)?;
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file = system::careful(&mut options).open(path)?;
    check_file(&file)?;
    Ok(file)
}

/// Writes a file as `temporary` and gives it its name when it is complete: a reader sees all of it or none. A file of
/// the temporary name is a leftover and replaced; a link there is removed, not followed.
///
/// # Errors
/// Those of [`read`].
pub fn replace(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    make_parent(path)?;
    let _ = std::fs::remove_file(temporary);
    let mut options = OpenOptions::new();
    options.create_new(true).write(true);
    let mut file = system::careful(&mut options).open(temporary)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(temporary, path));
    if written.is_err() {
        // Nothing depends on the leftover; the error of writing is the one that counts.
        let _ = std::fs::remove_file(temporary);
    }
    written
}

fn make_parent(path: &Path) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(directory)?;
    }
    check_parent(path)
}

fn check_parent(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path);
    check_directory(directory).map_err(denied)
}

fn check_file(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => system::only_ours(&metadata).map_err(denied),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

fn denied(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(unix)]
mod system {
    use std::fs::{Metadata, OpenOptions};
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    /// Permission to write for the group and for all others.
    const OTHERS_WRITE: u32 = 0o022;
    const ROOT: u32 = 0;

    /// New files are the owner's alone, links are not followed, FIFOs and devices not waited for.
    pub(super) fn careful(options: &mut OpenOptions) -> &mut OpenOptions {
        options
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
    }

    pub(super) fn only_ours(metadata: &Metadata) -> Result<(), String> {
        // SAFETY: the call takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        if metadata.uid() != user && metadata.uid() != ROOT {
            return Err(format!(
                "belongs to user {}, and this process runs as user {user}; name a directory of its own in CANDLE_ROCM_CACHE_DIR",
                metadata.uid()
            ));
        }
        match metadata.mode() & OTHERS_WRITE {
            0 => Ok(()),
            _ => Err(format!(
                "may be written by others (mode {:o}), who could put code there; take that from them with chmod go-w, or name another in CANDLE_ROCM_CACHE_DIR",
                metadata.mode() & 0o7777
            )),
        }
    }
}

/// Where there are no owners and modes of this kind, the user's own folders are taken to be theirs.
#[cfg(not(unix))]
mod system {
    use std::fs::{Metadata, OpenOptions};

    pub(super) fn careful(options: &mut OpenOptions) -> &mut OpenOptions {
        options
    }

    pub(super) fn only_ours(_: &Metadata) -> Result<(), String> {
        Ok(())
    }
}
