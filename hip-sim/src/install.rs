//! Laying the library out as a ROCm installation.

use crate::arch::Arch;
use std::io;
use std::path::{Path, PathBuf};

/// Names of hipBLASLt, which only the simulator has.
const HIPBLASLT: &[&str] = &["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"];

/// Writes `lib/` of a ROCm installation into `root`: links to `library`, and for every arch a file by which programs see
/// that rocBLAS has kernels for it. `ROCBLAS_TENSILE_LIBPATH`, set to an empty folder, hides these, as it does for
/// rocBLAS.
///
/// # Errors
/// Those of the file system.
pub fn install(library: &Path, root: &Path) -> io::Result<()> {
    hip_abi::install::install(library, root)?;
    hip_abi::install::link(library, root, HIPBLASLT)?;
    let folder = root.join("lib/rocblas/library");
    std::fs::create_dir_all(&folder)?;
    for arch in Arch::all() {
        std::fs::write(folder.join(format!("TensileLibrary_lazy_{arch}.dat")), "")?;
    }
    Ok(())
}

/// Finds the library near a program of the same build: in its folder or, for a test or example, the folder above.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if it is in neither folder.
pub fn find_library(program: &Path) -> io::Result<PathBuf> {
    hip_abi::install::find_library(program, "libhip_sim.so", "hip-sim")
}
