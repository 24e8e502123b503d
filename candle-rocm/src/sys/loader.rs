//! Finding and opening ROCm's shared libraries.
//!
//! Order: `$ROCM_PATH/lib`, `$ROCM_PATH/lib64`, `$HIP_PATH/lib`, `$HIP_PATH/lib64`, the dynamic loader's own
//! path, then `/opt/rocm*/lib`, newest release first. An explicit folder that has the library decides: if that
//! library lacks a symbol, no other release is mixed in silently.
//!
//! What works on the HIP runtime is taken from the runtime's own folder if it is there, and only under names that suit
//! the runtime's version. If it brings another runtime with it all the same, it is refused: streams and memory of one
//! would be handed to the other.

use super::files::{names, Platform};
use super::provided;
use std::ffi::{c_void, OsString};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One library; [`LIBRARY_FILES`](super::files::LIBRARY_FILES) has its files' names.
#[derive(Clone, Copy, Debug)]
pub struct Sonames {
    /// Name without version, for example `libamdhip64`.
    pub stem: &'static str,
    /// Debian package or ROCm component that holds it.
    pub package: &'static str,
    /// Whether it computes on the HIP runtime, of which a process must have but one.
    pub is_on_runtime: bool,
}

impl Sonames {
    /// File names on this platform that suit a HIP runtime of that version (of any if none is given), preferred first.
    pub fn files(&self, runtime: Option<u32>) -> Vec<&'static str> {
        Platform::of_build().map_or_else(Vec::new, |platform| names(self.stem, platform, runtime))
    }
}

/// One file that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Path, or bare file name when the dynamic loader searched.
    pub path: PathBuf,
    /// Why it was not used.
    pub reason: String,
}

/// Why a library cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// No file of that name could be opened.
    NotFound {
        /// The library and its file names.
        sonames: Sonames,
        /// Everything that was tried.
        tried: Vec<Attempt>,
    },
    /// A library was opened but is not one that this program can use.
    MissingSymbol {
        /// The library's file.
        path: PathBuf,
        /// The function that it lacks.
        symbol: &'static str,
        /// Everything that was tried.
        tried: Vec<Attempt>,
    },
    /// The library works on another HIP runtime than the one in use.
    TwoRuntimes {
        /// The library's file.
        path: PathBuf,
        /// The files of the runtimes that the process has.
        runtimes: Vec<PathBuf>,
    },
    /// The HIP runtime is part of the program, and what works on AMD's cannot be used.
    NotBuiltIn {
        /// The library.
        sonames: Sonames,
    },
    /// AMD GPUs are not used on this operating system.
    Platform {
        /// The library.
        sonames: Sonames,
    },
}

impl LoadError {
    /// Every file that was tried, and why each was not used.
    pub fn tried(&self) -> &[Attempt] {
        match self {
            LoadError::NotFound { tried, .. } | LoadError::MissingSymbol { tried, .. } => tried,
            LoadError::TwoRuntimes { .. }
            | LoadError::NotBuiltIn { .. }
            | LoadError::Platform { .. } => &[],
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::NotFound { sonames, tried } => {
                write!(
                    f,
                    "{} was not found; install ROCm 6.2 or newer ({}), or set ROCM_PATH to where it is.",
                    sonames.stem, sonames.package
                )?;
                if provided::are_chosen() {
                    f.write_str(
                        " This program has no runtime over the kernel driver, which CANDLE_ROCM_RUNTIME=kfd asks for: \
                         build it with --features kfd, or set ROCM_PATH to the folder that `hip-on-kfd install` made.",
                    )?;
                }
                f.write_str(" Tried:")?;
                summarise(f, tried)
            }
            LoadError::MissingSymbol { path, symbol, .. } => write!(
                f,
                "{} lacks the function {symbol}; this program needs ROCm 6.2 or newer: install it, or set ROCM_PATH to where it is",
                path.display()
            ),
            LoadError::TwoRuntimes { path, runtimes } => {
                let runtimes: Vec<String> =
                    runtimes.iter().map(|path| path.display().to_string()).collect();
                write!(
                    f,
                    "{} cannot be used: it belongs to another ROCm than the HIP runtime, and this process now has {}; \
                     set ROCM_PATH to an installation that has all of ROCm's libraries, or remove what is left of the other",
                    path.display(),
                    runtimes.join(" and ")
                )
            }
            LoadError::NotBuiltIn { sonames } => write!(
                f,
                "{} is not used: it works on AMD's HIP runtime, and CANDLE_ROCM_RUNTIME=kfd chose the one in this program",
                sonames.stem
            ),
            LoadError::Platform { sonames } => write!(
                f,
                "{} is not looked for: AMD GPUs are used under Linux only, not under {}",
                sonames.stem,
                std::env::consts::OS
            ),
        }
    }
}

