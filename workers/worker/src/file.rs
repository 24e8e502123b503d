//! Files that others wrote, opened so that none of them can hang the program or fill its memory: a model folder may
//! hold a FIFO without a writer, a link to `/dev/zero`, or a directory where a file should be.

use crate::{Error, Result};
use memmap2::Mmap;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file for reading; links are followed.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for whatever is not a regular file, by name; the operating system's.
pub fn open(path: &Path) -> io::Result<File> {
    // Without waiting: a FIFO would wait for a writer, some devices for whatever they are.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(
            ErrorKind::InvalidInput,
            format!("it is {}, not a regular file", name_of(kind)),
        )),
    }
}

fn name_of(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

/// All of a regular file of at most `most` bytes.
///
/// # Errors
/// Those of [`open`]; [`ErrorKind::InvalidInput`] if it is longer.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_long(most));
    }
    bounded(file, length, most)
}

/// The same as UTF-8.
///
/// # Errors
/// Those of [`read`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    utf8(read(path, most)?)
}

/// Text of at most `most` bytes from something that the user named for its text: a file, a pipe, or standard input for
/// `-`. Waits for whoever writes it.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] if it is longer; [`ErrorKind::InvalidData`] if it is not UTF-8; the operating system's.
pub fn read_stream(path: &Path, most: u64) -> io::Result<String> {
    let bytes = match path == Path::new("-") {
        true => bounded(io::stdin().lock(), 0, most),
        false => bounded(File::open(path)?, 0, most),
    };
    utf8(bytes?)
}

/// Maps a regular file for reading. It must not be cut short while it is mapped: reading pages that are gone ends the
/// process, as for every program that maps files, which then says so.
///
/// # Errors
/// Those of [`open`].
pub fn map(path: &Path) -> io::Result<Mmap> {
    let file = open(path)?;
    crate::signal::explain_bus_errors();
    // SAFETY: the map is only read, as bytes; for files that shrink see above.
    unsafe { Mmap::map(&file) }
}

/// Writes a file as a whole: nobody sees half of it, a file that was there stays until then, and nothing is left of one
/// that could not be written. Its permissions are those of every new file.
///
/// # Errors
/// The operating system's.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // A name of its own that nobody can have put a link at; the file is not made where there is one.
    let unfinished = folder.join(format!(".{}.part", crate::ids::uuid().simple()));
    let mut file = File::create_new(&unfinished)?;
    let written =
        io::Write::write_all(&mut file, bytes).and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        // The error of writing is the one that counts.
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

/// That files which another library opens by their paths are regular ones.
///
/// # Errors
/// [`Error::Io`] with the first that is not.
pub fn check_all<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<()> {
    for path in paths {
        open(path.as_ref()).map_err(Error::io(path.as_ref()))?;
    }
    Ok(())
}

fn bounded(source: impl Read, length: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // What a file system says about a length need not hold.
    source
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(too_long(most)),
        false => Ok(bytes),
    }
}

fn too_long(most: u64) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidInput,
        format!("it is longer than the {most} bytes that are read"),
    )
}

fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_regular_files_are_opened_and_none_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let fifo = path("fifo");
        assert!(Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success());
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        std::os::unix::fs::symlink("loop", path("loop")).unwrap();
        std::os::unix::fs::symlink("/dev/urandom", path("random")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for (name, what) in [
            ("fifo", "a named pipe"),
            ("zero", "a device"),
            ("random", "a device"),
            (".", "a directory"),
        ] {
            for error in [
                open(&path(name)).unwrap_err(),
                read(&path(name), 10).unwrap_err(),
                map(&path(name)).unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
                assert!(error.to_string().contains(what), "{name}: {error}");
            }
        }
        for name in ["loop", "socket", "absent"] {
            assert!(open(&path(name)).is_err(), "{name}");
        }
        let error = Error::io(&path("loop"))(open(&path("loop")).unwrap_err());
        assert_eq!(error.exit_code(), crate::error::EXIT_BAD_INPUT, "{error}");
    }

    #[test]
    fn a_file_is_written_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("picture.png");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        // A folder where the file should be: the file is complete, and cannot have its name.
        let occupied = folder.path().join("occupied");
        std::fs::create_dir(&occupied).unwrap();
        assert!(replace(&occupied, b"three").is_err());
        assert!(replace(&folder.path().join("absent/x.png"), b"four").is_err());
        let names = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 2, "something was left");
    }

    #[test]
    fn lengths_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "twelve bytes").unwrap();
        std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
        assert_eq!(
            read_text(&folder.path().join("link"), 12).unwrap(),
            "twelve bytes"
        );
        assert_eq!(&map(&path).unwrap()[..], b"twelve bytes");
        for error in [
            read(&path, 11).unwrap_err(),
            read_stream(&path, 11).unwrap_err(),
        ] {
            assert!(
                error.to_string().contains("longer than the 11 bytes"),
                "{error}"
            );
        }
        // A file of no length by its metadata that has content, and one that is long only by its metadata.
        assert!(!read(Path::new("/proc/self/status"), 1 << 20)
            .unwrap()
            .is_empty());
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&path, 1 << 20).is_err());
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(
            read_text(&path, 9).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        assert!(read_stream(Path::new("/dev/zero"), 1 << 10).is_err());
    }
}
