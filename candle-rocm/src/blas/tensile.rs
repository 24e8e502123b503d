//! The kernels that rocBLAS comes with: files for each arch, made by Tensile.
//!
//! rocBLAS does not return an error when it has none for a GPU, it ends the process at the first product
//! (`rocblas_abort` in its `tensile_host.cpp`); so they are looked for before. The arch is the one that HIP reports,
//! which follows `HSA_OVERRIDE_GFX_VERSION`, as rocBLAS's does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names a folder that takes the place of the one beside the library.
pub(super) const LIBRARY_PATH: &str = "ROCBLAS_TENSILE_LIBPATH";

/// How far below `rocblas` beside the library its files may lie: distributions put its version between.
const DEEPEST: usize = 4;

/// The folders in which rocBLAS may have its files: the one that the variable names, else those near the library, which
/// is known by one path or several.
pub(super) fn folders(variable: Option<OsString>, libraries: &[PathBuf]) -> Vec<PathBuf> {
    if let Some(folder) = variable.filter(|folder| !folder.is_empty()) {
        return vec![folder.into()];
    }
    let near = |library: &PathBuf| {
        let folder = library.parent()?;
        // As it is installed, and as it is built.
        Some([folder.join("rocblas"), folder.join("../../Tensile/library")])
    };
    libraries.iter().filter_map(near).flatten().collect()
}

/// Whether one of the folders, or a folder below it, has kernels for an arch.
pub(super) fn has_kernels(folders: &[PathBuf], arch: &str) -> bool {
    folders.iter().any(|folder| search(folder, arch, DEEPEST))
}

fn search(folder: &Path, arch: &str, deep: usize) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut below = Vec::new();
    for entry in entries {
        let path = entry.path();
        if path.is_dir() {
            below.push(path);
        } else if entry
            .file_name()
            .to_str()
            .is_some_and(|name| is_of(name, arch))
        {
            return true;
        }
    }
    deep > 1 && below.iter().any(|folder| search(folder, arch, deep - 1))
}

/// Whether a file of this name has kernels for an arch, or lists those that there are: `TensileLibrary_lazy_gfx942.dat`,
/// `TensileLibrary_Type_HH_…_gfx942.co`, `Kernels.so-000-gfx90a-xnack-.hsaco`.
fn is_of(name: &str, arch: &str) -> bool {
    let begins = ["TensileLibrary", "Kernels"];
    let names_it = |(at, _)| {
        let behind = name[at + arch.len()..].chars().next();
        !behind.is_some_and(|c| c.is_ascii_alphanumeric())
    };
    begins.iter().any(|start| name.starts_with(start)) && name.match_indices(arch).any(names_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_of_one_arch() {
        for name in [
            "TensileLibrary_lazy_gfx90a.dat",
            "TensileLibrary_gfx90a.co",
            "TensileLibrary_Type_HH_Contraction_l_Ailk_Bjlk_Cijk_Dijk_gfx90a.hsaco",
            "Kernels.so-000-gfx90a-xnack+.hsaco",
        ] {
            assert!(is_of(name, "gfx90a"), "{name}");
            assert!(!is_of(name, "gfx942") && !is_of(name, "gfx90"), "{name}");
        }
        assert!(!is_of("TensileManifest_gfx90a.txt", "gfx90a"));
        assert!(!is_of("TensileLibrary.dat", "gfx90a"));
    }

    #[test]
    fn files_are_found_where_releases_and_distributions_have_them() {
        let root = tempfile::tempdir().unwrap();
        let library = |name: &str| root.path().join(name).join("librocblas.so.5");
        for (name, inside) in [
            ("release", "rocblas/library"),
            ("by-arch", "rocblas/library/gfx1103"),
            ("distribution", "rocblas/5.1.0/library"),
        ] {
            let folder = root.path().join(name).join(inside);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("TensileLibrary_lazy_gfx1103.dat"), "").unwrap();
            let folders = folders(None, &[library("nowhere"), library(name)]);
            assert!(has_kernels(&folders, "gfx1103"), "{name}");
            assert!(!has_kernels(&folders, "gfx1100"), "{name}");
        }
        // The variable decides alone.
        let empty = root.path().join("empty");
        let folders = folders(Some(empty.into()), &[library("release")]);
        assert!(!has_kernels(&folders, "gfx1103"));
    }
}
