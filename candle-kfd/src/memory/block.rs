//! Memory as the driver gives it: addresses, what is behind them, and which GPUs see it.

use super::space::{alignment, AddressSpace, Reservation};
use crate::driver::{Errno, MappedFile};
use crate::generation::PAGE;
use crate::kfd::Shared;
use crate::uapi::{flags, AllocMemoryOfGpu, FreeMemoryOfGpu, MapMemoryToGpu, UnmapMemoryFromGpu};
use crate::{Error, Result};
use std::fs::File;
use std::sync::{Arc, Mutex};

/// A handle of the driver's, with its addresses.
#[derive(Debug)]
pub(crate) struct Block {
    shared: Arc<Shared>,
    /// None for memory of the caller's at its own address.
    reservation: Option<Reservation>,
    handle: u64,
    address: u64,
    bytes: usize,
    /// Numbers of the GPUs that see it.
    mapped: Mutex<Vec<u32>>,
    /// Whether it stays for as long as the process.
    kept: bool,
}

impl Block {
    /// Takes memory for a GPU and lets it see it. The driver compares sizes of what belongs to a queue, so that they are
    /// exact to a page.
    pub fn new(
        shared: &Arc<Shared>,
        space: &AddressSpace,
        gpu_id: u32,
        render: &File,
        bytes: usize,
        wanted: u32,
    ) -> Result<Block> {
        let bytes = (bytes.checked_next_multiple_of(PAGE)).ok_or(Error::Reserve {
            bytes,
            errno: Errno(libc::EINVAL),
        })?;
        let reservation = space.reserve(bytes, alignment(bytes))?;
        let address = reservation.address();
        let request = AllocMemoryOfGpu {
            va_addr: address as u64,
            size: bytes as u64,
            gpu_id,
            flags: wanted,
            ..AllocMemoryOfGpu::default()
        };
        let (mut block, offset) = Self::take(shared, Some(reservation), request)?;
        // What the host does not see is mapped, too, as libhsakmt has it: it keeps the addresses, and an emulator has its
        // memory there. Kernels that mark it as nothing for the host say so, which is as well.
        //
        // SAFETY: the range is our reservation, and nothing refers to it yet.
        match unsafe { (shared.driver).map(MappedFile::Render(render), offset, address, bytes) } {
            Ok(()) => {}
            Err(Errno(libc::EPERM)) if wanted & (flags::GTT | flags::PUBLIC) == 0 => {
                block.reservation.iter_mut().for_each(Reservation::regain);
            }
            Err(errno) => {
                return Err(Error::Map {
                    what: "memory",
                    bytes,
                    errno,
                })
            }
        }
        block.map_to(&[gpu_id])?;
        Ok(block)
    }

    /// Lets a GPU see memory of the caller's: at its own address, or elsewhere if that is out of the GPU's reach or taken
    /// already, as by a registration of its neighbour on the same page.
    ///
    /// # Safety
    /// The pages are the caller's and stay mapped for as long as the block.
    pub unsafe fn of_host(
        shared: &Arc<Shared>,
        space: &AddressSpace,
        gpu_id: u32,
        host: usize,
        bytes: usize,
        flags: u32,
    ) -> Result<Block> {
        let request = |address| AllocMemoryOfGpu {
            va_addr: address,
            size: bytes as u64,
            mmap_offset: host as u64,
            gpu_id,
            flags,
            ..AllocMemoryOfGpu::default()
        };
        let at = |reservation: Option<Reservation>| {
            let address = reservation.as_ref().map_or(host, Reservation::address);
            let request = request(address as u64);
            let (block, _) = Self::take(shared, reservation, request)?;
            block.map_to(&[gpu_id])?;
            Ok(block)
        };
        match at(None) {
            Err(Error::Ioctl {
                errno: Errno(libc::EINVAL),
                ..
            }) => at(Some(space.reserve(bytes, alignment(bytes))?)),
            other => other,
        }
    }

    /// The block, and the offset at which the render node maps it.
    fn take(
        shared: &Arc<Shared>,
        reservation: Option<Reservation>,
        mut request: AllocMemoryOfGpu,
    ) -> Result<(Block, u64)> {
        let (address, bytes) = (request.va_addr, request.size);
        // SAFETY: the addresses are reserved, or the caller's own memory.
        unsafe { shared.driver.request(&mut request) }?;
        let block = Block {
            shared: shared.clone(),
            reservation,
            handle: request.handle,
            address,
            bytes: bytes as usize,
            mapped: Mutex::new(Vec::new()),
            kept: false,
        };
        Ok((block, request.mmap_offset))
    }

    /// Lets GPUs see it that do not yet: all of them or none.
    pub fn map_to(&self, gpu_ids: &[u32]) -> Result<()> {
        let mut mapped = self
            .mapped
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut new: Vec<u32> = Vec::new();
        for &gpu_id in gpu_ids {
            if !mapped.contains(&gpu_id) && !new.contains(&gpu_id) {
                new.push(gpu_id);
            }
        }
        if new.is_empty() {
            return Ok(());
        }
        let mut request = MapMemoryToGpu {
            handle: self.handle,
            device_ids_array_ptr: new.as_ptr() as u64,
            n_devices: new.len() as u32,
            n_success: 0,
        };
        // SAFETY: the driver reads the array, which lives for as long as the request.
        let result = unsafe { self.shared.driver.request(&mut request) };
        let done = (request.n_success as usize).min(new.len());
        if result.is_ok() && done == new.len() {
            mapped.append(&mut new);
            return Ok(());
        }
        // The driver maps one after the other and says how many it did.
        if !self.unmap(&new[..done]) {
            mapped.extend_from_slice(&new[..done]);
        }
        Err(match result {
            Err(error) if new.len() == 1 => error,
            Ok(()) => Error::Peers {
                wanted: new.len(),
                mapped: done,
                errno: None,
            },
            Err(Error::Ioctl { errno, .. }) => Error::Peers {
                wanted: new.len(),
                mapped: done,
                errno: Some(errno),
            },
            Err(other) => other,
        })
    }

    /// Takes it away from GPUs; false if the driver does not.
    fn unmap(&self, gpu_ids: &[u32]) -> bool {
        gpu_ids.is_empty()
            || self.shared.release(UnmapMemoryFromGpu {
                handle: self.handle,
                device_ids_array_ptr: gpu_ids.as_ptr() as u64,
                n_devices: gpu_ids.len() as u32,
                n_success: 0,
            })
    }

    /// The first address, of the GPUs and, but for memory of the caller's, of the host.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes, whole pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps it for as long as the process.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// What the driver calls it.
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mapped = std::mem::take(self.mapped.get_mut().unwrap_or_else(|p| p.into_inner()));
        let released = !self.kept
            && self.unmap(&mapped)
            && self.shared.release(FreeMemoryOfGpu {
                handle: self.handle,
            });
        if let Some(reservation) = self.reservation.take() {
            // A GPU may still see what was not freed: nothing else may come to these addresses.
            if !released {
                reservation.leak();
            }
        }
    }
}
