//! Memory of the calling process as the kernel sees it: an address that is wrong is `EFAULT`, not a crash.
//!
//! The kernel itself checks addresses that a system call is given, so bytes pass through a file on their way.

use crate::driver::Errno;
use bytemuck::Pod;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

/// Bytes that pass at once.
const STEP: usize = 64 << 10;

/// Copies from and to addresses that nobody has checked.
#[derive(Debug)]
pub(super) struct User {
    through: Mutex<OwnedFd>,
}

impl User {
    /// Takes the file that bytes pass through.
    pub fn new() -> Result<Self, Errno> {
        Ok(User {
            through: Mutex::new(super::pages::memfd("candle-kfd-user")?),
        })
    }

    /// Reads from an address of the process.
    pub fn read(&self, mut address: u64, mut bytes: &mut [u8]) -> Result<(), Errno> {
        let through = super::lock(&self.through);
        let file = through.as_raw_fd();
        while !bytes.is_empty() {
            let count = bytes.len().min(STEP);
            let (now, rest) = bytes.split_at_mut(count);
            // SAFETY: `pwrite` reads only addresses that the kernel finds readable, and fails at others.
            all(count, unsafe {
                libc::pwrite(file, address as *const _, count, 0)
            })?;
            // SAFETY: `now` has `count` bytes to be written.
            all(count, unsafe {
                libc::pread(file, now.as_mut_ptr().cast(), count, 0)
            })?;
            address = address.wrapping_add(count as u64);
            bytes = rest;
        }
        Ok(())
    }

    /// Writes to an address of the process.
    pub fn write(&self, mut address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let through = super::lock(&self.through);
        let file = through.as_raw_fd();
        for now in bytes.chunks(STEP) {
            // SAFETY: `now` has so many bytes to be read.
            all(now.len(), unsafe {
                libc::pwrite(file, now.as_ptr().cast(), now.len(), 0)
            })?;
            // SAFETY: `pread` writes only to addresses that the kernel finds writable, and fails at others; that they
            // may be written to is what the caller of the request promised.
            all(now.len(), unsafe {
                libc::pread(file, address as *mut _, now.len(), 0)
            })?;
            address = address.wrapping_add(now.len() as u64);
        }
        Ok(())
    }

    /// Reads an array of structures.
    pub fn array<T: Pod>(&self, address: u64, count: usize) -> Result<Vec<T>, Errno> {
        // The kernel takes no more than it can set aside; neither does a test ask for more.
        if count > 1 << 16 {
            return Err(Errno(libc::ENOMEM));
        }
        let mut values = vec![T::zeroed(); count];
        self.read(address, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}

/// Whether all bytes passed.
fn all(count: usize, passed: isize) -> Result<(), Errno> {
    match usize::try_from(passed) {
        Ok(passed) if passed == count => Ok(()),
        _ => Err(Errno(libc::EFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_addresses_are_errors() {
        let user = User::new().unwrap();
        let from: Vec<u8> = (0..200_000u32).map(|i| i as u8).collect();
        let mut to = vec![0; from.len()];
        user.read(from.as_ptr() as u64, &mut to).unwrap();
        assert_eq!(from, to);
        let mut again = vec![0; from.len()];
        user.write(again.as_mut_ptr() as u64, &from).unwrap();
        assert_eq!(from, again);
        for address in [0, 8, u64::MAX - 100, 1 << 63] {
            assert_eq!(user.read(address, &mut to), Err(Errno(libc::EFAULT)));
            assert_eq!(user.write(address, &from), Err(Errno(libc::EFAULT)));
        }
        assert_eq!(
            user.array::<u32>(from.as_ptr() as u64, 1 << 20),
            Err(Errno(libc::ENOMEM))
        );
    }
}
