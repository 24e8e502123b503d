//! Memory that was handed out, by address.

use crate::device::Device;
use candle_kfd::Memory;
use hip_abi::error::{HipError, HipResult};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Whose memory an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Memory of the device with this ordinal.
    Device(usize),
    /// Host memory that every device reaches.
    Pinned,
    /// Host memory that no device reaches.
    Pageable,
}

pub(crate) struct Block {
    pub memory: Memory,
    pub place: Place,
}

/// Memory that was handed out.
#[derive(Default)]
pub(crate) struct Memories(RwLock<BTreeMap<u64, Block>>);

impl Memories {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Block>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Block>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a block; gives its address.
    pub fn insert(&self, block: Block) -> u64 {
        let address = block.memory.address();
        self.write().insert(address, block);
        address
    }

    /// Takes out the block that begins at an address, if it is of that kind.
    pub fn remove(&self, address: u64, is_kind: impl Fn(Place) -> bool) -> HipResult<Block> {
        let mut blocks = self.write();
        let is_there = blocks
            .get(&address)
            .is_some_and(|block| is_kind(block.place));
        let block = is_there.then(|| blocks.remove(&address)).flatten();
        block.ok_or(HipError::InvalidValue)
    }

    /// Where the bytes from an address on are.
    ///
    /// # Errors
    /// [`HipError::InvalidValue`] if they begin in a block and leave it.
    pub fn locate(&self, address: u64, bytes: u64) -> HipResult<Place> {
        let blocks = self.read();
        let Some((begin, block)) = blocks.range(..=address).next_back() else {
            return Ok(Place::Pageable);
        };
        let (offset, length) = (address - begin, block.memory.len() as u64);
        match offset < length {
            false => Ok(Place::Pageable),
            true if bytes <= length - offset => Ok(block.place),
            true => Err(HipError::InvalidValue),
        }
    }

    /// Lets a device use the block that an address is in.
    pub fn map_to(&self, address: u64, device: &Device) -> HipResult {
        let blocks = self.read();
        let block = blocks.range(..=address).next_back();
        let (_, block) = block.ok_or(HipError::InvalidValue)?;
        let mapped = block.memory.map_to(std::slice::from_ref(&device.gpu));
        mapped.map_err(|error| device.failed(error))
    }

    /// Visits the blocks of a device.
    pub fn of_device(&self, device: usize, visit: impl FnMut(&Block) -> HipResult) -> HipResult {
        let blocks = self.read();
        let of_device = |block: &&Block| block.place == Place::Device(device);
        blocks.values().filter(of_device).try_for_each(visit)
    }
}
