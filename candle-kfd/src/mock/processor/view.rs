//! Memory as one GPU reaches it.

use super::super::lock;
use super::super::space::{Access, Fault, Part, Reason};
use super::super::state::Shared;
use std::fmt;
use std::sync::Arc;

/// Memory at one GPU's addresses. What the GPU was not given is a [`Fault`].
#[derive(Clone)]
pub struct View {
    shared: Arc<Shared>,
    gpu: usize,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View of GPU {}", self.gpu)
    }
}

impl View {
    pub(in crate::mock) fn new(shared: Arc<Shared>, gpu: usize) -> Self {
        View { shared, gpu }
    }

    fn parts(&self, address: u64, bytes: usize, access: Access) -> Result<Vec<Part>, Fault> {
        lock(&self.shared.state).gpus[self.gpu]
            .space
            .parts(address, bytes as u64, access)
    }

    /// The one part that a word lies in; words do not cross the end of memory.
    fn word(&self, address: u64, bytes: usize, access: Access) -> Result<Part, Fault> {
        let misplaced = Fault {
            address,
            reason: Reason::NotPresent,
        };
        if !address.is_multiple_of(bytes as u64) {
            return Err(misplaced);
        }
        self.parts(address, bytes, access)?.pop().ok_or(misplaced)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// A [`Fault`] where there is nothing.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let mut rest = bytes;
        for part in self.parts(address, rest.len(), Access::Read)? {
            let (now, later) = rest.split_at_mut(part.bytes as usize);
            part.read(&self.shared.user, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// A [`Fault`] where there is nothing, or nothing to be written to.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Fault> {
        let mut rest = bytes;
        for part in self.parts(address, rest.len(), Access::Write)? {
            let (now, later) = rest.split_at(part.bytes as usize);
            part.write(&self.shared.user, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Reads a word of 32 bits.
    ///
    /// # Errors
    /// A [`Fault`] where there is nothing, or the address is no multiple of 4.
    pub fn load32(&self, address: u64) -> Result<u32, Fault> {
        self.word(address, 4, Access::Read)?
            .load32(&self.shared.user)
    }

    /// Reads a word of 64 bits.
    ///
    /// # Errors
    /// A [`Fault`] where there is nothing, or the address is no multiple of 8.
    pub fn load64(&self, address: u64) -> Result<u64, Fault> {
        self.word(address, 8, Access::Read)?
            .load64(&self.shared.user)
    }

    /// Writes a word of 32 bits.
    ///
    /// # Errors
    /// As of [`View::write`], or if the address is no multiple of 4.
    pub fn store32(&self, address: u64, value: u32) -> Result<(), Fault> {
        self.word(address, 4, Access::Write)?
            .store32(&self.shared.user, value)
    }

    /// Writes a word of 64 bits.
    ///
    /// # Errors
    /// As of [`View::write`], or if the address is no multiple of 8.
    pub fn store64(&self, address: u64, value: u64) -> Result<(), Fault> {
        self.word(address, 8, Access::Write)?
            .store64(&self.shared.user, value)
    }

    /// Adds to a word of 64 bits, and returns what it was.
    ///
    /// # Errors
    /// As of [`View::store64`].
    pub fn add64(&self, address: u64, value: u64) -> Result<u64, Fault> {
        self.word(address, 8, Access::Write)?
            .update64(&self.shared.user, |old| old.wrapping_add(value))
    }

    /// Sets bits of a word of 64 bits.
    pub(super) fn or64(&self, address: u64, value: u64) -> Result<u64, Fault> {
        self.word(address, 8, Access::Write)?
            .update64(&self.shared.user, |old| old | value)
    }

    /// Checks that the GPU may do something to all of a range.
    pub(super) fn check(&self, address: u64, bytes: u64, access: Access) -> Result<(), Fault> {
        self.parts(address, bytes as usize, access).map(drop)
    }

    /// Where the memory begins that an address lies in.
    pub(super) fn start(&self, address: u64) -> Result<u64, Fault> {
        let state = lock(&self.shared.state);
        let found = state.gpus[self.gpu].space.find(address);
        found.map(|(start, _)| start).ok_or(Fault {
            address,
            reason: Reason::NotPresent,
        })
    }
}
