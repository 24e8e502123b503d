//! The C interfaces of ROCm's libraries, found at run time.
//!
//! Each library is a struct of function pointers made by one list of symbols. Libraries load lazily,
//! once per process, and independently: a machine without MIOpen still runs everything that needs
//! none of it. [`loader`] says where is looked and keeps what was tried. A program may have a HIP runtime in itself
//! ([`provide`]), which the environment chooses.

mod abi;
pub mod files;
pub mod hip;
pub mod hipblaslt;
pub mod hiprtc;
pub mod loader;
pub mod miopen;
pub(crate) mod provided;
pub mod rccl;
pub mod rocblas;

pub use abi::{facts, Fact};
use loader::{mapped_file, Sonames};
pub use loader::{Attempt, LoadError, RuntimeInUse, Search};
pub use provided::{provide, Symbols};
use std::ffi::{c_char, CStr};
use std::path::Path;

/// A symbol that the product looks up in a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Library stem, for example `libamdhip64`.
    pub library: &'static str,
    /// Name of the function.
    pub name: &'static str,
    /// Whether the library is of no use without it.
    pub required: bool,
}

/// Every symbol of every library that the product uses.
pub fn symbols() -> Vec<Symbol> {
    [
        hip::Hip::SYMBOLS,
        hiprtc::Hiprtc::SYMBOLS,
        rocblas::RocBlas::SYMBOLS,
        hipblaslt::HipBlasLt::SYMBOLS,
        miopen::MiOpen::SYMBOLS,
        rccl::Rccl::SYMBOLS,
    ]
    .concat()
}

/// Where a library of the process is looked for: one that works on the HIP runtime must suit the one in use.
pub(crate) fn search(library: Sonames) -> Search {
    let mut search = Search::from_env();
    if library.stem != hip::Hip::SONAMES.stem {
        search.runtime = runtime_in_use();
    }
    search
}

/// The HIP runtime of the process; none without ROCm.
fn runtime_in_use() -> Option<RuntimeInUse> {
    let hip = hip::Hip::get().ok()?;
    let mut version = 0;
    // SAFETY: `version` receives the number.
    unsafe { (hip.functions.hipRuntimeGetVersion)(&mut version) };
    let of_number = || {
        u32::try_from(version / 10_000_000)
            .ok()
            .filter(|&major| major > 0)
    };
    let of_name = || {
        let name = hip.path.file_name()?.to_str()?;
        name.split_once(".so.")?.1.split('.').next()?.parse().ok()
    };
    // The dynamic loader tells no folder of what it finds.
    let file = match hip.path.parent() {
        Some(folder) if folder != Path::new("") => hip.path.clone(),
        _ => mapped_file(hip.functions.hipRuntimeGetVersion as usize)?,
    };
    Some(RuntimeInUse {
        major: of_number().or_else(of_name),
        folder: file.parent()?.to_path_buf(),
    })
}

/// Copies a C string; null gives an empty one.
///
/// # Safety
/// `ptr` is null or points to a zero-terminated string.
pub(crate) unsafe fn text(ptr: *const c_char) -> String {
    if ptr.is_null() {
        return String::new();
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(ptr) }
        .to_string_lossy()
        .into_owned()
}
