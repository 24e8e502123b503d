//! A kernel that touches an address outside of all memory ends the process, as on a real GPU. This says which kernel it
//! was.

use super::fault::current_kernel;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What the process did on these signals before.
struct Previous([libc::sigaction; 2]);

// SAFETY: plain data that is written once.
unsafe impl Send for Previous {}
// SAFETY: as above.
unsafe impl Sync for Previous {}

static PREVIOUS: OnceLock<Previous> = OnceLock::new();

/// Makes faults in kernels tell the kernel's name first. What the process did on a fault before, it does after that.
pub(super) fn install() {
    PREVIOUS.get_or_init(|| {
        Previous(SIGNALS.map(|signal| {
            // SAFETY: an all-zero sigaction is a valid value, and both pointers are to such values.
            unsafe {
                let mut previous: libc::sigaction = std::mem::zeroed();
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigaction(signal, &action, &mut previous);
                previous
            }
        }))
    });
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes valid information.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut digits = [0u8; 16];
    for (i, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[address >> (60 - 4 * i) & 15];
    }
    // Nothing here allocates or locks: the fault may have come at any point.
    if let Some(name) = current_kernel() {
        for part in [
            "hip-sim: kernel ".as_bytes(),
            name.as_bytes(),
            b": access to address 0x",
            &digits,
            b", which is no memory at all (or its stack overflowed)\n",
        ] {
            // SAFETY: the part is readable.
            unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
        }
    }
    // The faulting instruction runs again, under the previous action.
    let index = (signal == libc::SIGBUS) as usize;
    match PREVIOUS.get() {
        // SAFETY: the action was valid when it was replaced.
        Some(previous) => unsafe {
            libc::sigaction(signal, &previous.0[index], std::ptr::null_mut());
        },
        // SAFETY: the default action needs no handler.
        None => unsafe {
            libc::signal(signal, libc::SIG_DFL);
        },
    }
}
