//! Laying a library out as a ROCm installation.

use std::io;
use std::path::{Path, PathBuf};

/// Sonames under which programs look for ROCm's libraries.
const NAMES: &[&str] = &[
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so",
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libhiprtc.so",
    "librocblas.so.5",
    "librocblas.so.4",
    "librocblas.so",
    "libMIOpen.so.1",
    "libMIOpen.so",
    "librccl.so.1",
    "librccl.so",
];

/// Finds a library near a program of the same build: in its folder or, for a test or example, the folder above. What
/// lies in `deps` comes first: cargo renews it in every build, and its copy above it not always. `name` is the file's,
/// `package` makes it.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] if it is in neither folder.
pub fn find_library(program: &Path, name: &str, package: &str) -> io::Result<PathBuf> {
    let folders = program.ancestors().skip(1).take(2);
    let mut candidates =
        folders.flat_map(|folder| [folder.join("deps").join(name), folder.join(name)]);
    candidates.find(|path| path.exists()).ok_or_else(|| {
        let message = format!(
            "{name} is not beside {}; run `cargo build -p {package}`",
            program.display()
        );
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}

/// Writes `lib/` of a ROCm installation into `root`: links to `library`, so that all names load one copy with one
/// state.
///
/// # Errors
/// Those of the file system.
pub fn install(library: &Path, root: &Path) -> io::Result<()> {
    link(library, root, NAMES)
}

/// Writes links to `library` of these names into `lib/` of `root`.
///
/// # Errors
/// Those of the file system.
pub fn link(library: &Path, root: &Path, names: &[&str]) -> io::Result<()> {
    let library = library.canonicalize()?;
    let lib = root.join("lib");
    std::fs::create_dir_all(&lib)?;
    for name in names {
        let link = lib.join(name);
        // Another process may install the same thing: the new link is renamed into place.
        let temporary = lib.join(format!(".{name}.{}", std::process::id()));
        match std::fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        symlink(&library, &temporary)?;
        std::fs::rename(&temporary, &link)?;
    }
    Ok(())
}

#[cfg(unix)]
use std::os::unix::fs::symlink;

/// Where libraries have other names, nobody looks for these.
#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "a folder of ROCm's libraries is made on Linux only",
    ))
}
