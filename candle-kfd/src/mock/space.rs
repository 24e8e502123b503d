//! What a GPU sees: addresses, and the memory behind them.

use super::pages::{Pages, PAGE};
use super::user::User;
use crate::driver::Errno;
use crate::uapi::flags;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// An access that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The first byte that could not be reached.
    pub address: u64,
    /// Why.
    pub reason: Reason,
}

/// Why an access failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The GPU was not given memory there.
    NotPresent,
    /// It may read it only.
    ReadOnly,
    /// Code may not be there.
    NoExecute,
}

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Execute,
}

/// What memory consists of.
#[derive(Clone, Debug)]
pub(super) enum Backing {
    /// Pages of the mock's.
    Pages(Arc<Pages>),
    /// The process' own memory, from this address on.
    User(u64),
    /// None: doorbells, as a GPU sees them.
    Nothing,
}

/// Memory at addresses of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    /// The allocation's handle.
    pub handle: u64,
    pub bytes: u64,
    pub backing: Backing,
    pub flags: u32,
    /// Queues that use it.
    pub queues: u32,
}

/// The addresses of one GPU.
#[derive(Debug, Default)]
pub(super) struct Space {
    mappings: BTreeMap<u64, Mapping>,
}

impl Space {
    /// Puts memory at an address.
    ///
    /// # Errors
    /// `EINVAL` as of `amdgpu_vm_bo_map`: not whole pages, not in `within`, or something is there.
    pub fn map(&mut self, address: u64, mapping: Mapping, within: (u64, u64)) -> Result<(), Errno> {
        let invalid = Err(Errno(libc::EINVAL));
        let Some(end) = address.checked_add(mapping.bytes) else {
            return invalid;
        };
        let whole =
            address.is_multiple_of(PAGE) && mapping.bytes.is_multiple_of(PAGE) && mapping.bytes > 0;
        if !whole || address < within.0 || end - 1 > within.1 {
            return invalid;
        }
        let before = self.mappings.range(..end).next_back();
        if before.is_some_and(|(&start, before)| start + before.bytes > address) {
            return invalid;
        }
        self.mappings.insert(address, mapping);
        Ok(())
    }

    /// Takes away what belongs to an allocation.
    ///
    /// # Errors
    /// `EBUSY` if a queue uses it.
    pub fn unmap(&mut self, handle: u64) -> Result<(), Errno> {
        let mut own = self
            .mappings
            .values()
            .filter(|mapping| mapping.handle == handle);
        if own.any(|mapping| mapping.queues > 0) {
            return Err(Errno(libc::EBUSY));
        }
        self.mappings.retain(|_, mapping| mapping.handle != handle);
        Ok(())
    }

