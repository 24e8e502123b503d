//! Convolutions for which waiting for MIOpen's compiler came to nothing: remembered beside the compiled kernels, so that
//! the next start does not wait for it again.
//!
//! What is remembered holds for a version of this crate and of MIOpen, on GPUs alike. Measuring (`tune`) forgets it.

use super::Convolution;
use crate::gpu::Gpu;
use crate::slots::Kept;
use crate::sync::lock;
use crate::sys::miopen::MiOpen;
use crate::{remembered, Device};
use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

/// What is known of a GPU: reasons by convolution.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    known: OnceLock<Mutex<BTreeMap<String, String>>>,
}

impl Kept for Refusals {}

/// Of [`remembered`].
const KIND: &str = "convolutions";

impl Refusals {
    pub fn of(device: &Device) -> &'static Self {
        device.shared().slot()
    }

    fn known(&self, gpu: &Gpu, library: &MiOpen) -> &Mutex<BTreeMap<String, String>> {
        self.known.get_or_init(|| {
            let all = remembered::read(gpu, KIND, Some(&version(library)));
            Mutex::new(all.into_iter().collect())
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

/// MIOpen, in the version that is loaded.
fn version(library: &MiOpen) -> String {
    let (mut major, mut minor, mut patch) = (0, 0, 0);
    // SAFETY: the call writes the numbers; a failing one leaves zeros.
    unsafe { (library.miopenGetVersion)(&mut major, &mut minor, &mut patch) };
    format!("MIOpen {major}.{minor}.{patch}")
}

fn key(convolution: &Convolution) -> String {
    format!("{convolution:?}")
}

/// Without a disk that takes it, the next start waits again: no reason to fail.
fn store(gpu: &Gpu, library: &MiOpen, known: &BTreeMap<String, String>) {
    let all: Vec<(String, String)> = known.clone().into_iter().collect();
    let _ = remembered::write(gpu, KIND, Some(&version(library)), &all);
}
