//! Addresses: those of memory are the same for the host and for all GPUs, so that a pointer means one thing.

use crate::driver::Errno;
use crate::generation::PAGE;
use crate::system;
use crate::{Error, Result};
use std::sync::Mutex;

/// Alignment of large memory: a GPU's page tables then need one entry for so many bytes (libhsakmt's `fmm.c`).
const HUGE: usize = 2 << 20;
/// Alignment of memory that is not small.
const LARGE: usize = 64 << 10;
/// The lowest address that is looked at: below it, programs and their heaps may be.
const LOWEST: u64 = 1 << 32;
/// How many places are tried.
const TRIES: usize = 4096;

/// The addresses that all GPUs of the machine can map.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    /// With the last one.
    first: u64,
    last: u64,
    /// Where the next free place is looked for, if the system's choice is out of reach.
    next: Mutex<u64>,
}

/// Addresses that nothing else has, without memory behind them, and a page after them that stays without.
#[derive(Debug)]
pub(crate) struct Reservation {
    address: usize,
    /// Without the page after them.
    bytes: usize,
    /// Whether they are certainly still ours.
    ours: bool,
    /// In which process they were taken. In a copy of it, the kernel may have left some out, and others may be there.
    forks: u64,
}

/// The alignment that memory of a size gets.
pub(crate) fn alignment(bytes: usize) -> usize {
    match bytes {
        HUGE.. => HUGE,
        LARGE.. => LARGE,
        _ => PAGE,
    }
}

impl AddressSpace {
    /// What lies in all of the ranges.
    pub fn new(ranges: impl Iterator<Item = (u64, u64)>) -> Self {
        let (first, last) = ranges.fold((PAGE as u64, u64::MAX), |(first, last), (from, to)| {
            (first.max(from), last.min(to))
        });
        AddressSpace {
            first,
            last,
            next: Mutex::new(first.max(LOWEST)),
        }
    }

    fn holds(&self, address: usize, bytes: usize) -> bool {
        let end = (address as u64).checked_add(bytes as u64 - 1);
        address as u64 >= self.first && end.is_some_and(|end| end <= self.last)
    }

    /// Reserves addresses. `bytes` is a multiple of a page, the alignment a power of two and at least a page.
    ///
    /// # Errors
    /// [`Error::Reserve`] if there are none.
    pub fn reserve(&self, bytes: usize, alignment: usize) -> Result<Reservation> {
        let failed = |errno| Error::Reserve { bytes, errno };
        let size = (bytes.checked_add(PAGE))
            .filter(|_| bytes > 0)
            .ok_or(failed(Errno(libc::EINVAL)))?;
        let found = anywhere(size, alignment).map_err(failed)?;
        let found = Reservation {
            address: found,
            bytes,
            ours: true,
            forks: system::forks(),
        };
        if self.holds(found.address, bytes) {
            return Ok(found);
        }
        drop(found);
        let mut next = self
            .next
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for _ in 0..TRIES {
            let at = next.checked_next_multiple_of(alignment as u64);
            let at = at.and_then(|at| usize::try_from(at).ok());
            match at.filter(|&at| self.holds(at, size)) {
                // Once more from the beginning: others may have gone.
                None if *next > self.first.max(LOWEST) => *next = self.first.max(LOWEST),
                None => break,
                Some(at) => {
                    *next = (at + size.max(HUGE)) as u64;
                    if system::reserve(Some(at), size).is_ok() {
                        return Ok(Reservation {
                            address: at,
                            bytes,
                            ours: true,
                            forks: system::forks(),
                        });
                    }
                }
            }
        }
        Err(failed(Errno(libc::ENOMEM)))
    }
}

/// Reserves pages where the system likes.
fn anywhere(size: usize, alignment: usize) -> std::result::Result<usize, Errno> {
    let wanted = size.checked_add(alignment).ok_or(Errno(libc::EINVAL))?;
    let found = system::reserve(None, wanted)?;
    let address = found.next_multiple_of(alignment);
    // SAFETY: the pages before and behind the address are of the new reservation, and nobody was told of them.
    unsafe {
        system::release(found, address - found);
        system::release(address + size, found + wanted - address - size);
    }
    Ok(address)
}

impl Reservation {
    pub fn address(&self) -> usize {
        self.address
    }

    /// Takes the addresses again after mapping a file onto them failed: kernels before 6.12 then have taken away what was
    /// there. If somebody has them meanwhile, or they never went, they are not given back later, as nobody can tell.
    pub fn regain(&mut self) {
        self.ours = system::reserve(Some(self.address), self.bytes).is_ok();
    }

    /// Keeps the addresses for ever, as something may still use them.
    pub fn leak(self) {
        std::mem::forget(self);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.ours && self.forks == system::forks() {
            // SAFETY: the pages are ours, and whoever had them is done with them.
            unsafe { system::release(self.address, self.bytes + PAGE) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_and_of_one_owner() {
        let space = AddressSpace::new([(0, (1 << 47) - 1)].into_iter());
        let held: Vec<Reservation> = [PAGE, 3 * PAGE, LARGE, HUGE + PAGE, 5 * HUGE]
            .into_iter()
            .map(|bytes| {
                let found = space.reserve(bytes, alignment(bytes)).unwrap();
                assert_eq!(found.address() % alignment(bytes), 0);
                found
            })
            .collect();
        for (at, a) in held.iter().enumerate() {
            for b in &held[at + 1..] {
                let apart = a.address + a.bytes + PAGE <= b.address
                    || b.address + b.bytes + PAGE <= a.address;
                assert!(apart, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn addresses_are_those_that_every_gpu_maps() {
        // Where the system puts nothing by itself.
        let ranges = [(0x10_0000_0000, 0x3fff_ffff_ffff), (0, 0x1fff_ffff_ffff)];
        let space = AddressSpace::new(ranges.into_iter());
        let first = space.reserve(HUGE, HUGE).unwrap();
        let second = space.reserve(HUGE, HUGE).unwrap();
        for found in [&first, &second] {
            assert!(space.holds(found.address, found.bytes), "{found:?}");
        }
        assert!(second.address > first.address + HUGE);
        let none = AddressSpace::new([(1 << 40, (1 << 40) + 4095)].into_iter());
        assert_eq!(
            none.reserve(PAGE, PAGE).unwrap_err(),
            Error::Reserve {
                bytes: PAGE,
                errno: Errno(libc::ENOMEM)
            }
        );
        // A place that has gone is found again.
        let size = (4 * PAGE) as u64;
        let small = AddressSpace::new([(0x20_0000_0000, 0x20_0000_0000 + size - 1)].into_iter());
        for _ in 0..3 {
            let found = small.reserve(2 * PAGE, PAGE).unwrap();
            assert!(small.reserve(2 * PAGE, PAGE).is_err());
            drop(found);
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let space = AddressSpace::new([(0, u64::MAX)].into_iter());
        for bytes in [0, usize::MAX - PAGE + 1, 1 << 60] {
            assert!(
                matches!(space.reserve(bytes, HUGE), Err(Error::Reserve { .. })),
                "{bytes}"
            );
        }
    }
}
