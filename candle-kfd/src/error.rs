//! What can fail, and what to do about it.

use crate::driver::Errno;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver refused a request.
    #[error("{ioctl} failed: {errno}{}", hint(ioctl, *errno))]
    Ioctl {
        /// The request's name in the kernel's header.
        ioctl: &'static str,
        /// Why.
        errno: Errno,
    },
    /// A device file cannot be opened.
    #[error("{path} cannot be opened: {errno}{}", hint(path, *errno))]
    Open {
        /// The device file.
        path: String,
        /// Why.
        errno: Errno,
    },
    /// No table here knows the GPU, so that it is left alone.
    #[error("{arch} is not supported without ROCm's libraries: a wrong packet could hang it; use HIP's runtime for it")]
    UnknownArch {
        /// The processor's name.
        arch: String,
    },
    /// The kernel's description of a GPU makes no sense.
    #[error("the kernel's description of the GPU cannot be right: {problem}")]
    Topology {
        /// What is wrong.
        problem: String,
    },
}

/// What a user can do about a failure; begins with a separator.
fn hint(_what: &str, errno: Errno) -> &'static str {
    match errno.0 {
        libc::EACCES | libc::EPERM => {
            "; add the user to the groups render and video (usermod -aG render,video USER) and log in again"
        }
        libc::ENOENT => {
            "; load the kernel's amdgpu driver with compute support, or start the container with --device=/dev/kfd --device=/dev/dri"
        }
        _ => "",
    }
}
