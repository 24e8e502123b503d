//! Linux.

use crate::driver::{Driver, Errno, Kernel};
use crate::Result;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// The kernel's driver.
pub(crate) fn driver() -> Result<Arc<dyn Driver>> {
    Ok(Arc::new(Kernel::open()?))
}

/// The number of an open file, by which requests name it.
pub(crate) fn descriptor(file: &File) -> std::result::Result<u32, Errno> {
    u32::try_from(file.as_raw_fd()).map_err(|_| Errno(libc::EBADF))
}

/// Bytes of a page of the host's memory.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: a question without arguments that point anywhere.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// Reserves pages without memory: where the system likes, or at an address exactly if nothing is there.
pub(crate) fn reserve(at: Option<usize>, size: usize) -> std::result::Result<usize, Errno> {
    let flag = at.map_or(0, |_| libc::MAP_FIXED_NOREPLACE);
    // SAFETY: the mapping is new and replaces nothing: it is not asked for with MAP_FIXED.
    let found = unsafe {
        libc::mmap(
            at.unwrap_or(0) as *mut libc::c_void,
            size,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flag,
            -1,
            0,
        )
    };
    if found == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    let found = found as usize;
    match at {
        // Kernels that do not know the flag take the address for a wish.
        Some(at) if at != found => {
            // SAFETY: the pages have just been reserved, and nobody was told of them.
            unsafe { release(found, size) };
            Err(Errno(libc::EEXIST))
        }
        _ => Ok(found),
    }
}

/// Gives pages back.
///
/// # Safety
/// They are a reservation that nothing refers to.
pub(crate) unsafe fn release(address: usize, size: usize) {
    if size > 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(address as *mut libc::c_void, size) };
    }
}

static FORKS: AtomicU64 = AtomicU64::new(0);

/// How often this process or those before it were forked, counted in each child since the first call: two numbers differ
/// if a process is a copy of the one that took the other.
pub(crate) fn forks() -> u64 {
    static COUNTED: Once = Once::new();
    extern "C" fn count() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    COUNTED.call_once(|| {
        // It can only fail for want of memory; then nobody knows of forks, as before.
        //
        // SAFETY: the function does what a child of several threads may do: it changes an atomic number.
        unsafe { libc::pthread_atfork(None, None, Some(count)) };
    });
    FORKS.load(Ordering::Relaxed)
}
