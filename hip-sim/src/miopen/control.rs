//! Counts of calls by function, and calls that a test makes fail.

use hip_abi::miopen::{lock, miopenStatus_t};
use std::collections::HashMap;
use std::ffi::{c_char, CStr};
use std::sync::{Mutex, OnceLock};

#[derive(Default)]
struct Control {
    calls: HashMap<&'static str, u64>,
    /// Calls still to go, and the status of the one that fails.
    failures: HashMap<String, (u64, miopenStatus_t)>,
}

fn control() -> &'static Mutex<Control> {
    static CONTROL: OnceLock<Mutex<Control>> = OnceLock::new();
    CONTROL.get_or_init(Mutex::default)
}

/// Counts a call; its status if it is to fail.
pub(crate) fn count(name: &'static str) -> Option<miopenStatus_t> {
    let mut control = lock(control());
    *control.calls.entry(name).or_default() += 1;
    let (remaining, status) = control.failures.get_mut(name)?;
    *remaining -= 1;
    if *remaining > 0 {
        return None;
    }
    let status = *status;
    control.failures.remove(name);
    Some(status)
}

/// Sets all counts to zero.
pub(crate) fn reset() {
    lock(control()).calls.clear();
}

/// # Safety
/// `name` is null or a C string.
unsafe fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null; the caller's promise.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// Calls of a function of MIOpen since the last reset, failed ones included.
#[no_mangle]
pub unsafe extern "C" fn hip_sim_miopen_calls(function: *const c_char) -> u64 {
    // SAFETY: the caller's pointer.
    let name = unsafe { text(function) };
    lock(control())
        .calls
        .get(name.as_str())
        .copied()
        .unwrap_or(0)
}

/// Makes the `nth` call of a function from now answer `status`; 0 takes that back.
#[no_mangle]
pub unsafe extern "C" fn hip_sim_miopen_fail(
    function: *const c_char,
    nth: u64,
    status: miopenStatus_t,
) {
    // SAFETY: the caller's pointer.
    let name = unsafe { text(function) };
    let failures = &mut lock(control()).failures;
    match nth {
        0 => failures.remove(&name),
        _ => failures.insert(name, (nth, status)),
    };
}
