//! ROCm: which releases, from which files, and whether they belong together.

use crate::Check;
use candle_rocm::known_issues::{known_issues, Versions};
use candle_rocm::sys::hip::{self, Hip};
use candle_rocm::sys::loader::mapped_files;
use candle_rocm::topology::Topology;
use candle_rocm::{blas, Device};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::path::Path;
use worker::report::DeviceReport;

/// Looks at the libraries that are loaded now, and at what is known of their versions.
pub(super) fn look(check: &Check, topology: &Topology, devices: &DeviceReport) -> Value {
    let version = runtime_version();
    if let Some(version) = &version {
        check.note(format!("HIP {version}"));
    }
    let runtimes = mapped_files("libamdhip64");
    if runtimes.len() > 1 {
        let files: Vec<String> = runtimes
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        check.error(
            "two_rocm",
            format!("two runtimes of ROCm are loaded at once: {}", files.join(", ")),
            "name one complete installation by ROCM_PATH, and take others out of LD_LIBRARY_PATH and ldconfig",
        );
    }
    for library in &devices.libraries {
        match &library.problem {
            Some(problem) if library.required => {
                check.error("library", format!("{}: {problem}", library.name), "");
            }
            Some(problem) => check.info("library", format!("{}: {problem}", library.name), ""),
            None => {
                let path = library.path.as_deref().unwrap_or_default();
                check.note(format!("{} {path}", library.name));
            }
        }
    }
    let issues = issues(check, topology, devices);
    products(check, devices);
    let releases: BTreeSet<String> = runtimes
        .iter()
        .filter_map(|path| release_of(path))
        .collect();
    let real = |path: &String| {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        real.display().to_string()
    };
    let files: Vec<String> = (devices.libraries.iter())
        .filter_map(|library| library.path.as_ref().map(real))
        .collect();
    json!({
        "hip": version,
        "releases": releases,
        "runtimes": runtimes,
        "files": files,
        "known_issues": issues,
    })
}

/// What is known to be too old or faulty for the GPUs, also for those that do not answer. Returns the issues' names.
fn issues(check: &Check, topology: &Topology, devices: &DeviceReport) -> BTreeSet<&'static str> {
    let of_kernel = topology
        .gpus
        .iter()
        .filter_map(|gpu| Some((gpu.arch.clone()?, &gpu.pci_id)));
    let of_hip = devices
        .gpus
        .iter()
        .map(|gpu| (gpu.arch.clone(), &gpu.pci_id));
    let gpus: BTreeSet<(String, &String)> = of_kernel.chain(of_hip).collect();
    let mut told = BTreeSet::new();
    for (arch, pci_id) in gpus {
        let versions = Versions::read_of(pci_id);
        for issue in known_issues(&arch, &versions) {
            if told.insert(issue.id) {
                check.warning("known_issue", issue.describe(&versions), issue.advice);
            }
        }
    }
    told
}

/// Whether rocBLAS has kernels for the GPUs: it ends the process where it has none, so it is not asked then.
fn products(check: &Check, devices: &DeviceReport) {
    for (ordinal, gpu) in devices.gpus.iter().enumerate() {
        if gpu.problem.is_some() {
            continue;
        }
        let refusal = Device::new(ordinal)
            .ok()
            .and_then(|device| blas::refusal(&device));
        if let Some(refusal) = refusal {
            check.warning(
                "rocblas",
                format!("{}: matrix products are computed by this product's own kernels: {refusal}", gpu.device),
                "products of large matrices are slower so; install rocBLAS with files for this GPU's processor",
            );
        }
    }
}

/// HIP's version as it says itself.
fn runtime_version() -> Option<String> {
    let hip = &Hip::get().ok()?.functions;
    let mut packed = 0;
    // SAFETY: the call writes the integer that it is handed.
    let status = unsafe { (hip.hipRuntimeGetVersion)(&mut packed) };
    (status == hip::SUCCESS).then(|| version(packed))
}

/// The version is packed in decimal: 70253211 is 7.2.53211.
fn version(packed: i32) -> String {
    format!(
        "{}.{}.{}",
        packed / 10_000_000,
        packed / 100_000 % 100,
        packed % 100_000
    )
}

/// The release that a library is of, as the file `.info/version` beside its folder says.
fn release_of(library: &Path) -> Option<String> {
    let root = library.parent()?.parent()?;
    let text = std::fs::read_to_string(root.join(".info/version")).ok()?;
    Some(text.trim().to_string()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_unpacked() {
        assert_eq!(version(60_342_134), "6.3.42134");
        assert_eq!(version(70_253_211), "7.2.53211");
    }
}
