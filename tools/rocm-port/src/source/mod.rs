//! Where CUDA comes from: a folder, a file, or a crate of the registry; its build scripts and its uses in Rust.
//!
//! Nothing outside of the root is read: links that lead out of it are left out and named in [`Sources::skipped`].

mod build;
mod process;
mod registry;
mod rust;
mod tokens;

pub(crate) use build::holds;
pub(crate) use process::{run_limited, Limits};

use crate::model::{BuildScript, RustUse};
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

/// The largest file that is read, in bytes.
pub const LARGEST_FILE: u64 = 8 << 20;

/// The largest number of files of one project.
pub const MOST_FILES: usize = 20_000;

/// Folders that hold no sources of the project.
const NOT_SOURCES: &[&str] = &["target", ".git", "node_modules", "__pycache__"];

/// Why sources could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path is not there, and is no name of a crate either.
    #[error("{0}: no such file or folder; a crate of the registry is named NAME or NAME@VERSION")]
    Missing(String),
    /// A file could not be read.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// cargo could not fetch the crate.
    #[error("cargo could not fetch {spec}: {reason}")]
    Registry {
        /// Name, and version if one was asked for.
        spec: String,
        /// What cargo said, or why it did not run.
        reason: String,
    },
    /// A path leads out of the project.
    #[error("{0} leads out of the project; it is not read")]
    Outside(String),
    /// A file or project is larger than what is read.
    #[error("{what} is larger than the limit of {limit}")]
    TooLarge {
        /// The file or folder.
        what: String,
        /// The limit, with its unit.
        limit: String,
    },
}

/// The files of a project that matter here; paths are relative to the root, with `/`, in order.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The folder that all paths are relative to, without links.
    pub root: PathBuf,
    /// Name and version, if there is a Cargo.toml.
    pub package: Option<(String, String)>,
    /// `.cu` files.
    pub cuda: Vec<String>,
    /// `.cuh`, `.h` and other headers.
    pub headers: Vec<String>,
    /// `.rs` files.
    pub rust: Vec<String>,
    /// What was left out, and why.
    pub skipped: Vec<(String, String)>,
    /// Whether one file was asked for, so that headers matter only if it includes them.
    pub single: bool,
}

/// Opens a folder, a `.cu` file, or a crate: `NAME` or `NAME@VERSION`, which cargo fetches if it is not there yet.
///
/// # Errors
/// If there is no such path or crate, or it cannot be read.
pub fn open(what: &str) -> Result<Sources, Error> {
    let path = Path::new(what);
    if path.is_dir() {
        return folder(path);
    }
    if path.is_file() {
        return file(path);
    }
    match registry::Spec::parse(what) {
        Some(spec) => folder(&spec.fetch()?),
        None => Err(Error::Missing(what.to_string())),
    }
}

/// One file, in the crate that it is in.
fn file(path: &Path) -> Result<Sources, Error> {
    let path = canonical(path)?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    let root = parent
        .ancestors()
        .find(|folder| folder.join("Cargo.toml").is_file())
        .unwrap_or(parent);
    let mut sources = folder(root)?;
    let name =
        relative(&path, &sources.root).ok_or_else(|| Error::Outside(path.display().to_string()))?;
    sources.cuda = vec![name];
    sources.single = true;
    Ok(sources)
}

/// All files of a folder.
fn folder(root: &Path) -> Result<Sources, Error> {
    let root = canonical(root)?;
    let mut sources = Sources {
        package: package(&root),
        root,
        cuda: Vec::new(),
        headers: Vec::new(),
        rust: Vec::new(),
        skipped: Vec::new(),
        single: false,
    };
    let walk = WalkDir::new(&sources.root)
        .max_depth(64)
        .sort_by_file_name()
        .into_iter()
        .filter_entry(|entry| {
            entry.depth() == 0
                || !(entry.file_type().is_dir()
                    && NOT_SOURCES.iter().any(|name| entry.file_name() == *name))
        });
    let mut files = 0;
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                sources.skipped.push((
                    error
                        .path()
                        .map(|path| path.display().to_string())
                        .unwrap_or_default(),
                    error.to_string(),
                ));
                continue;
            }
        };
        let Some(list) = list_of(entry.path()) else {
            continue;
        };
        let Some(name) = relative(entry.path(), &sources.root) else {
            continue;
        };
        if entry.file_type().is_dir() {
            continue;
        }
        if let Err(error) = sources.check(entry.path(), &name) {
            sources.skipped.push((name, error.to_string()));
            continue;
        }
        files += 1;
        if files > MOST_FILES {
            return Err(Error::TooLarge {
                what: sources.root.display().to_string(),
                limit: format!("{MOST_FILES} files"),
            });
        }
        match list {
            List::Cuda => sources.cuda.push(name),
            List::Header => sources.headers.push(name),
            List::Rust => sources.rust.push(name),
        }
    }
    Ok(sources)
}