/// One line per folder: absent files are the common case and need no line each.
fn summarise(f: &mut fmt::Formatter<'_>, tried: &[Attempt]) -> fmt::Result {
    let mut absent: Vec<&Path> = Vec::new();
    for attempt in tried {
        if attempt.reason == ABSENT {
            let folder = attempt.path.parent().unwrap_or(&attempt.path);
            if !absent.contains(&folder) {
                absent.push(folder);
                write!(f, "\n  {}: no such file", folder.display())?;
            }
        } else {
            write!(f, "\n  {}: {}", attempt.path.display(), attempt.reason)?;
        }
    }
    Ok(())
}

const ABSENT: &str = "no such file";
/// In place of a library's path.
const BUILT_IN: &str = "(in this program)";

/// Where libraries are looked for.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Folders named by the user; the first that has the library decides.
    pub explicit: Vec<PathBuf>,
    /// Whether to ask the dynamic loader (`LD_LIBRARY_PATH`, the cache of `ldconfig`).
    pub system: bool,
    /// Folders tried last.
    pub fallback: Vec<PathBuf>,
    /// The HIP runtime that the library must suit, if one is in use.
    pub runtime: Option<RuntimeInUse>,
}

/// The HIP runtime of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeInUse {
    /// The first number of its version, if known.
    pub major: Option<u32>,
    /// Where its file is.
    pub folder: PathBuf,
}

impl Search {
    /// The search that the environment and the machine ask for.
    pub fn from_env() -> Self {
        Search {
            explicit: explicit_folders(|name| std::env::var_os(name)),
            system: true,
            fallback: rocm_folders(Path::new("/opt")),
            runtime: None,
        }
    }

    /// A search in the given folders only.
    pub fn only(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Search {
            explicit: folders.into_iter().collect(),
            ..Search::default()
        }
    }
}

/// The folders that the environment names.
fn explicit_folders(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    ["ROCM_PATH", "HIP_PATH"]
        .into_iter()
        .filter_map(|name| variable(name).filter(|root| !root.is_empty()))
        .flat_map(|root| ["lib", "lib64"].map(|lib| Path::new(&root).join(lib)))
        .collect()
}

/// `root/rocm*/lib`, the newest version first; an unversioned `rocm` goes before all.
fn rocm_folders(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let version = name.strip_prefix("rocm")?.trim_start_matches('-');
            let key = if version.is_empty() {
                vec![u32::MAX]
            } else {
                version
                    .split(['.', '-', '_'])
                    .map_while(|part| part.parse().ok())
                    .collect()
            };
            Some((key, entry.path().join("lib")))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// An opened library that offers every required symbol.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The function table.
    pub functions: T,
    /// The file, or the bare name if the dynamic loader found it.
    pub path: PathBuf,
    /// What was tried before.
    pub tried: Vec<Attempt>,
}

