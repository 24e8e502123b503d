//! Code objects on disk, compiled at most once per machine.
//!
//! An entry is one file: a header with magic, length and checksum, then the object. It is written to a
//! temporary file and renamed, so a reader sees all of it or none. Whoever misses takes the entry's
//! lock file, looks again and compiles; others wait. A damaged entry counts as missing, and so do entries and
//! directories that others may have written ([`crate::private`]): checksums are no signatures.

use crate::compiler::{options_for, CompileError, CompileRequest, Compiler};
use crate::private;
use crate::variables::CACHE_DIR;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"CROCMCO1";
const CHECKSUM_BYTES: usize = 32;
/// Longest object that is read: a hundred times the largest.
const MAX_OBJECT_BYTES: u64 = 1 << 30;
const HEADER_BYTES: usize = MAGIC.len() + size_of::<u64>() + CHECKSUM_BYTES;

/// Where a [`Cache`] keeps its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In this directory, made when first written to.
    Directory(PathBuf),
    /// Nowhere; every request compiles. The text says why.
    None(String),
}

/// What a [`Cache`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests answered from disk.
    pub hits: u64,
    /// Requests that ran the compiler.
    pub compiled: u64,
    /// Damaged entries met.
    pub corrupt: u64,
    /// Objects that could not be stored (full or read-only disk); they were returned all the same.
    pub not_stored: u64,
}

/// A cache of code objects, shared between threads and processes.
#[derive(Debug)]
pub struct Cache {
    storage: Storage,
    hits: AtomicU64,
    compiled: AtomicU64,
    corrupt: AtomicU64,
    not_stored: AtomicU64,
}

impl Cache {
    /// The user's cache: `CANDLE_ROCM_CACHE_DIR`, else `$XDG_CACHE_HOME/candle-rocm`, else
    /// `~/.cache/candle-rocm`; without any of these variables, [`Storage::None`].
    pub fn from_env() -> Self {
        Self::new(storage_from(|name| {
            std::env::var_os(name).filter(|value| !value.is_empty())
        }))
    }

    /// A cache with the given storage.
    pub fn new(storage: Storage) -> Self {
        Self {
            storage,
            hits: AtomicU64::new(0),
            compiled: AtomicU64::new(0),
            corrupt: AtomicU64::new(0),
            not_stored: AtomicU64::new(0),
        }
    }

    /// Where entries are kept.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Why every request compiles, and what to do about it; `None` if entries are kept.
    pub fn refusal(&self) -> Option<String> {
        match &self.storage {
            Storage::Directory(directory) => private::check_directory(directory).err(),
            Storage::None(reason) => Some(reason.clone()),
        }
    }

    /// Counts since this cache was made.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            compiled: self.compiled.load(Ordering::Relaxed),
            corrupt: self.corrupt.load(Ordering::Relaxed),
            not_stored: self.not_stored.load(Ordering::Relaxed),
        }
    }

    /// The file that holds, or would hold, the object for a request; none without storage.
    pub fn entry_path(&self, compiler: &dyn Compiler, request: &CompileRequest) -> Option<PathBuf> {
        match &self.storage {
            Storage::Directory(directory) => {
                Some(directory.join(entry_name(&compiler.id(), request)))
            }
            Storage::None(_) => None,
        }
    }

    /// Whether the object for a request is on disk and sound; it is not counted as a hit.
    pub fn has(&self, compiler: &dyn Compiler, request: &CompileRequest) -> bool {
        let entry = self.entry_path(compiler, request);
        entry.is_some_and(|path| matches!(read_entry(&path), Ok(Some(_))))
    }

    /// The object for a request: from disk, or compiled and then stored.
    ///
    /// Trouble with the cache itself never fails a request; it compiles instead (see [`CacheStats`]).
    ///
    /// # Errors
    /// What the compiler says.
    pub fn get_or_compile(
        &self,
        compiler: &dyn Compiler,
        request: &CompileRequest,
    ) -> Result<Vec<u8>, CompileError> {
        let Some(path) = self.entry_path(compiler, request) else {
            return self.compile(compiler, request);
        };
        if let Some(object) = self.read(&path) {
            return Ok(object);
        }
        // The lock is released when the file is dropped, or by the system if this process dies.
        let Ok(_lock) = lock_entry(&path) else {
            let object = self.compile(compiler, request)?;
            self.not_stored.fetch_add(1, Ordering::Relaxed);
            return Ok(object);
        };
        if let Some(object) = self.read(&path) {
            return Ok(object);
        }
        let object = self.compile(compiler, request)?;
        if write_entry(&path, &object).is_err() {
            self.not_stored.fetch_add(1, Ordering::Relaxed);
        }
        Ok(object)
    }

    fn compile(
        &self,
        compiler: &dyn Compiler,
        request: &CompileRequest,
    ) -> Result<Vec<u8>, CompileError> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        compiler.compile(request)
    }

    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let object = match read_entry(path) {
            Ok(object) => object,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::PermissionDenied
                ) =>
            {
                return None
            }
            // Whatever it is, it is no entry.
            Err(_) => None,
        };
        let counter = if object.is_some() {
            &self.hits
        } else {
            &self.corrupt
        };
        counter.fetch_add(1, Ordering::Relaxed);
        object
    }
}

