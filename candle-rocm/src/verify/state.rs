//! What is known of a GPU in this process: read from disk once, and written there when something is found.

use super::notices::{tell, warn};
use super::plain::{Plain, INSTRUCTIONS};
use super::store::{self, fingerprint, Form, Outcome, Outcomes};
use crate::compile::HiprtcCompiler;
use crate::config::Verify;
use crate::module::cache;
use crate::slots::Kept;
use crate::sync::lock;
use crate::Device;
use candle_rocm_kernels::{sources_digest, Compiler, Storage};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock};

/// Changes with what the checks compare: what older ones found does not count any more.
const CHECKS_VERSION: u32 = 1;

/// Set in [`State::features`] once they are known.
const KNOWN: u8 = 0x80;

/// Ways to call a product: dtypes, dtypes of the result, and which operands are transposed.
pub(super) const PRODUCTS: usize = 32;

/// What is known of a GPU.
#[derive(Default)]
pub(crate) struct State {
    /// None before the file was read.
    outcomes: Mutex<Option<Outcomes>>,
    file: OnceLock<Option<(PathBuf, String)>>,
    /// Features that kernels do without.
    features: AtomicU8,
    /// Of each way to call a product 0, or 1 if it is right and 2 if not.
    products: [AtomicU8; PRODUCTS],
    /// Held by the thread that verifies.
    busy: Mutex<()>,
}

impl Kept for State {}

impl State {
    pub fn of(device: &Device) -> &'static Self {
        device.shared().slot()
    }

    /// To be held while something is verified.
    pub fn busy(&self) -> &Mutex<()> {
        &self.busy
    }

    /// The form in which all kernels are compiled; none before instructions were verified.
    pub fn features(&self) -> Option<Plain> {
        let features = self.features.load(Ordering::Acquire);
        (features & KNOWN != 0).then(|| Plain::from_bits(features & !KNOWN))
    }

    pub fn set_features(&self, plain: Plain) {
        self.features.store(plain.bits() | KNOWN, Ordering::Release);
    }

    pub fn product(&self, index: usize) -> Option<bool> {
        match self.products[index].load(Ordering::Relaxed) {
            0 => None,
            known => Some(known == 1),
        }
    }

    pub fn set_product(&self, index: usize, is_right: bool) {
        let known = if is_right { 1 } else { 2 };
        self.products[index].store(known, Ordering::Relaxed);
    }

    /// What is known of something.
    pub fn outcome(&self, device: &Device, name: &str) -> Option<Outcome> {
        self.with(device, |outcomes| outcomes.get(name).cloned())
    }

    /// All that is known.
    pub fn all(&self, device: &Device) -> Vec<(String, Outcome)> {
        self.with(device, |outcomes| {
            let all = outcomes.iter();
            all.map(|(name, of)| (name.clone(), of.clone())).collect()
        })
    }

    /// Remembers what was found. A disk that is full or read-only costs nothing but another verification.
    pub fn record(&self, device: &Device, found: &[(String, Outcome)]) {
        let found: Outcomes = found.iter().cloned().collect();
        self.with(device, |outcomes| outcomes.extend(found.clone()));
        if let Some((path, key)) = self.file(device) {
            let _ = store::write(path, key, &found);
        }
    }

    fn with<T>(&self, device: &Device, f: impl FnOnce(&mut Outcomes) -> T) -> T {
        let mut outcomes = lock(&self.outcomes);
        let outcomes = outcomes.get_or_insert_with(|| {
            let known = match (device.config().verify, self.file(device)) {
                (Verify::First, Some((path, key))) => store::read(path, key),
                _ => Outcomes::new(),
            };
            known.iter().for_each(|(name, of)| tell(device, name, of));
            known
        });
        f(outcomes)
    }

    /// The GPU's file and its key; none without a cache on disk.
    fn file(&self, device: &Device) -> Option<&(PathBuf, String)> {
        let file = self.file.get_or_init(|| {
            if let Some(reason) = cache().refusal() {
                warn(format!(
                    "nothing is kept for the next start, kernels are compiled and verified each time: {reason}"
                ));
                return None;
            }
            let Storage::Directory(folder) = cache().storage() else {
                return None;
            };
            let key = key(device);
            let name = format!(
                "verified-{}-{:016x}.txt",
                device.properties().arch,
                fingerprint(&key)
            );
            Some((folder.join(name), key))
        });
        file.as_ref()
    }
}

/// All that results depend on.
fn key(device: &Device) -> String {
    let gpu = device.gpu();
    let p = &gpu.properties;
    let (mut runtime, mut driver) = (0, 0);
    // SAFETY: each call writes the integer that it is handed. A failing call leaves 0, which only makes the key less
    // precise.
    unsafe {
        (gpu.hip.hipRuntimeGetVersion)(&mut runtime);
        if let Some(version) = gpu.hip.hipDriverGetVersion {
            version(&mut driver);
        }
    }
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = file("/proc/sys/kernel/osrelease");
    let module = file("/sys/module/amdgpu/version");
    let compiler = HiprtcCompiler::new().map_or_else(|_| "none".into(), |compiler| compiler.id());
    format!(
        "{} {} {} runtime {runtime} driver {driver} kernel {} {} compiler {compiler} sources {:016x} checks {CHECKS_VERSION} {}",
        p.name,
        p.full_arch,
        p.pci_id,
        kernel.trim(),
        module.trim(),
        sources_digest(),
        env!("CARGO_PKG_VERSION"),
    )
}

/// The features that instructions' outcomes leave; none unless all of them are known.
pub(super) fn features_of(outcome: impl Fn(&str) -> Option<Outcome>) -> Option<Plain> {
    let mut plain = Plain::NONE;
    for (name, feature) in INSTRUCTIONS {
        let outcome = outcome(&instruction_name(name))?;
        if let (true, Some(feature)) = (outcome.form != Form::Full, feature) {
            plain.insert(feature);
        }
    }
    Some(plain)
}

/// What an instruction's outcome is remembered as.
pub(super) fn instruction_name(name: &str) -> String {
    format!("instructions/{name}")
}