/// Opens the first usable file of a library and resolves its functions.
///
/// # Errors
/// [`LoadError`] with every path that was tried, or with the runtimes if the library brings a second one.
pub fn load<T>(
    search: &Search,
    sonames: &Sonames,
    resolve: impl Fn(libloading::Library) -> std::result::Result<T, &'static str>,
) -> std::result::Result<Loaded<T>, LoadError> {
    if !Platform::of_build().is_some_and(Platform::is_supported) {
        return Err(LoadError::Platform { sonames: *sonames });
    }
    let mut tried = Vec::new();
    let mut missing: Option<(PathBuf, &'static str)> = None;
    let runtime = search.runtime.as_ref();
    let files = sonames.files(runtime.and_then(|runtime| runtime.major));
    let in_folders = |folders: &[PathBuf]| -> Vec<PathBuf> {
        folders
            .iter()
            .flat_map(|folder| files.iter().map(|file| folder.join(file)))
            .collect()
    };
    let explicit = in_folders(&search.explicit);
    let decisive = explicit.len();
    let beside = runtime.map(|runtime| runtime.folder.clone());
    let beside = in_folders(beside.as_slice());
    let bare: &[&str] = if search.system { &files } else { &[] };
    let candidates = explicit
        .into_iter()
        .chain(beside)
        .chain(bare.iter().map(PathBuf::from))
        .chain(in_folders(&search.fallback));
    for (i, path) in candidates.enumerate() {
        let in_folder = path.components().count() > 1;
        if in_folder && !path.exists() {
            let reason = ABSENT.to_string();
            tried.push(Attempt { path, reason });
            continue;
        }
        // SAFETY: opening a library runs its initialisers. The names are those of ROCm's own libraries, and
        // the folders are the user's or the system's choice.
        let library = match unsafe { libloading::Library::new(&path) } {
            Ok(library) => library,
            Err(error) => {
                let reason = error.to_string();
                tried.push(Attempt { path, reason });
                continue;
            }
        };
        match resolve(library) {
            Ok(functions) => {
                let runtimes = mapped_files(RUNTIME);
                if sonames.is_on_runtime && runtimes.len() > 1 {
                    return Err(LoadError::TwoRuntimes { path, runtimes });
                }
                return Ok(Loaded {
                    functions,
                    path,
                    tried,
                });
            }
            Err(symbol) => {
                let reason = format!("lacks the function {symbol}");
                let attempt = Attempt { path, reason };
                missing.get_or_insert((attempt.path.clone(), symbol));
                tried.push(attempt);
                if i < decisive {
                    break;
                }
            }
        }
    }
    Err(match missing {
        Some((path, symbol)) => LoadError::MissingSymbol {
            path,
            symbol,
            tried,
        },
        None => LoadError::NotFound {
            sonames: *sonames,
            tried,
        },
    })
}

/// The table of a library from functions of the program itself; none where libraries are to be looked for.
pub(crate) fn built_in<T>(
    sonames: &Sonames,
    resolve: impl Fn(&dyn Fn(&str) -> Option<*const c_void>) -> std::result::Result<T, &'static str>,
) -> Option<std::result::Result<Loaded<T>, LoadError>> {
    let symbols = provided::chosen()?;
    if sonames.is_on_runtime {
        return Some(Err(LoadError::NotBuiltIn { sonames: *sonames }));
    }
    let (path, tried) = (PathBuf::from(BUILT_IN), Vec::new());
    Some(match resolve(&symbols) {
        Ok(functions) => Ok(Loaded {
            functions,
            path,
            tried,
        }),
        Err(symbol) => Err(LoadError::MissingSymbol {
            path,
            symbol,
            tried,
        }),
    })
}

/// Declares the function table of a library: a struct with one typed pointer per symbol, the list of the
/// symbols, and the functions that load it.
macro_rules! library {
    (
        $(#[$doc:meta])*
        $table:ident = $sonames:expr;
        required { $( fn $req:ident($($rarg:ident: $rty:ty),* $(,)?) -> $rret:ty; )* }
        optional { $( fn $opt:ident($($oarg:ident: $oty:ty),* $(,)?) -> $oret:ty; )* }
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case, missing_docs)] // fields carry the C names, whose manuals document them
        #[derive(Debug)]
        pub struct $table {
            $( pub $req: unsafe extern "C" fn($($rarg: $rty),*) -> $rret, )*
            $( pub $opt: Option<unsafe extern "C" fn($($oarg: $oty),*) -> $oret>, )*
            // Keeps the pointers above valid: the library, if it is none of the program's own, stays open as long as the
            // table lives.
            _library: Option<libloading::Library>,
        }

        impl $table {
            /// File names of the library.
            pub const SONAMES: $crate::sys::loader::Sonames = $sonames;

            /// Symbols that the table holds.
            pub const SYMBOLS: &'static [$crate::sys::Symbol] = &[
                $( $crate::sys::Symbol { library: $sonames.stem, name: stringify!($req), required: true }, )*
                $( $crate::sys::Symbol { library: $sonames.stem, name: stringify!($opt), required: false }, )*
            ];

            fn resolve(
                find: &dyn Fn(&str) -> Option<*const std::ffi::c_void>,
            ) -> Result<Self, &'static str> {
                // SAFETY: each pointer gets the C signature of the function of that name, and is kept no
                // longer than what `find` looked it up in, which the table owns if it is a library.
                unsafe {
                    Ok($table {
                        $( $req: std::mem::transmute::<
                            *const std::ffi::c_void,
                            unsafe extern "C" fn($($rty),*) -> $rret,
                        >(find(stringify!($req)).ok_or(stringify!($req))?), )*
                        $( $opt: find(stringify!($opt)).map(|symbol| std::mem::transmute::<
                            *const std::ffi::c_void,
                            unsafe extern "C" fn($($oty),*) -> $oret,
                        >(symbol)), )*
                        _library: None,
                    })
                }
            }

            fn from_library(library: libloading::Library) -> Result<Self, &'static str> {
                let mut table = Self::resolve(&|name| $crate::sys::loader::address(&library, name))?;
                table._library = Some(library);
                Ok(table)
            }

            /// Opens the library where `search` finds it.
            ///
            /// # Errors
            /// A load error that lists what was tried.
            pub fn open(
                search: &$crate::sys::Search,
            ) -> Result<$crate::sys::loader::Loaded<Self>, $crate::sys::LoadError> {
                $crate::sys::loader::load(search, &Self::SONAMES, Self::from_library)
            }

            /// The process's table, loaded by the first call: of the program's own functions if the environment chooses
            /// these, else of the library.
            ///
            /// # Errors
            /// A load error that lists what was tried; the same one on every call.
            pub fn get() -> Result<&'static $crate::sys::loader::Loaded<Self>, $crate::sys::LoadError> {
                static TABLE: std::sync::OnceLock<
                    Result<$crate::sys::loader::Loaded<$table>, $crate::sys::LoadError>,
                > = std::sync::OnceLock::new();
                TABLE
                    .get_or_init(|| {
                        let built_in = $crate::sys::loader::built_in(&Self::SONAMES, Self::resolve);
                        built_in.unwrap_or_else(|| Self::open(&$crate::sys::search(Self::SONAMES)))
                    })
                    .as_ref()
                    .map_err(Clone::clone)
            }
        }
    };
}
pub(crate) use library;