fn storage_from(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Storage {
    if let Some(directory) = variable(CACHE_DIR.name).map(PathBuf::from) {
        return match directory.is_absolute() {
            true => Storage::Directory(directory),
            false => Storage::None(format!(
                "{} is the relative path {}; give an absolute one, so that kernels come from the same place whatever the working directory",
                CACHE_DIR.name,
                directory.display()
            )),
        };
    }
    let base = variable("XDG_CACHE_HOME")
        .map(PathBuf::from)
        // The XDG specification has relative paths ignored.
        .filter(|base| base.is_absolute())
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")))
        .filter(|base| base.is_absolute());
    match base {
        Some(base) => Storage::Directory(base.join("candle-rocm")),
        None => Storage::None(
            "none of CANDLE_ROCM_CACHE_DIR, XDG_CACHE_HOME and HOME is set to an absolute path; set one to compile kernels once instead of at every start".into(),
        ),
    }
}

/// A readable prefix and a hash of all that the object depends on.
fn entry_name(compiler_id: &str, request: &CompileRequest) -> String {
    let mut hash = Sha256::new();
    // Lengths keep two fields from passing for one another's text.
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    field(env!("CARGO_PKG_VERSION").as_bytes());
    field(compiler_id.as_bytes());
    field(request.arch.as_bytes());
    for option in options_for(request.arch) {
        field(option.as_bytes());
    }
    field(&(request.options.len() as u64).to_le_bytes());
    for option in request.options {
        field(option.as_bytes());
    }
    field(request.source.as_bytes());
    let key: String = hash
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let label: String = format!("{}-{}", request.name, request.arch)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(80)
        .collect();
    format!("{label}-{key}.co")
}

/// The object of an entry; `None` if it is damaged. What is longer than it says is not read.
fn read_entry(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let mut file = private::open(path)?;
    let mut header = [0; HEADER_BYTES];
    if let Err(error) = file.read_exact(&mut header) {
        return match error.kind() {
            ErrorKind::UnexpectedEof => Ok(None),
            _ => Err(error),
        };
    }
    let (magic, rest) = header.split_at(MAGIC.len());
    let (length, checksum) = rest.split_at(size_of::<u64>());
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes"));
    let follows = file.metadata()?.len().checked_sub(HEADER_BYTES as u64);
    if magic != MAGIC || follows != Some(length) || length > MAX_OBJECT_BYTES {
        return Ok(None);
    }
    let mut object = Vec::with_capacity(length as usize);
    file.take(length).read_to_end(&mut object)?;
    let sound = object.len() as u64 == length && checksum == Sha256::digest(&object).as_slice();
    Ok(sound.then_some(object))
}

fn lock_entry(path: &Path) -> std::io::Result<File> {
    let lock = private::open_lock(&path.with_extension("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Call with the entry's lock held.
fn write_entry(path: &Path, object: &[u8]) -> std::io::Result<()> {
    let mut entry = Vec::with_capacity(HEADER_BYTES + object.len());
    entry.extend_from_slice(MAGIC);
    entry.extend_from_slice(&(object.len() as u64).to_le_bytes());
    entry.extend_from_slice(&Sha256::digest(object));
    entry.extend_from_slice(object);
    // The lock makes the name ours.
    private::replace(path, &path.with_extension("tmp"), &entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_taken() {
        let storage = |variables: &[(&str, &str)]| {
            storage_from(|name| {
                let found = variables.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.into())
            })
        };
        let directory = |path: &str| Storage::Directory(path.into());
        assert_eq!(storage(&[("CANDLE_ROCM_CACHE_DIR", "/c")]), directory("/c"));
        assert_eq!(
            storage(&[("XDG_CACHE_HOME", "x"), ("HOME", "/h")]),
            directory("/h/.cache/candle-rocm")
        );
        for relative in [
            ("CANDLE_ROCM_CACHE_DIR", "c"),
            ("CANDLE_ROCM_CACHE_DIR", "."),
            ("HOME", "."),
        ] {
            assert!(matches!(storage(&[relative]), Storage::None(_)));
        }
    }
}
