//! The C interfaces of ROCm's libraries, found at run time.
//!
//! Each library is a struct of function pointers made by one list of symbols. Libraries load lazily,
//! once per process, and independently: a machine without MIOpen still runs everything that needs
//! none of it. [`loader`] says where is looked and keeps what was tried.

mod abi;
pub mod hip;
pub mod hiprtc;
pub mod loader;
pub mod miopen;
pub mod rocblas;

pub use abi::{facts, Fact};
pub use loader::{Attempt, LoadError, Search};
use std::ffi::{c_char, CStr};

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
        miopen::MiOpen::SYMBOLS,
    ]
    .concat()
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
