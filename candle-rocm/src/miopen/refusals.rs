//! Convolutions for which waiting for MIOpen's compiler came to nothing: remembered beside the compiled kernels, so that
//! the next start does not wait for it again.
//!
//! What is remembered holds for a version of this crate and of MIOpen, on GPUs alike. Measuring (`tune`) forgets it.

use super::Convolution;
use crate::gpu::Gpu;
use crate::module::cache;
use crate::slots::Kept;
use crate::sync::lock;
use crate::sys::miopen::MiOpen;
use crate::Device;
use candle_rocm_kernels::Storage;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// What is known of a GPU: reasons by convolution.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    known: OnceLock<Mutex<BTreeMap<String, String>>>,
}

impl Kept for Refusals {}

impl Refusals {
    pub fn of(device: &Device) -> &'static Self {
        device.shared().slot()
    }

    fn known(&self, gpu: &Gpu, library: &MiOpen) -> &Mutex<BTreeMap<String, String>> {
        self.known.get_or_init(|| {
            let text = path(gpu).and_then(|path| std::fs::read_to_string(path).ok());
            Mutex::new(parse(&text.unwrap_or_default(), &header(library)))
        })
    }

    /// Why MIOpen does not compute a convolution, if that was found before.
    pub fn get(&self, gpu: &Gpu, library: &MiOpen, convolution: &Convolution) -> Option<String> {
        lock(self.known(gpu, library))
            .get(&key(convolution))
            .cloned()
    }

    /// Remembers why MIOpen does not compute a convolution.
    pub fn insert(&self, gpu: &Gpu, library: &MiOpen, convolution: &Convolution, reason: &str) {
        let mut known = lock(self.known(gpu, library));
        known.insert(key(convolution), reason.replace(['\t', '\n'], " "));
        store(gpu, library, &known);
    }

    /// Forgets a convolution.
    pub fn remove(&self, gpu: &Gpu, library: &MiOpen, convolution: &Convolution) {
        let mut known = lock(self.known(gpu, library));
        if known.remove(&key(convolution)).is_some() {
            store(gpu, library, &known);
        }
    }
}

/// The file for GPUs like this; none without a cache on disk.
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
    Some(folder.join(format!("convolutions-{name}.tsv")))
}

/// First line of the file.
fn header(library: &MiOpen) -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the call writes the numbers; a failing one leaves zeros.
    unsafe { (library.miopenGetVersion)(&mut major, &mut minor, &mut patch) };
    let version = env!("CARGO_PKG_VERSION");
    format!("candle-rocm {version} MIOpen {major}.{minor}.{patch}")
}

fn key(convolution: &Convolution) -> String {
    format!("{convolution:?}")
}

/// What the file says; one of other versions or a damaged one says nothing.
fn parse(text: &str, header: &str) -> BTreeMap<String, String> {
    let mut lines = text.lines();
    if lines.next() != Some(header) {
        return BTreeMap::new();
    }
    lines
        .filter_map(|line| line.split_once('\t'))
        .map(|(key, reason)| (key.to_string(), reason.to_string()))
        .collect()
}

fn text(known: &BTreeMap<String, String>, header: &str) -> String {
    let lines = known
        .iter()
        .map(|(key, reason)| format!("{key}\t{reason}\n"));
    format!("{header}\n{}", lines.collect::<String>())
}

/// Without a disk that takes it, the next start waits again: no reason to fail.
fn store(gpu: &Gpu, library: &MiOpen, known: &BTreeMap<String, String>) {
    if let Some(path) = path(gpu) {
        let _ = write(&path, &text(known, &header(library)));
    }
}

/// Renamed when complete: a reader sees all of it or none.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let part = path.with_extension(format!("{}.tmp", std::process::id()));
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&part, text)?;
    std::fs::rename(&part, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_by_the_same_versions_only() {
        let known = BTreeMap::from([
            (
                "Convolution { x: 1 }".to_string(),
                "it took too long".to_string(),
            ),
            ("Convolution { x: 2 }".to_string(), "no sources".to_string()),
        ]);
        let written = text(&known, "candle-rocm 1 MIOpen 3.5.1");
        assert_eq!(parse(&written, "candle-rocm 1 MIOpen 3.5.1"), known);
        assert!(parse(&written, "candle-rocm 1 MIOpen 3.5.2").is_empty());
        assert!(parse("", "candle-rocm 1 MIOpen 3.5.1").is_empty());
    }
}
