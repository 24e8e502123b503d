//! What was found out of a GPU, on disk: names and values, in a file beside the compiled kernels that every process
//! reads which uses the GPU later. It is for this version of the crate only, and of the library that it is about.

use crate::gpu::Gpu;
use crate::module::cache;
use crate::{Device, Error, Result};
use candle_rocm_kernels::{private, Storage};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a file at most: several times what any kind takes.
const MOST_BYTES: u64 = 4 << 20;

/// First line of a file: results of another version, whose kernels were others, do not count, nor do those of another
/// version of a library.
fn header(library: Option<&str>) -> String {
    let own = concat!("candle-rocm ", env!("CARGO_PKG_VERSION"));
    library.map_or(own.to_string(), |library| format!("{own} {library}"))
}

/// The file of a kind of results; none without a cache on disk.
fn path(gpu: &Gpu, kind: &str) -> Option<PathBuf> {
    let Storage::Directory(folder) = cache().storage() else {
        return None;
    };
    let properties = &gpu.properties;
    let name = format!("{}-{}", properties.full_arch, properties.compute_units);
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Some(folder.join(format!("{kind}-{name}.tsv")))
}

/// Names and values of a kind, perhaps of a library in a version; a missing or damaged file has none.
pub(crate) fn read(gpu: &Gpu, kind: &str, library: Option<&str>) -> Vec<(String, String)> {
    let text = path(gpu, kind).and_then(|path| text_of(&path));
    parse(&text.unwrap_or_default(), &header(library))
}

/// The text of a file that only this user may have written.
pub(crate) fn text_of(path: &Path) -> Option<String> {
    String::from_utf8(private::read(path, MOST_BYTES).ok()?).ok()
}

fn parse(text: &str, header: &str) -> Vec<(String, String)> {
    let mut lines = text.lines();
    if lines.next() != Some(header) {
        return Vec::new();
    }
    lines
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn text(results: &[(String, String)], header: &str) -> String {
    let lines = results
        .iter()
        .map(|(name, value)| format!("{name}\t{value}\n"));
    format!("{header}\n{}", lines.collect::<String>())
}

/// Writes all results of a kind, if there is a cache on disk.
///
/// # Errors
/// [`Error::Cache`] if they cannot be written.
pub(crate) fn write(
    gpu: &Gpu,
    kind: &str,
    library: Option<&str>,
    results: &[(String, String)],
) -> Result<()> {
    let Some(path) = path(gpu, kind) else {
        return Ok(());
    };
    replace(&path, &text(results, &header(library))).map_err(|error| cache_error(&path, &error))
}

/// Writes a file and the folder that it is in. It is renamed when complete: a reader sees all of it or none.
pub(crate) fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let part = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    private::replace(path, &part, text.as_bytes())
}

impl Device {
    /// What a program has found out of this GPU and [remembered](Device::remember) under a kind of its own, a plain word:
    /// names and values. Nothing where there is no cache on disk.
    pub fn recall(&self, kind: &str) -> Vec<(String, String)> {
        read(self.gpu(), &of_program(kind), None)
    }

    /// Remembers names and values of a kind for later processes, in place of those before, if there is a cache on disk;
    /// neither has tabs or line breaks.
    ///
    /// # Errors
    /// [`Error::Cache`] if they cannot be written.
    pub fn remember(&self, kind: &str, results: &[(String, String)]) -> Result<()> {
        write(self.gpu(), &of_program(kind), None, results)
    }

    /// Forgets what was remembered of a kind.
    ///
    /// # Errors
    /// [`Error::Cache`] if the file cannot be removed.
    pub fn forget(&self, kind: &str) -> Result<()> {
        remove(self.gpu(), &of_program(kind))
    }
}

/// The name of a program's kind, apart from those of this crate.
fn of_program(kind: &str) -> String {
    format!("program-{kind}")
}

/// Removes the results of a kind.
///
/// # Errors
/// [`Error::Cache`] if the file cannot be removed.
pub(crate) fn remove(gpu: &Gpu, kind: &str) -> Result<()> {
    let Some(path) = path(gpu, kind) else {
        return Ok(());
    };
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(cache_error(&path, &error))
        }
        _ => Ok(()),
    }
}

fn cache_error(path: &Path, error: &std::io::Error) -> Error {
    Error::Cache {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let results = [("q4k", "64"), ("f16 nt wide", "own")];
        let results = results.map(|(name, value)| (name.to_string(), value.to_string()));
        let header = header(None);
        assert_eq!(parse(&text(&results, &header), &header), results);
        let damaged = format!("{header}\nnothing\nq4k\t64\nq6k");
        assert_eq!(parse(&damaged, &header), results[..1]);
        assert_eq!(parse("candle-rocm 0.0.0\nq8_0\t32", &header), []);
    }

    #[test]
    fn what_is_written_is_read_by_the_same_versions_only() {
        let known = [("x: 1", "it took too long"), ("x: 2", "no sources")];
        let known = known.map(|(name, reason)| (name.to_string(), reason.to_string()));
        let [same, other] = ["MIOpen 3.5.1", "MIOpen 3.5.2"].map(|library| header(Some(library)));
        let written = text(&known, &same);
        assert_eq!(parse(&written, &same), known);
        assert!(parse(&written, &other).is_empty());
        assert!(parse("", &same).is_empty());
    }
}