/// Where a library has a function.
pub(crate) fn address(library: &libloading::Library, name: &str) -> Option<*const c_void> {
    // SAFETY: the symbol is not used here, but for its address.
    let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) }.ok()?;
    Some(*symbol)
}

/// The HIP runtime's name without version.
const RUNTIME: &str = "libamdhip64";

/// The files that are mapped into the process, each mapping with its addresses. Known on Linux only.
fn mappings() -> Vec<(Range<usize>, PathBuf)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapping = |line: &str| {
        // start-end permissions offset device inode path
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let hex = |text| usize::from_str_radix(text, 16).ok();
        let path = rest.find('/').map(|at| PathBuf::from(&rest[at..]))?;
        Some((hex(start)?..hex(end)?, path))
    };
    maps.lines().filter_map(mapping).collect()
}

/// The file that the code or data at `address` was loaded from: also of a library that the dynamic loader found by its
/// bare name. Known on Linux only.
pub fn mapped_file(address: usize) -> Option<PathBuf> {
    let mut mappings = mappings().into_iter();
    mappings.find_map(|(range, path)| range.contains(&address).then_some(path))
}

/// The files of a library that the process has loaded, by its name without version (`libamd_comgr`), each once. Known on
/// Linux only.
pub fn mapped_files(library: &str) -> Vec<PathBuf> {
    let is_wanted = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let rest = name.and_then(|name| name.strip_prefix(library));
        // libLLVM.so.20.1, libLLVM-19.so.1
        rest.is_some_and(|rest| {
            rest.starts_with(".so") || (rest.starts_with('-') && rest.contains(".so"))
        })
    };
    let mut paths: Vec<PathBuf> = mappings().into_iter().map(|(_, path)| path).collect();
    paths.retain(|path| is_wanted(path));
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn code_knows_its_file() {
        let own = mapped_file(mapped_file as *const () as usize);
        assert_eq!(own, std::env::current_exe().ok());
        assert_eq!(mapped_file(0), None);
        // The C library is loaded once, by several mappings.
        assert_eq!(mapped_files("libc").len(), 1);
        assert!(mapped_files("libc.so").is_empty());
    }

    #[test]
    fn rocm_path_goes_before_hip_path_and_empty_means_unset() {
        let folders = explicit_folders(|name| match name {
            "ROCM_PATH" => Some("/r".into()),
            "HIP_PATH" => Some("/h".into()),
            _ => None,
        });
        let expected = ["/r/lib", "/r/lib64", "/h/lib", "/h/lib64"].map(PathBuf::from);
        assert_eq!(folders, expected);
        assert!(explicit_folders(|_| Some("".into())).is_empty());
    }

    #[test]
    fn rocm_folders_are_newest_first() {
        let root = std::env::temp_dir().join(format!("candle-rocm-opt-{}", std::process::id()));
        for name in ["rocm-6.4.1", "rocm-7.2.0", "rocm-7.10.1", "other"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        let names: Vec<String> = rocm_folders(&root)
            .iter()
            .map(|p| p.strip_prefix(&root).unwrap().display().to_string())
            .collect();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            names,
            ["rocm-7.10.1/lib", "rocm-7.2.0/lib", "rocm-6.4.1/lib"]
        );
    }
}
