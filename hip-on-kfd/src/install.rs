//! Laying the library out as a ROCm installation.

use std::io;
use std::path::{Path, PathBuf};

/// Names under which programs look for the HIP runtime and hiprtc: those of its release, and those without a version.
const NAMES: &[&str] = &[
    "libamdhip64.so.7",
    "libamdhip64.so",
    "libhiprtc.so.7",
    "libhiprtc.so",
];

/// Finds the library near a program of the same build: in its folder or, for a test or example, the folder above.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if it is in neither folder.
pub fn find_library(program: &Path) -> io::Result<PathBuf> {
    hip_abi::install::find_library(program, "libhip_on_kfd.so", "hip-on-kfd")
}

/// Writes `lib/` of a ROCm installation into `root`: links to `library`. It has no rocBLAS and no MIOpen.
///
/// # Errors
/// Those of the file system.
pub fn install(library: &Path, root: &Path) -> io::Result<()> {
    hip_abi::install::link(library, root, NAMES)
}
