//! Telling the user what is waited for: MIOpen is silent while it compiles.

use crate::sys::loader::mapped_file;
use crate::sys::miopen::MiOpen;
use crate::verify::warn;
use crate::Device;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// What MIOpen does when it meets a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It compiles a solution.
    Compile,
    /// It compiles and measures several.
    Measure,
}

static TOLD: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

/// Tells once per process and stage, before the first wait; not if compiled kernels are installed.
pub(super) fn tell(device: &Device, library: &MiOpen, stage: Stage) {
    if TOLD[stage as usize].swap(true, Ordering::Relaxed) {
        return;
    }
    let arch = device.properties().arch.as_str();
    let file = mapped_file(library.miopenCreateWithStream as usize);
    if file.is_some_and(|file| has_compiled_kernels(&file, arch)) {
        return;
    }
    warn(text(arch, stage));
}

fn text(arch: &str, stage: Stage) -> String {
    let what = match stage {
        Stage::Compile => {
            "compiles a kernel for each convolution of a new shape, some seconds each"
        }
        Stage::Measure => {
            "compiles and measures kernels for each convolution of a new shape, up to a minute each"
        }
    };
    format!(
        "MIOpen {what}: the first run waits for it, later ones find what was made (in ~/.cache/miopen). Where AMD has a \
         package miopen-hip-{arch}kdb, it brings most of them; CANDLE_ROCM_MIOPEN=off computes convolutions without \
         MIOpen"
    )
}

/// Whether AMD's package of compiled kernels for the arch lies beside the library: `share/miopen/db/gfx942*.kdb`.
fn has_compiled_kernels(library: &Path, arch: &str) -> bool {
    let databases = library
        .parent()
        .and_then(Path::parent)
        .map(|root| root.join("share/miopen/db"));
    let entries = databases.and_then(|folder| std::fs::read_dir(folder).ok());
    entries.into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with(arch) && name.ends_with(".kdb")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_kernels_are_found_by_arch() {
        let root = tempfile::tempdir().unwrap();
        let library = root.path().join("lib/libMIOpen.so.1.0.70203");
        assert!(!has_compiled_kernels(&library, "gfx942"));
        let folder = root.path().join("share/miopen/db");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["gfx90a6e.kdb", "gfx942130.HIP.fdb.txt"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        assert!(has_compiled_kernels(&library, "gfx90a"));
        assert!(!has_compiled_kernels(&library, "gfx942"));
    }

    #[test]
    fn the_text_names_the_package_and_the_way_out() {
        for stage in [Stage::Compile, Stage::Measure] {
            let text = text("gfx1030", stage);
            assert!(
                text.contains("miopen-hip-gfx1030kdb") && text.contains("CANDLE_ROCM_MIOPEN=off")
            );
        }
    }
}
