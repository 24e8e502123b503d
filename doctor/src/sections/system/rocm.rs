//! ROCm: which releases, from which files, and whether they belong together.

use crate::Check;
use candle_rocm::sys::hip::{self, Hip};
use serde_json::{json, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use worker::report::DeviceReport;

/// Looks at the libraries that are loaded now.
pub(super) fn look(check: &Check, devices: &DeviceReport) -> Value {
    let version = runtime_version();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let runtimes = runtimes(&maps);
    if let Some(version) = &version {
        check.note(format!("HIP {version}"));
    }
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
    let releases: BTreeSet<String> = runtimes
        .iter()
        .filter_map(|path| release_of(path))
        .collect();
    let files: Vec<String> = (devices.libraries.iter())
        .filter_map(|library| library.path.as_ref())
        .map(|path| {
            std::fs::canonicalize(path)
                .unwrap_or_else(|_| PathBuf::from(path))
                .display()
                .to_string()
        })
        .collect();
    json!({
        "hip": version,
        "releases": releases,
        "runtimes": runtimes,
        "files": files,
    })
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

/// The files of HIP's runtime that a process has mapped.
fn runtimes(maps: &str) -> BTreeSet<PathBuf> {
    (maps.lines())
        .filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])))
        .filter(|path| {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| name.starts_with("libamdhip64.so"))
        })
        .collect()
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

    #[test]
    fn runtimes_are_counted_by_file() {
        let maps = "7f00-7f01 r--p 0 08:01 1 /opt/rocm-6.4.3/lib/libamdhip64.so.6.4.60403\n\
                    7f01-7f02 r-xp 0 08:01 1 /opt/rocm-6.4.3/lib/libamdhip64.so.6.4.60403\n\
                    7f02-7f03 r--p 0 08:01 2 /opt/rocm-7.2.4/lib/libamdhip64.so.7.2.70204\n\
                    7f03-7f04 r--p 0 08:01 3 /usr/lib/libhiprtc.so.7\n\
                    7f04-7f05 rw-p 0 00:00 0 [heap]\n";
        assert_eq!(runtimes(maps).len(), 2);
        assert!(runtimes("").is_empty());
    }
}
