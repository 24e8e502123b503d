//! What a device is and has.

use crate::sys::hip::DeviceProp;
use crate::{Arch, Generation};

/// Properties of one device. Every device of a machine has its own; nothing is assumed from the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Marketing name, for example `AMD Radeon RX 7900 XTX`.
    pub name: String,
    /// Processor without features, for example `gfx942`.
    pub arch: Arch,
    /// Processor with its feature settings, for example `gfx942:sramecc+:xnack-`.
    pub full_arch: String,
    /// Threads of a wave: 64 on CDNA and GCN, 32 on RDNA.
    pub wave_size: u32,
    /// Compute units as HIP counts them: on RDNA, work-group processors of two.
    pub compute_units: u32,
    /// Shared memory (LDS) that one block can have, in bytes.
    pub shared_bytes_per_block: u32,
    /// Threads that one block can have.
    pub max_threads_per_block: u32,
    /// Device memory, in bytes.
    pub total_memory: usize,
    /// L2 cache, in bytes.
    pub l2_bytes: u32,
    /// PCI address, for example `0000:03:00.0`.
    pub pci_id: String,
    /// Peak core clock, in kHz.
    pub clock_khz: u32,
    /// Peak memory clock, in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, in bits.
    pub memory_bus_bits: u32,
    /// Whether the GPU shares the host's memory.
    pub integrated: bool,
}

/// Threads that a compute unit needs to hide the latency of memory: half of what it can have at least.
const BUSY_THREADS_PER_UNIT: usize = 1024;

impl DeviceProperties {
    /// Compute units, as kernels count them: where HIP counts work-group processors, each is two.
    ///
    /// clr gives the number of work-group processors for all of RDNA (`rocdevice.cpp`, `maxComputeUnits_` halved in WGP
    /// mode), which have the waves of two units.
    pub(crate) fn units(&self) -> usize {
        let counted = self.compute_units.max(1) as usize;
        match self.arch.generation() {
            Generation::Rdna1
            | Generation::Rdna2
            | Generation::Rdna3
            | Generation::Rdna35
            | Generation::Rdna4 => 2 * counted,
            _ => counted,
        }
    }

    /// Threads that keep every compute unit busy.
    ///
    /// What depends on it may differ between GPUs in speed only: the order in which floats are added is chosen by
    /// constants wherever the product promises one.
    pub(crate) fn busy_threads(&self) -> usize {
        self.units() * BUSY_THREADS_PER_UNIT
    }

    /// Whether so many threads keep the GPU busy. An eighth fewer are as good: not all units finish at the same time.
    pub(crate) fn fills(&self, threads: usize) -> bool {
        threads >= self.busy_threads() / 8 * 7
    }

    pub(crate) fn from_raw(raw: &DeviceProp) -> Self {
        let unsigned = |offset| u32::try_from(raw.int(offset)).unwrap_or(0);
        let full_arch = raw.string(DeviceProp::GCN_ARCH_NAME);
        let shared = raw.size(DeviceProp::SHARED_MEM_PER_BLOCK);
        DeviceProperties {
            name: raw.string(DeviceProp::NAME),
            arch: Arch::of_device(&full_arch),
            full_arch,
            wave_size: unsigned(DeviceProp::WARP_SIZE),
            compute_units: unsigned(DeviceProp::MULTI_PROCESSOR_COUNT),
            shared_bytes_per_block: u32::try_from(shared).unwrap_or(u32::MAX),
            max_threads_per_block: unsigned(DeviceProp::MAX_THREADS_PER_BLOCK),
            total_memory: raw.size(DeviceProp::TOTAL_GLOBAL_MEM),
            l2_bytes: unsigned(DeviceProp::L2_CACHE_SIZE),
            pci_id: format!(
                "{:04x}:{:02x}:{:02x}.0",
                raw.int(DeviceProp::PCI_DOMAIN_ID),
                raw.int(DeviceProp::PCI_BUS_ID),
                raw.int(DeviceProp::PCI_DEVICE_ID)
            ),
            clock_khz: unsigned(DeviceProp::CLOCK_RATE),
            memory_clock_khz: unsigned(DeviceProp::MEMORY_CLOCK_RATE),
            memory_bus_bits: unsigned(DeviceProp::MEMORY_BUS_WIDTH),
            integrated: raw.int(DeviceProp::INTEGRATED) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_with_132_units_still_holds_there() {
        let mut properties = DeviceProperties::from_raw(&DeviceProp::zeroed());
        properties.compute_units = 132;
        assert!(properties.fills(1 << 17) && !properties.fills(1 << 16));
        assert!((1 << 17..1 << 18).contains(&properties.busy_threads()));
        // Nothing divides by the units of a GPU that does not tell them.
        properties.compute_units = 0;
        assert!(properties.busy_threads() > 0);
    }

    #[test]
    fn a_work_group_processor_is_two_units() {
        let mut properties = DeviceProperties::from_raw(&DeviceProp::zeroed());
        properties.compute_units = 48;
        for (arch, units) in [
            ("gfx1100", 96),
            ("gfx1201", 96),
            ("gfx942", 48),
            ("sm_90", 48),
        ] {
            properties.arch = Arch::of_device(arch);
            assert_eq!(properties.units(), units, "{arch}");
        }
    }
}
