//! The kernel's `linux/kfd_ioctl.h`: structures, numbers and constants under the header's names without `kfd_ioctl_`.
//!
//! Tests compare sizes, offsets and numbers with the header.

mod event;
mod memory;
mod process;
mod queue;

use bytemuck::Pod;
pub use event::*;
pub use memory::*;
pub use process::*;
pub use queue::*;

/// A structure that is handed to the driver, and with which request.
pub trait Request: Pod {
    /// `AMDKFD_IOC_…`, for messages.
    const NAME: &'static str;
    /// The request's number with direction and size, as `_IOC` makes it.
    const NUMBER: u32;
}

/// Direction of a request, as the header's `AMDKFD_IOR`, `AMDKFD_IOW` and `AMDKFD_IOWR` say.
#[derive(Clone, Copy)]
enum Direction {
    Write = 1,
    Read = 2,
    Both = 3,
}

/// `_IOC(direction, 'K', command, size)`.
const fn number(direction: Direction, command: u8, size: usize) -> u32 {
    assert!(size < 1 << 14, "an ioctl's structure has 14 bits of size");
    (direction as u32) << 30 | (size as u32) << 16 | (b'K' as u32) << 8 | command as u32
}

/// Declares a structure of the header and the request that it belongs to.
macro_rules! request {
    (
        $(#[$doc:meta])*
        $name:ident = $ioctl:ident($direction:ident, $command:literal) {
            $( $(#[$field_doc:meta])* $field:ident: $type:ty, )*
        }
    ) => {
        $(#[$doc])*
        #[allow(missing_docs)] // fields carry the header's names, whose comments say what they are
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $( $(#[$field_doc])* pub $field: $type, )*
        }

        impl $crate::uapi::Request for $name {
            const NAME: &'static str = concat!("AMDKFD_IOC_", stringify!($ioctl));
            const NUMBER: u32 = $crate::uapi::number(
                $crate::uapi::Direction::$direction,
                $command,
                std::mem::size_of::<$name>(),
            );
        }
    };
}
use request;
