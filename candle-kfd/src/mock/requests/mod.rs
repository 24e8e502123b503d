//! Requests, each as Linux' `kfd_chardev.c` answers it.

mod event;
mod memory;
mod process;
mod queue;

use super::lock;
use super::state::Shared;
use crate::driver::Errno;
use crate::uapi::{self, Request};
use std::sync::Arc;

/// The number of a request among others, without direction and size.
const fn command(number: u32) -> u32 {
    number & 0xffff
}

/// Answers a request whose structure may be shorter or longer than the one known here: `kfd_ioctl` copies what both
/// have.
fn answer<R: Request>(
    shared: &Arc<Shared>,
    argument: &mut [u8],
    how: impl FnOnce(&Arc<Shared>, &mut R) -> Result<(), Errno>,
) -> Result<(), Errno> {
    lock(&shared.state).admit(R::NAME)?;
    let mut request = R::zeroed();
    let known = argument.len().min(size_of::<R>());
    bytemuck::bytes_of_mut(&mut request)[..known].copy_from_slice(&argument[..known]);
    let outcome = how(shared, &mut request);
    // Only what the direction says is copied back, and only if it succeeded, but for what maps and waits.
    if R::NUMBER >> 31 != 0 {
        argument[..known].copy_from_slice(&bytemuck::bytes_of(&request)[..known]);
    }
    outcome
}

/// Answers a request.
pub(super) fn dispatch(
    shared: &Arc<Shared>,
    number: u32,
    argument: &mut [u8],
) -> Result<(), Errno> {
    let minor = lock(&shared.state).setup.version.1;
    macro_rules! answers {
        ($($request:ident since $since:literal by $how:path),* $(,)?) => {
            match command(number) {
                $(
                    of if of == command(uapi::$request::NUMBER) && u64::from(minor) + 1 > $since => {
                        answer::<uapi::$request>(shared, argument, $how)
                    }
                )*
                // Numbers that a driver does not know.
                _ => Err(Errno(libc::EINVAL)),
            }
        };
    }
    answers! {
        GetVersion since 0 by process::get_version,
        GetClockCounters since 0 by process::get_clock_counters,
        GetProcessAperturesNew since 0 by process::get_process_apertures,
        AcquireVm since 0 by process::acquire_vm,
        SetScratchBackingVa since 0 by process::set_scratch_backing,
        SetTrapHandler since 0 by process::set_trap_handler,
        SetMemoryPolicy since 0 by process::set_memory_policy,
        RuntimeEnable since 13 by process::runtime_enable,
        AllocMemoryOfGpu since 0 by memory::alloc,
        FreeMemoryOfGpu since 0 by memory::free,
        MapMemoryToGpu since 0 by memory::map,
        UnmapMemoryFromGpu since 0 by memory::unmap,
        GetAvailableMemory since 9 by memory::available,
        CreateQueue since 0 by queue::create,
        DestroyQueue since 0 by queue::destroy,
        UpdateQueue since 0 by queue::update,
        CreateEvent since 0 by event::create,
        DestroyEvent since 0 by event::destroy,
        SetEvent since 0 by event::set,
        ResetEvent since 0 by event::reset,
        WaitEvents since 0 by event::wait,
    }
}
