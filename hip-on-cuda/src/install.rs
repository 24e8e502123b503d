//! Laying the library out as a ROCm installation.

pub use hip_abi::install::install;

use std::io;
use std::path::{Path, PathBuf};

/// Finds the library near a program of the same build: in its folder or, for a test or example, the folder above.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if it is in neither folder.
pub fn find_library(program: &Path) -> io::Result<PathBuf> {
    hip_abi::install::find_library(program, "libhip_on_cuda.so", "hip-on-cuda")
}
