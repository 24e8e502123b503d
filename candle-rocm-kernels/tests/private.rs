//! What others may have written is not run, and what they have put in the way is neither followed nor waited for.
#![cfg(unix)]

use candle_rocm_kernels::{
    private, Cache, CacheStats, CompileError, CompileRequest, Compiler, Storage,
};
use std::fs::Permissions;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Echo;

impl Compiler for Echo {
    fn id(&self) -> String {
        "echo".to_string()
    }

    fn compile(&self, request: &CompileRequest) -> Result<Vec<u8>, CompileError> {
        Ok(request.source.as_bytes().to_vec())
    }
}

const REQUEST: CompileRequest = CompileRequest {
    name: "fill.hip",
    source: "source text",
    arch: "gfx942",
    options: &[],
};

fn cache(directory: &Path) -> Cache {
    Cache::new(Storage::Directory(directory.to_path_buf()))
}

/// What a new cache does in a directory; the object is the right one whatever it is.
fn stats(directory: &Path) -> CacheStats {
    let cache = cache(directory);
    assert_eq!(
        cache.get_or_compile(&Echo, &REQUEST).unwrap(),
        b"source text"
    );
    cache.stats()
}

/// A directory with the entry in it.
fn filled() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(stats(directory.path()).compiled, 1);
    let entry = cache(directory.path()).entry_path(&Echo, &REQUEST).unwrap();
    (directory, entry)
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn a_directory_that_others_may_write_is_not_used() {
    let (directory, _) = filled();
    for bits in [0o777, 0o770, 0o702, 0o1777] {
        mode(directory.path(), bits);
        let refused = stats(directory.path());
        assert_eq!(
            (refused.hits, refused.compiled, refused.not_stored),
            (0, 1, 1),
            "{bits:o}"
        );
        let reason = cache(directory.path()).refusal().unwrap();
        assert!(reason.contains("chmod go-w"), "{reason}");
    }
    for bits in [0o700, 0o755] {
        mode(directory.path(), bits);
        assert_eq!(cache(directory.path()).refusal(), None);
        assert_eq!(stats(directory.path()).hits, 1, "{bits:o}");
    }
}

#[test]
fn an_entry_that_others_may_write_is_compiled_anew() {
    let (directory, entry) = filled();
    mode(&entry, 0o666);
    let again = stats(directory.path());
    assert_eq!((again.hits, again.compiled), (0, 1));
    assert_eq!(
        entry.metadata().unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(stats(directory.path()).hits, 1);
}

#[test]
fn files_of_another_user_do_not_count() {
    if !is_root() {
        // Only root can give files away.
        return;
    }
    let (directory, entry) = filled();
    std::os::unix::fs::chown(&entry, Some(1234), None).unwrap();
    assert_eq!(stats(directory.path()).hits, 0);
    let (directory, _) = filled();
    std::os::unix::fs::chown(directory.path(), Some(1234), None).unwrap();
    assert_eq!(stats(directory.path()).hits, 0);
    let reason = cache(directory.path()).refusal().unwrap();
    assert!(reason.contains("belongs to user 1234"), "{reason}");
}

#[test]
fn links_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("victim");
    let folder = directory.path().join("cache");
    std::fs::create_dir(&folder).unwrap();
    mode(&folder, 0o700);
    let entry = cache(&folder).entry_path(&Echo, &REQUEST).unwrap();
    std::fs::write(&victim, "precious").unwrap();
    // In the place of the entry's lock, of its temporary file, of the entry.
    symlink(&victim, entry.with_extension("lock")).unwrap();
    assert_eq!(stats(&folder).not_stored, 1);
    std::fs::remove_file(entry.with_extension("lock")).unwrap();
    symlink(&victim, entry.with_extension("tmp")).unwrap();
    assert_eq!(stats(&folder).compiled, 1);
    std::fs::remove_file(&entry).unwrap();
    symlink(&victim, &entry).unwrap();
    let replaced = stats(&folder);
    assert_eq!((replaced.hits, replaced.compiled), (0, 1));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert!(!entry.is_symlink() && stats(&folder).hits == 1);
}

#[test]
fn special_and_sparse_files_are_not_read() {
    let (directory, entry) = filled();
    let fifo = |path: &Path| {
        let _ = std::fs::remove_file(path);
        assert!(Command::new("mkfifo")
            .arg("-m600")
            .arg(path)
            .status()
            .unwrap()
            .success());
    };
    fifo(&entry);
    assert_eq!(stats(directory.path()).compiled, 1);
    fifo(&entry.with_extension("lock"));
    std::fs::remove_file(&entry).unwrap();
    assert_eq!(stats(directory.path()).not_stored, 1);
    std::fs::remove_file(entry.with_extension("lock")).unwrap();
    fifo(&entry.with_extension("tmp"));
    assert_eq!(stats(directory.path()).compiled, 1);
    // A whole header, and 30 GB behind it that are not what it says.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&entry)
        .unwrap();
    file.set_len(30 << 30).unwrap();
    assert_eq!(stats(directory.path()).compiled, 1);
    assert_eq!(stats(directory.path()).hits, 1);
}

#[test]
fn what_is_kept_beside_the_cache_is_as_private() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("made/known.tsv");
    let temporary = path.with_extension("part");
    private::replace(&path, &temporary, b"text").unwrap();
    assert_eq!(private::read(&path, 4).unwrap(), b"text");
    assert!(private::read(&path, 3).is_err());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    mode(path.parent().unwrap(), 0o777);
    assert!(private::read(&path, 4).is_err());
    assert!(private::replace(&path, &temporary, b"other").is_err());
    assert!(private::check_directory(Path::new("relative")).is_err());
}