    /// The mapping that holds an address, and where it begins.
    pub fn find(&self, address: u64) -> Option<(u64, &Mapping)> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address - start < mapping.bytes).then_some((start, mapping))
    }

    /// The mapping that a queue needs to begin at the page of `address`, and to be `bytes` long: as
    /// `kfd_queue_buffer_get` of `kfd_queue.c` compares them.
    pub fn exactly(&mut self, address: u64, bytes: u64) -> Result<&mut Mapping, Errno> {
        let page = address / PAGE * PAGE;
        match self.mappings.get_mut(&page) {
            Some(mapping) if bytes / PAGE == 0 || mapping.bytes / PAGE == bytes / PAGE => {
                Ok(mapping)
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// How many mappings are so.
    pub fn count(&self, is: impl Fn(&Mapping) -> bool) -> usize {
        self.mappings.values().filter(|mapping| is(mapping)).count()
    }

    /// The parts of memory behind a range of addresses.
    pub fn parts(&self, address: u64, bytes: u64, access: Access) -> Result<Vec<Part>, Fault> {
        let mut parts = Vec::with_capacity(1);
        let mut at = address;
        let mut left = bytes;
        while left > 0 {
            let fault = |reason| Fault {
                address: at,
                reason,
            };
            let (start, mapping) = self.find(at).ok_or(fault(Reason::NotPresent))?;
            if matches!(mapping.backing, Backing::Nothing) {
                return Err(fault(Reason::NotPresent));
            }
            if access == Access::Write && mapping.flags & flags::WRITABLE == 0 {
                return Err(fault(Reason::ReadOnly));
            }
            if access == Access::Execute && mapping.flags & flags::EXECUTABLE == 0 {
                return Err(fault(Reason::NoExecute));
            }
            let offset = at - start;
            let count = left.min(mapping.bytes - offset);
            parts.push(Part {
                address: at,
                backing: mapping.backing.clone(),
                offset,
                bytes: count,
            });
            left -= count;
            at = match at.checked_add(count) {
                Some(next) => next,
                None if left == 0 => at,
                None => return Err(fault(Reason::NotPresent)),
            };
        }
        Ok(parts)
    }
}

/// Memory behind a part of a range.
#[derive(Debug)]
pub(super) struct Part {
    address: u64,
    backing: Backing,
    offset: u64,
    /// Its length.
    pub bytes: u64,
}

impl Part {
    /// Memory of the process may be gone by now.
    fn gone(&self) -> impl Fn(Errno) -> Fault + '_ {
        |_| Fault {
            address: self.address,
            reason: Reason::NotPresent,
        }
    }

    /// Copies it out.
    pub fn read(&self, user: &User, bytes: &mut [u8]) -> Result<(), Fault> {
        match &self.backing {
            Backing::Pages(pages) => pages.read(self.offset, bytes),
            Backing::User(base) => user.read(base + self.offset, bytes).map_err(self.gone())?,
            Backing::Nothing => {}
        }
        Ok(())
    }

    /// Copies bytes in.
    pub fn write(&self, user: &User, bytes: &[u8]) -> Result<(), Fault> {
        match &self.backing {
            Backing::Pages(pages) => pages.write(self.offset, bytes),
            Backing::User(base) => user.write(base + self.offset, bytes).map_err(self.gone())?,
            Backing::Nothing => {}
        }
        Ok(())
    }

    /// Changes a double word in one step, and returns what it was; memory of the process in two.
    pub fn update64(&self, user: &User, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        if let Backing::Pages(pages) = &self.backing {
            if self.offset.is_multiple_of(8) {
                let word = pages.word64(self.offset);
                let update =
                    word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| Some(change(old)));
                return Ok(update.unwrap_or_else(|old| old));
            }
        }
        let mut bytes = [0; 8];
        self.read(user, &mut bytes)?;
        let old = u64::from_le_bytes(bytes);
        self.write(user, &change(old).to_le_bytes())?;
        Ok(old)
    }

    /// Reads a word in one step.
    pub fn load32(&self, user: &User) -> Result<u32, Fault> {
        match &self.backing {
            Backing::Pages(pages) if self.offset.is_multiple_of(4) => {
                Ok(pages.word32(self.offset).load(Ordering::SeqCst))
            }
            _ => {
                let mut bytes = [0; 4];
                self.read(user, &mut bytes)?;
                Ok(u32::from_le_bytes(bytes))
            }
        }
    }

    /// Reads a double word in one step.
    pub fn load64(&self, user: &User) -> Result<u64, Fault> {
        match &self.backing {
            Backing::Pages(pages) if self.offset.is_multiple_of(8) => {
                Ok(pages.word64(self.offset).load(Ordering::SeqCst))
            }
            _ => {
                let mut bytes = [0; 8];
                self.read(user, &mut bytes)?;
                Ok(u64::from_le_bytes(bytes))
            }
        }
    }

    /// Writes a word in one step.
    pub fn store32(&self, user: &User, value: u32) -> Result<(), Fault> {
        match &self.backing {
            Backing::Pages(pages) if self.offset.is_multiple_of(4) => {
                pages.word32(self.offset).store(value, Ordering::SeqCst)
            }
            _ => self.write(user, &value.to_le_bytes())?,
        }
        Ok(())
    }

    /// Writes a double word in one step.
    pub fn store64(&self, user: &User, value: u64) -> Result<(), Fault> {
        match &self.backing {
            Backing::Pages(pages) if self.offset.is_multiple_of(8) => {
                pages.word64(self.offset).store(value, Ordering::SeqCst)
            }
            _ => self.write(user, &value.to_le_bytes())?,
        }
        Ok(())
    }
}
