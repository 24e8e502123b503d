//! What was measured of a GPU: from how many vectors on rocBLAS is faster than tiles of integers.
//!
//! It is kept beside the compiled kernels, for this version of the crate only, and read by every process that uses the
//! GPU later.

use super::Format;
use crate::gpu::Gpu;
use crate::module::cache;
use crate::slots::Kept;
use crate::sync::lock;
use crate::{Device, Error, Result};
use candle_rocm_kernels::Storage;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

/// What is known of a GPU.
#[derive(Debug, Default)]
pub(super) struct Crossovers {
    known: OnceLock<Mutex<HashMap<Format, Option<usize>>>>,
}

impl Crossovers {
    fn known(&self, gpu: &Gpu) -> &Mutex<HashMap<Format, Option<usize>>> {
        self.known.get_or_init(|| Mutex::new(read(gpu)))
    }

    /// What is known of the device's GPU.
    pub(super) fn of(device: &Device) -> &'static Self {
        device.shared().slot()
    }

    /// The crossover of a format, if it was measured.
    pub(super) fn get(&self, gpu: &Gpu, format: Format) -> Option<Option<usize>> {
        lock(self.known(gpu)).get(&format).copied()
    }

    /// Remembers a crossover, for this process at once and for later ones if there is a cache on disk.
    ///
    /// # Errors
    /// [`Error::Cache`] if it cannot be written.
    pub(super) fn insert(&self, gpu: &Gpu, format: Format, above: Option<usize>) -> Result<()> {
        let mut known = lock(self.known(gpu));
        known.insert(format, above);
        write(gpu, &known)
    }

    /// Forgets all, on disk as well.
    ///
    /// # Errors
    /// [`Error::Cache`] if the file cannot be removed.
    pub(super) fn clear(&self, gpu: &Gpu) -> Result<()> {
        lock(self.known(gpu)).clear();
        let Some(path) = path(gpu) else { return Ok(()) };
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(cache_error(&path, &error))
            }
            _ => Ok(()),
        }
    }
}

impl Kept for Crossovers {}

/// The file for a GPU's results; none without a cache on disk.
fn path(gpu: &Gpu) -> Option<PathBuf> {
    let Storage::Directory(folder) = cache().storage() else {
        return None;
    };
    let properties = &gpu.properties;
    let name = format!("{}-{}", properties.full_arch, properties.compute_units);
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    Some(folder.join(format!("products-{name}.tsv")))
}

/// First line of the file: results of another version, whose kernels were others, do not count.
const HEADER: &str = concat!("candle-rocm ", env!("CARGO_PKG_VERSION"));
/// In place of a number for a format that integers always are the faster for.
const NEVER: &str = "never";

/// What the file says; a missing or damaged one says nothing.
fn read(gpu: &Gpu) -> HashMap<Format, Option<usize>> {
    let text = path(gpu).and_then(|path| std::fs::read_to_string(path).ok());
    parse(&text.unwrap_or_default())
}

fn parse(text: &str) -> HashMap<Format, Option<usize>> {
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return HashMap::new();
    }
    lines
        .filter_map(|line| {
            let (name, above) = line.split_once('\t')?;
            let format = Format::ALL.iter().find(|format| format.word() == name)?;
            let above = match above {
                NEVER => None,
                number => Some(number.parse().ok()?),
            };
            Some((*format, above))
        })
        .collect()
}

fn write(gpu: &Gpu, known: &HashMap<Format, Option<usize>>) -> Result<()> {
    let Some(path) = path(gpu) else { return Ok(()) };
    // Renamed when complete: a reader sees all of it or none.
    let part = path.with_extension(format!("{}.tmp", std::process::id()));
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    folder
        .and_then(|()| std::fs::write(&part, text(known)))
        .and_then(|()| std::fs::rename(&part, &path))
        .map_err(|error| cache_error(&path, &error))
}

fn text(known: &HashMap<Format, Option<usize>>) -> String {
    let mut text = format!("{HEADER}\n");
    for format in Format::ALL {
        let Some(above) = known.get(format) else {
            continue;
        };
        let above = above.map_or(NEVER.to_string(), |n| n.to_string());
        writeln!(text, "{}\t{above}", format.word()).expect("strings take everything");
    }
    text
}

fn cache_error(path: &std::path::Path, error: &std::io::Error) -> Error {
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
        let known = HashMap::from([(Format::Q4K, Some(64)), (Format::Q6K, None)]);
        assert_eq!(parse(&text(&known)), known);
        let damaged = format!("{HEADER}\nq4k\tmany\nnothing\t3\nq8_0\t32\nq6k");
        assert_eq!(parse(&damaged), HashMap::from([(Format::Q8_0, Some(32))]));
        assert_eq!(parse("candle-rocm 0.0.0\nq8_0\t32"), HashMap::new());
    }
}