/// Which list a file goes to.
enum List {
    Cuda,
    Header,
    Rust,
}

fn list_of(path: &Path) -> Option<List> {
    match path.extension()?.to_str()? {
        "cu" => Some(List::Cuda),
        "cuh" | "h" | "hh" | "hpp" | "hxx" | "inl" | "inc" => Some(List::Header),
        "rs" => Some(List::Rust),
        _ => None,
    }
}

impl Sources {
    /// The text of a file; bytes that are not UTF-8 become U+FFFD, line ends `\n`.
    ///
    /// # Errors
    /// If the file is not there, too large, or outside of the root.
    pub fn read(&self, name: &str) -> Result<String, Error> {
        let path = self.root.join(name);
        self.check(&path, name)?;
        let bytes = std::fs::read(&path).map_err(|error| Error::Io { path, error })?;
        Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"))
    }

    /// What builds the CUDA files.
    pub fn builds(&self) -> Vec<BuildScript> {
        build::scripts(self)
    }

    /// Uses of CUDA in the project's Rust, without the build script.
    pub fn rust_uses(&self) -> Vec<RustUse> {
        rust::uses(self)
    }

    /// Whether a path is a file of reasonable size inside of the root.
    fn check(&self, path: &Path, name: &str) -> Result<(), Error> {
        let real = canonical(path)?;
        if !real.starts_with(&self.root) {
            return Err(Error::Outside(name.to_string()));
        }
        let size = std::fs::metadata(&real)
            .map_err(|error| Error::Io {
                path: real.clone(),
                error,
            })
            .and_then(|metadata| match metadata.is_file() {
                true => Ok(metadata.len()),
                false => Err(Error::Missing(name.to_string())),
            })?;
        if size > LARGEST_FILE {
            return Err(Error::TooLarge {
                what: name.to_string(),
                limit: format!("{} MiB", LARGEST_FILE >> 20),
            });
        }
        Ok(())
    }
}

fn canonical(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|error| Error::Io {
        path: path.to_path_buf(),
        error,
    })
}

/// `path` relative to `root`, with `/`; nothing if it is not inside or not UTF-8.
fn relative(path: &Path, root: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = path
        .strip_prefix(root)
        .ok()?
        .components()
        .map(|part| part.as_os_str().to_str())
        .collect();
    Some(parts?.join("/"))
}

/// Name and version in Cargo.toml; an inherited version is looked up in the folders above.
fn package(root: &Path) -> Option<(String, String)> {
    let read = |folder: &Path| -> Option<toml::Table> {
        let path = folder.join("Cargo.toml");
        let small = std::fs::metadata(&path).ok()?.len() <= LARGEST_FILE;
        small
            .then(|| std::fs::read_to_string(path).ok()?.parse().ok())
            .flatten()
    };
    let manifest = read(root)?;
    let package = manifest.get("package")?;
    let name = package.get("name")?.as_str()?.to_string();
    let version = match package.get("version") {
        Some(toml::Value::String(version)) => version.clone(),
        Some(_) => root
            .ancestors()
            .skip(1)
            .filter_map(read)
            .find_map(|manifest| {
                let version = manifest.get("workspace")?.get("package")?.get("version")?;
                version.as_str().map(String::from)
            })
            .unwrap_or_default(),
        None => String::new(),
    };
    Some((name, version))
}
