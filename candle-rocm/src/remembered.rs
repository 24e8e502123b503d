//! What was measured of a GPU, on disk: names and values, in a file beside the compiled kernels that every process
//! reads which uses the GPU later. It is for this version of the crate only.

use crate::gpu::Gpu;
use crate::module::cache;
use crate::{Error, Result};
use candle_rocm_kernels::Storage;
use std::path::{Path, PathBuf};

/// First line of a file: results of another version, whose kernels were others, do not count.
const HEADER: &str = concat!("candle-rocm ", env!("CARGO_PKG_VERSION"));

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

/// Names and values of a kind; a missing or damaged file has none.
pub(crate) fn read(gpu: &Gpu, kind: &str) -> Vec<(String, String)> {
    let text = path(gpu, kind).and_then(|path| std::fs::read_to_string(path).ok());
    parse(&text.unwrap_or_default())
}

fn parse(text: &str) -> Vec<(String, String)> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Vec::new();
    }
    lines
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn text(results: &[(String, String)]) -> String {
    let lines = results
        .iter()
        .map(|(name, value)| format!("{name}\t{value}\n"));
    format!("{HEADER}\n{}", lines.collect::<String>())
}

/// Writes all results of a kind, if there is a cache on disk.
///
/// # Errors
/// [`Error::Cache`] if they cannot be written.
pub(crate) fn write(gpu: &Gpu, kind: &str, results: &[(String, String)]) -> Result<()> {
    let Some(path) = path(gpu, kind) else {
        return Ok(());
    };
    // Renamed when complete: a reader sees all of it or none.
    let part = path.with_extension(format!("{}.tmp", std::process::id()));
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    folder
        .and_then(|()| std::fs::write(&part, text(results)))
        .and_then(|()| std::fs::rename(&part, &path))
        .map_err(|error| cache_error(&path, &error))
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
        assert_eq!(parse(&text(&results)), results);
        let damaged = format!("{HEADER}\nnothing\nq4k\t64\nq6k");
        assert_eq!(parse(&damaged), results[..1]);
        assert_eq!(parse("candle-rocm 0.0.0\nq8_0\t32"), []);
    }
}
