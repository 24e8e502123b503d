//! Memory that GPUs see.

mod block;
mod host;
mod kind;
mod space;

use crate::driver::Errno;
use crate::fault::Region;
use crate::generation::PAGE;
use crate::gpu::Gpu;
use crate::{Error, Result};
pub(crate) use block::Block;
pub use host::Host;
pub use kind::Kind;
pub(crate) use space::{AddressSpace, Reservation};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that a GPU, or several, see at one address.
///
/// When it is dropped, the GPUs must be done with it; what could not be given back is counted by
/// [`Kfd::failed_releases`](crate::Kfd::failed_releases).
#[derive(Debug)]
pub struct Memory {
    block: Block,
    /// From the block's first address; of memory of the caller's that begins within a page.
    offset: usize,
    bytes: usize,
    kind: Kind,
    gpu: Arc<Gpu>,
}

impl Gpu {
    /// Takes memory and lets this GPU see it. Its contents are whatever they are.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with what is free, [`Error::NotVisible`] if the host would have to see memory of a GPU with a
    /// small window, [`Error::Reserve`] and [`Error::Map`] if the host's side fails, also for no bytes at all,
    /// [`Error::Ioctl`] if the driver refuses for another reason, [`Error::Lost`] after a fault.
    pub fn allocate(self: &Arc<Self>, bytes: usize, kind: Kind) -> Result<Memory> {
        self.usable()?;
        let node = self.node();
        let flags = match kind {
            Kind::User => {
                return Err(Error::Map {
                    what: "the caller's memory, which is registered, not allocated",
                    bytes,
                    errno: Errno(libc::EINVAL),
                })
            }
            Kind::VramVisible if node.visible_bytes() == 0 => {
                return Err(Error::NotVisible {
                    gpu: node.pci_id.clone(),
                })
            }
            Kind::Executable if node.visible_bytes() == 0 => Kind::Gtt.flags(),
            kind => kind.flags(),
        };
        let kfd = self.kfd();
        let block = Block::new(
            &kfd.shared,
            &kfd.space,
            node.gpu_id,
            self.render()?,
            bytes,
            flags,
        )
        .map_err(|error| self.short_of_memory(error, bytes, kind))?;
        Ok(self.memory(block, 0, bytes, kind))
    }

    /// Lets this GPU see memory of the caller's. It need not begin with a page.
    ///
    /// # Safety
    /// The pages around `host..host + bytes` stay mapped, readable and writable until the result is dropped, and the host
    /// has no references to what a GPU writes meanwhile.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if so much cannot be held in place, [`Error::Reserve`] for no bytes or beyond all addresses,
    /// [`Error::Ioctl`] if the driver refuses the pages, such as those of a device, [`Error::Lost`] after a fault.
    pub unsafe fn register(self: &Arc<Self>, host: *mut u8, bytes: usize) -> Result<Memory> {
        self.usable()?;
        let offset = host as usize % PAGE;
        let first = host as usize - offset;
        let size = (bytes.checked_add(offset))
            .filter(|_| bytes > 0)
            .and_then(|size| size.checked_next_multiple_of(PAGE))
            .filter(|&size| first.checked_add(size).is_some())
            .ok_or(Error::Reserve {
                bytes,
                errno: Errno(libc::EINVAL),
            })?;
        let kfd = self.kfd();
        let (kind, gpu_id) = (Kind::User, self.node().gpu_id);
        // SAFETY: the caller's promise.
        let block =
            unsafe { Block::of_host(&kfd.shared, &kfd.space, gpu_id, first, size, kind.flags()) }
                .map_err(|error| self.short_of_memory(error, bytes, kind))?;
        Ok(self.memory(block, offset, bytes, kind))
    }

    fn memory(self: &Arc<Self>, block: Block, offset: usize, bytes: usize, kind: Kind) -> Memory {
        self.kfd().shared.regions.add(Region {
            address: block.address(),
            bytes: block.bytes() as u64,
            kind,
            gpu_id: self.node().gpu_id,
        });
        Memory {
            block,
            offset,
            bytes,
            kind,
            gpu: self.clone(),
        }
    }

    /// Says how much is wanted and free, if that is what the driver's answer means.
    fn short_of_memory(&self, error: Error, bytes: usize, kind: Kind) -> Error {
        match error {
            Error::Ioctl {
                errno: errno @ Errno(libc::ENOMEM | libc::ENOSPC),
                ..
            } => Error::OutOfMemory {
                gpu: self.node().pci_id.clone(),
                kind,
                bytes: bytes as u64,
                free: self.free_bytes().ok().filter(|_| kind.is_device()),
                errno,
            },
            other => other,
        }
    }
}

impl Memory {
    /// The first address, of all GPUs that see it; for memory that the host sees, too, its own.
    pub fn address(&self) -> u64 {
        self.block.address() + self.offset as u64
    }

    /// Size in bytes, as asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is none, which [`Gpu::allocate`] refuses.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What it is for.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The GPU for which it was taken.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// The address of a range, if it is within the memory.
    ///
    /// # Errors
    /// [`Error::Range`] if it is not.
    pub fn range(&self, offset: u64, bytes: u64) -> Result<u64> {
        let within = (offset.checked_add(bytes)).is_some_and(|end| end <= self.bytes as u64);
        within.then(|| self.address() + offset).ok_or(Error::Range {
            offset,
            bytes,
            memory: self.bytes as u64,
        })
    }

    /// Lets other GPUs see it: all of them, or none more than before.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a GPU of another driver, [`Error::Peers`] and [`Error::Ioctl`] if a GPU does not reach this
    /// one's memory, [`Error::OutOfMemory`] if page tables do not fit, [`Error::Lost`] after a fault.
    pub fn map_to(&self, gpus: &[Arc<Gpu>]) -> Result<()> {
        for gpu in gpus {
            gpu.usable()?;
            if !Arc::ptr_eq(gpu.kfd(), self.gpu.kfd()) {
                return Err(Error::Foreign);
            }
        }
        let ids: Vec<u32> = gpus.iter().map(|gpu| gpu.node().gpu_id).collect();
        (self.block.map_to(&ids))
            .map_err(|error| self.gpu.short_of_memory(error, self.bytes, self.kind))
    }

    /// The host's view; none of memory that the host does not see or that is the caller's.
    pub fn host(&self) -> Option<Host<'_>> {
        if !self.kind.is_visible() {
            return None;
        }
        let start = NonNull::new(self.address() as *mut u8)?;
        // SAFETY: the block is mapped readable and writable at this address and is as large, until it is dropped; nothing
        // else refers to it.
        Some(unsafe { Host::new(start, self.bytes) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.gpu.kfd().shared.own_process().is_err() {
            return;
        }
        (self.gpu.kfd().shared.regions).remove(self.block.address(), self.gpu.node().gpu_id);
    }
}
