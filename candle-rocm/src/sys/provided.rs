//! Functions that a program has in itself, in place of those of shared libraries.

use std::ffi::c_void;
use std::sync::OnceLock;

/// The variable that chooses the runtime, and the name of the one that a program has in itself.
pub(crate) const VARIABLE: &str = "CANDLE_ROCM_RUNTIME";
pub(crate) const KFD: &str = "kfd";

/// Finds a function of the HIP runtime or of hiprtc by its C name.
pub type Symbols = fn(&str) -> Option<*const c_void>;

static PROVIDED: OnceLock<Symbols> = OnceLock::new();

/// Gives the process the functions that `CANDLE_ROCM_RUNTIME=kfd` chooses, before it first looks for a device; a second
/// call changes nothing.
///
/// # Safety
/// What is found has the signature of the function of that name in AMD's library, and stays for good.
pub unsafe fn provide(symbols: Symbols) {
    let _ = PROVIDED.set(symbols);
}

/// Whether the environment chooses the program's own functions.
pub(crate) fn are_chosen() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == KFD)
}

/// The program's own functions, if it has them and the environment chooses them.
pub(crate) fn chosen() -> Option<Symbols> {
    PROVIDED.get().copied().filter(|_| are_chosen())
}
