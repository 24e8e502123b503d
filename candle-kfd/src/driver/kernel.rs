//! The kernel's driver.

use super::{Driver, Errno, MappedFile};
use crate::{Error, Result};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// For how long the driver may ask to be called again, which it does while a GPU is reset or memory moves, before that
/// is its answer; and the pause between two calls.
const AGAIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// The file of the driver's compute interface.
const KFD: &str = "/dev/kfd";

/// The kernel's driver behind `/dev/kfd`.
#[derive(Debug)]
pub struct Kernel {
    kfd: File,
}

impl Kernel {
    /// Opens `/dev/kfd`.
    ///
    /// # Errors
    /// [`Error::Open`] if there is none, or this user may not.
    pub fn open() -> Result<Self> {
        let kfd = open(KFD).map_err(|errno| Error::Open {
            path: KFD.to_string(),
            errno,
        })?;
        Ok(Kernel { kfd })
    }
}

fn open(path: &str) -> std::result::Result<File, Errno> {
    File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Calls again after a signal, and for so long while the driver asks for it.
fn repeated(
    patience: Duration,
    mut call: impl FnMut() -> std::result::Result<(), Errno>,
) -> std::result::Result<(), Errno> {
    let start = Instant::now();
    loop {
        match call() {
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN)) if start.elapsed() < patience => std::thread::sleep(PAUSE),
            answer => return answer,
        }
    }
}

impl Driver for Kernel {
    unsafe fn ioctl(&self, number: u32, argument: &mut [u8]) -> std::result::Result<(), Errno> {
        repeated(AGAIN, || {
            // SAFETY: the number carries the structure's size, which `Request` ties to its type; addresses inside are
            // the caller's promise.
            let status = unsafe {
                libc::ioctl(
                    self.kfd.as_raw_fd(),
                    number as _,
                    argument.as_mut_ptr().cast::<libc::c_void>(),
                )
            };
            match status {
                -1 => Err(Errno::last()),
                _ => Ok(()),
            }
        })
    }

    fn open_render(&self, minor: u32) -> std::result::Result<File, Errno> {
        open(&format!("/dev/dri/renderD{minor}"))
    }

    unsafe fn map(
        &self,
        file: MappedFile<'_>,
        offset: u64,
        address: usize,
        bytes: usize,
    ) -> std::result::Result<(), Errno> {
        let descriptor = match file {
            MappedFile::Kfd => self.kfd.as_raw_fd(),
            MappedFile::Render(render) => render.as_raw_fd(),
        };
        // The driver's offsets use all 64 bits: the highest of them say that doorbells are meant.
        let offset = offset as libc::off_t;
        // SAFETY: the range is a reservation of the caller's, so that nothing is replaced that is in use.
        let mapped = unsafe {
            libc::mmap(
                address as *mut libc::c_void,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                descriptor,
                offset,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(())
    }

    fn root(&self) -> &Path {
        Path::new("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_is_asked_again_but_not_for_ever() {
        let mut calls = 0;
        let mut answer = |after: u32, errno| {
            calls = 0;
            repeated(4 * PAUSE, || {
                calls += 1;
                match calls > after {
                    true => Ok(()),
                    false => Err(Errno(errno)),
                }
            })
        };
        assert_eq!(answer(1000, libc::EINTR), Ok(()));
        assert_eq!(answer(1, libc::EAGAIN), Ok(()));
        assert_eq!(answer(u32::MAX, libc::EAGAIN), Err(Errno(libc::EAGAIN)));
        assert_eq!(answer(1, libc::EINVAL), Err(Errno(libc::EINVAL)));
        assert_eq!(calls, 1);
    }
}
