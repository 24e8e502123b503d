//! Memory that the mock's GPUs have: a file each, which the mock sees at an address of its own. Whoever has not mapped
//! it, as CPU or as GPU, does not reach it.

use crate::driver::Errno;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// An empty file without a name.
pub(super) fn memfd(name: &str) -> Result<OwnedFd, Errno> {
    let name = CString::new(name).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: the name ends with a zero.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the descriptor is new and of nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A file of whole pages, and where the mock sees it.
#[derive(Debug)]
pub(super) struct Pages {
    file: OwnedFd,
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is shared with other mappings of the file anyway; it is reached by atomic or volatile accesses and
// by copies through pointers, never by references.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Takes pages of zeros; they cost memory once they are written to.
    pub fn new(bytes: u64) -> Result<Self, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno(libc::ENOMEM))?;
        let file = memfd("candle-kfd-mock")?;
        let length = libc::off_t::try_from(bytes).map_err(|_| Errno(libc::ENOMEM))?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Errno(libc::ENOMEM));
        }
        Ok(Pages {
            file,
            base: base.cast(),
            bytes,
        })
    }

    /// Maps a part of them at an address that the caller has reserved.
    ///
    /// # Safety
    /// As of [`Driver::map`](crate::driver::Driver::map).
    pub unsafe fn map(&self, offset: u64, address: usize, bytes: usize) -> Result<(), Errno> {
        let end = usize::try_from(offset)
            .ok()
            .and_then(|offset| offset.checked_add(bytes));
        if bytes == 0 || !offset.is_multiple_of(PAGE) || end.is_none_or(|end| end > self.bytes) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the range is a reservation of the caller's.
        let mapped = unsafe {
            libc::mmap(
                address as *mut _,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                self.file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(())
    }

    /// Where `count` bytes from `offset` on begin.
    fn at(&self, offset: u64, count: usize) -> *mut u8 {
        let offset =
            usize::try_from(offset).expect("offsets are checked by whoever translates addresses");
        assert!(
            offset
                .checked_add(count)
                .is_some_and(|end| end <= self.bytes),
            "{offset} + {count} of {}",
            self.bytes
        );
        // SAFETY: within the mapping, as was checked.
        unsafe { self.base.add(offset) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: both have so many bytes, and they are of different mappings.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: both have so many bytes, and they are of different mappings.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// A word that the other side may change at any time.
    pub fn word32(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: within the mapping, which lives as long as `self`, and aligned.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// A double word that the other side may change at any time.
    pub fn word64(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: within the mapping, which lives as long as `self`, and aligned.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Sets all double words of a range.
    pub fn fill64(&self, offset: u64, count: u64, value: u64) {
        for at in 0..count {
            self.word64(offset + 8 * at).store(value, Ordering::SeqCst);
        }
    }

    /// How many there are, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and no reference outlives it. Failure leaves it mapped.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
