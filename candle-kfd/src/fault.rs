//! What goes wrong on a GPU, and where.

use crate::memory::Kind;
use crate::uapi::{HwExceptionData, MemoryExceptionData};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

/// Memory that was taken, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// What it is for.
    pub kind: Kind,
    /// The driver's number of its GPU.
    pub gpu_id: u32,
}

/// The memory that was taken, by address and GPU.
#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<BTreeMap<(u64, u32), Region>>);

impl Regions {
    pub fn add(&self, region: Region) {
        let mut regions = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        regions.insert((region.address, region.gpu_id), region);
    }

    pub fn remove(&self, address: u64, gpu_id: u32) {
        let mut regions = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        regions.remove(&(address, gpu_id));
    }

    /// The memory at an address, or else the nearest.
    pub fn nearest(&self, address: u64) -> Option<Region> {
        let regions = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let before = regions.range(..=(address, u32::MAX)).next_back();
        let after = regions.range((address, u32::MAX)..).next();
        let nearest = [before, after]
            .into_iter()
            .flatten()
            .min_by_key(|(_, region)| region.distance(address));
        nearest.map(|(_, region)| *region)
    }
}

impl Region {
    /// Bytes from it to an address; 0 within it.
    fn distance(&self, address: u64) -> u64 {
        let last = self.address + (self.bytes - 1);
        self.address
            .saturating_sub(address)
            .max(address.saturating_sub(last))
    }
}

/// Why an access to memory failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// Nothing is mapped there, or this GPU does not see it.
    pub not_present: bool,
    /// It was written and may only be read.
    pub read_only: bool,
    /// It was executed and is no code.
    pub no_execute: bool,
    /// The address may be a little off.
    pub imprecise: bool,
}

/// Something that went wrong on a GPU and ended this process's work on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An access to memory failed.
    Memory {
        /// The page that was accessed.
        address: u64,
        /// Why.
        reasons: Reasons,
        /// The kernel's kind of error: 0, or 1 for memory that could not be corrected, 2 for data known to be wrong, 3 for a
        /// GPU that hangs.
        error_type: u32,
        /// The memory that lies there or nearest; none if nothing was taken.
        nearest: Option<Region>,
    },
    /// The GPU was reset, or stopped answering.
    Hardware {
        /// The kernel's kind of reset: 0 of the whole GPU, 1 of a queue.
        reset_type: u32,
        /// The kernel's cause: 0 a hang, 1 an error of memory.
        reset_cause: u32,
        /// Whether device memory lost its contents.
        memory_lost: bool,
    },
}

impl Fault {
    pub(crate) fn of_memory(data: MemoryExceptionData, nearest: Option<Region>) -> Self {
        Fault::Memory {
            address: data.va,
            reasons: Reasons {
                not_present: data.not_present != 0,
                read_only: data.read_only != 0,
                no_execute: data.no_execute != 0,
                imprecise: data.imprecise != 0,
            },
            error_type: data.error_type,
            nearest,
        }
    }

    pub(crate) fn of_hardware(data: HwExceptionData) -> Self {
        Fault::Hardware {
            reset_type: data.reset_type,
            reset_cause: data.reset_cause,
            memory_lost: data.memory_lost != 0,
        }
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: Vec<&str> = [
            (self.not_present, "nothing is mapped there for this GPU"),
            (self.read_only, "it may not be written"),
            (self.no_execute, "it is no code"),
            (self.imprecise, "the address may be a little off"),
        ]
        .into_iter()
        .filter_map(|(holds, text)| holds.then_some(text))
        .collect();
        if said.is_empty() {
            return f.write_str("the kernel gives no reason");
        }
        f.write_str(&said.join(", "))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Memory {
                address,
                reasons,
                error_type,
                nearest,
            } => {
                write!(f, "an access to {address:#x} failed: {reasons}")?;
                match error_type {
                    0 => {}
                    1 => f.write_str("; its memory has an error that cannot be corrected")?,
                    2 => f.write_str("; its memory holds data that is known to be wrong")?,
                    3 => f.write_str("; the GPU hangs")?,
                    other => write!(f, "; error of type {other}")?,
                }
                let Some(region) = nearest else {
                    return f.write_str("; no memory was taken");
                };
                let (start, end) = (region.address, region.address + region.bytes);
                if (start..end).contains(address) {
                    write!(f, "; {} bytes into", address - start)?;
                } else if *address >= end {
                    write!(f, "; {} bytes past the end of", address - end)?;
                } else {
                    write!(f, "; {} bytes before", start - address)?;
                }
                write!(
                    f,
                    " {} bytes of {} at {start:#x}",
                    region.bytes, region.kind
                )
            }
            Fault::Hardware {
                reset_type,
                reset_cause,
                memory_lost,
            } => {
                f.write_str(match reset_type {
                    0 => "the GPU was reset",
                    _ => "a queue was reset",
                })?;
                match reset_cause {
                    0 => f.write_str(" because it hung")?,
                    1 => f.write_str(" because its memory has an error")?,
                    other => write!(f, " for cause {other}")?,
                }
                if *memory_lost {
                    f.write_str("; its memory lost its contents")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_memory_is_told() {
        let regions = Regions::default();
        assert_eq!(regions.nearest(0x5000), None);
        let region = |address, bytes| Region {
            address,
            bytes,
            kind: Kind::Vram,
            gpu_id: 1,
        };
        let (low, high) = (region(0x4000, 0x1000), region(0x9000, 0x2000));
        regions.add(low);
        regions.add(high);
        for (address, nearest, text) in [
            (0x0, low, "16384 bytes before"),
            (0x4fff, low, "4095 bytes into"),
            (
                0x6000,
                low,
                "4096 bytes past the end of 4096 bytes of device memory at 0x4000",
            ),
            (0x8000, high, "4096 bytes before"),
            (0x9000, high, "0 bytes into"),
            (u64::MAX, high, "past the end of"),
        ] {
            assert_eq!(regions.nearest(address), Some(nearest), "{address:#x}");
            let data = MemoryExceptionData {
                va: address,
                not_present: 1,
                ..MemoryExceptionData::default()
            };
            let fault = Fault::of_memory(data, regions.nearest(address)).to_string();
            assert!(fault.contains(text), "{fault}");
        }
        regions.remove(0x9000, 1);
        assert_eq!(regions.nearest(u64::MAX), Some(low));
    }
}
