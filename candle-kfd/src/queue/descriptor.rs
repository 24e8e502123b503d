//! A queue's descriptor, which the command processor reads and writes: `amd_queue_v2_t` of ROCr's `amd_hsa_queue.h`.

use crate::generation::{Generation, Shape};
use crate::kfd::Apertures;
use crate::memory::Host;
use crate::scratch::Scratch;
use crate::Result;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets of the fields.
mod field {
    pub const TYPE: usize = 0;
    pub const FEATURES: usize = 4;
    pub const RING: usize = 8;
    pub const PACKETS: usize = 24;
    pub const WRITE_INDEX: usize = 56;
    pub const LDS_APERTURE: usize = 64;
    pub const SCRATCH_APERTURE: usize = 68;
    pub const LAST_CU: usize = 72;
    pub const LAST_WAVE: usize = 76;
    pub const READ_INDEX: usize = 128;
    pub const READ_INDEX_OFFSET: usize = 136;
    pub const RING_OF_SCRATCH: usize = 140;
    pub const SCRATCH_RESOURCE: usize = 144;
    pub const SCRATCH_ADDRESS: usize = 160;
    pub const SCRATCH_BYTES: usize = 168;
    pub const LANE_BYTES_OF_WAVE64: usize = 176;
    pub const PROPERTIES: usize = 180;
    pub const INACTIVE_SIGNAL: usize = 192;
    pub const LAST_USES_OF_SCRATCH: usize = 256;
}

/// Bytes that this crate sets.
const BYTES: usize = field::LAST_USES_OF_SCRATCH + 128 * 16;
/// Where the write index is.
pub(crate) const WRITE_INDEX: usize = field::WRITE_INDEX;
/// Where the read index is.
pub(crate) const READ_INDEX: usize = field::READ_INDEX;

/// A descriptor in a page of its own: the driver wants the indices at the begin of a mapping of one page.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor<'a>(pub Host<'a>);

impl<'a> Descriptor<'a> {
    /// Fills in what does not change.
    pub fn init(
        &self,
        ring: u64,
        packets: u32,
        apertures: &Apertures,
        shape: &Shape,
        inactive: u64,
    ) -> Result<()> {
        /// `HSA_QUEUE_TYPE_MULTI`, `HSA_QUEUE_FEATURE_KERNEL_DISPATCH`.
        const MULTIPLE_PRODUCERS: u32 = 0;
        const RUNS_KERNELS: u32 = 1;
        /// `AMD_QUEUE_PROPERTIES_IS_PTR64` and `_ENABLE_PROFILING`: begin and end of packets go into signals.
        const PROPERTIES: u32 = 1 << 1 | 1 << 3;
        self.0.write(0, &[0; BYTES])?;
        let cus = shape.cus()?;
        let waves_of_cu = shape.waves_per_simd.saturating_mul(shape.simds_per_cu);
        for (at, word) in [
            (field::TYPE, MULTIPLE_PRODUCERS),
            (field::FEATURES, RUNS_KERNELS),
            (field::PACKETS, packets),
            (field::LDS_APERTURE, (apertures.lds.0 >> 32) as u32),
            (field::SCRATCH_APERTURE, (apertures.scratch.0 >> 32) as u32),
            (field::LAST_CU, cus - 1),
            (field::LAST_WAVE, waves_of_cu.saturating_sub(1)),
            (field::READ_INDEX_OFFSET, field::READ_INDEX as u32),
            (field::PROPERTIES, PROPERTIES),
        ] {
            self.word(at, word)?;
        }
        self.long(field::RING, ring)?;
        self.long(field::INACTIVE_SIGNAL, inactive)
    }

    /// Tells of scratch. The queue must be idle.
    pub fn set_scratch(&self, scratch: &Scratch, generation: &Generation) -> Result<()> {
        let (plan, address) = (&scratch.plan, scratch.memory.address());
        for (at, word) in plan.resource(generation, address).into_iter().enumerate() {
            self.word(field::SCRATCH_RESOURCE + at * 4, word)?;
        }
        self.long(field::SCRATCH_ADDRESS, address)?;
        self.long(field::SCRATCH_BYTES, plan.xcc_bytes())?;
        self.word(field::RING_OF_SCRATCH, plan.ring_size(generation))?;
        // What packets are compared with: of a lane if a wave has 64 of them.
        self.word(field::LANE_BYTES_OF_WAVE64, plan.wave_bytes / 64)
    }

    fn word(&self, at: usize, value: u32) -> Result<()> {
        self.0.word(at)?.store(value, Ordering::Release);
        Ok(())
    }

    fn long(&self, at: usize, value: u64) -> Result<()> {
        self.0.long(at)?.store(value, Ordering::Release);
        Ok(())
    }

    /// How many packets were put onto the queue.
    pub fn write_index(&self) -> Result<&'a AtomicU64> {
        self.0.long(field::WRITE_INDEX)
    }

    /// How many of them the command processor has taken.
    pub fn read_index(&self) -> Result<&'a AtomicU64> {
        self.0.long(field::READ_INDEX)
    }
}
