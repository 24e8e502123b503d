//! What ROCm's libraries are called: one table for all platforms.

/// An operating system for which the names are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// Linux.
    Linux,
    /// Windows, with AMD's HIP SDK.
    Windows,
}

impl Platform {
    /// The one that this program was built for.
    pub const fn of_build() -> Option<Self> {
        if cfg!(target_os = "linux") {
            Some(Platform::Linux)
        } else if cfg!(target_os = "windows") {
            Some(Platform::Windows)
        } else {
            None
        }
    }

    /// Whether this product works on AMD GPUs there. On Windows nothing has been tried: names alone do not make it work.
    pub const fn is_supported(self) -> bool {
        matches!(self, Platform::Linux)
    }
}

/// A name under which a library is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryFile {
    /// Name without version on Linux, for example `libamdhip64`.
    pub library: &'static str,
    /// Where it is called so.
    pub platform: Platform,
    /// The first number of the HIP runtime's version with which a library of this name works, if the name tells.
    pub runtime: Option<u32>,
    /// The name.
    pub name: &'static str,
}

const fn linux(library: &'static str, runtime: Option<u32>, name: &'static str) -> LibraryFile {
    LibraryFile {
        library,
        platform: Platform::Linux,
        runtime,
        name,
    }
}

const fn windows(library: &'static str, runtime: Option<u32>, name: &'static str) -> LibraryFile {
    LibraryFile {
        library,
        platform: Platform::Windows,
        runtime,
        name,
    }
}

/// Every name, those of a library in the order in which they are tried.
pub const LIBRARY_FILES: &[LibraryFile] = &[
    linux("libamdhip64", Some(7), "libamdhip64.so.7"),
    linux("libamdhip64", Some(6), "libamdhip64.so.6"),
    linux("libamdhip64", None, "libamdhip64.so"),
    linux("libhiprtc", Some(7), "libhiprtc.so.7"),
    linux("libhiprtc", Some(6), "libhiprtc.so.6"),
    linux("libhiprtc", None, "libhiprtc.so"),
    linux("librocblas", Some(7), "librocblas.so.5"),
    linux("librocblas", Some(6), "librocblas.so.4"),
    linux("librocblas", None, "librocblas.so"),
    linux("libhipblaslt", Some(7), "libhipblaslt.so.1"),
    linux("libhipblaslt", Some(6), "libhipblaslt.so.0"),
    linux("libhipblaslt", None, "libhipblaslt.so"),
    // The same for both: only the place tells to which it belongs.
    linux("libMIOpen", None, "libMIOpen.so.1"),
    linux("libMIOpen", None, "libMIOpen.so"),
    // Likewise.
    linux("librccl", None, "librccl.so.1"),
    linux("librccl", None, "librccl.so"),
    windows("libamdhip64", Some(7), "amdhip64_7.dll"),
    windows("libamdhip64", Some(6), "amdhip64_6.dll"),
    windows("libhiprtc", Some(7), "hiprtc0701.dll"),
    windows("libhiprtc", Some(6), "hiprtc0605.dll"),
    windows("librocblas", None, "rocblas.dll"),
    windows("libhipblaslt", None, "libhipblaslt.dll"),
    windows("libMIOpen", None, "MIOpen.dll"),
    windows("librccl", None, "rccl.dll"),
];

/// The names of a library on a platform: those that suit a runtime of that version, or all if none is known to.
pub fn names(library: &str, platform: Platform, runtime: Option<u32>) -> Vec<&'static str> {
    let of_library = LIBRARY_FILES
        .iter()
        .filter(|file| file.library == library && file.platform == platform);
    let is_known = of_library.clone().any(|file| file.runtime == runtime);
    of_library
        .filter(|file| {
            !is_known || file.runtime.is_none() || file.runtime == runtime || runtime.is_none()
        })
        .map(|file| file.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_has_names_on_every_platform() {
        for library in [
            "libamdhip64",
            "libhiprtc",
            "librocblas",
            "libhipblaslt",
            "libMIOpen",
            "librccl",
        ] {
            for platform in [Platform::Linux, Platform::Windows] {
                assert!(!names(library, platform, None).is_empty(), "{library}");
            }
        }
        assert!(Platform::Linux.is_supported() && !Platform::Windows.is_supported());
    }

    #[test]
    fn names_are_those_of_the_runtimes_release() {
        let of = |runtime| names("librocblas", Platform::Linux, runtime);
        assert_eq!(of(Some(6)), ["librocblas.so.4", "librocblas.so"]);
        assert_eq!(of(Some(7)), ["librocblas.so.5", "librocblas.so"]);
        let all = ["librocblas.so.5", "librocblas.so.4", "librocblas.so"];
        assert_eq!(of(None), all);
        // A release that the table does not know may use any.
        assert_eq!(of(Some(9)), all);
        let miopen = names("libMIOpen", Platform::Linux, Some(6));
        assert_eq!(miopen, ["libMIOpen.so.1", "libMIOpen.so"]);
    }
}
