//! Scratch: memory of each lane's own, for what does not fit into registers.
//!
//! Every wave that runs has a slot. A queue's descriptor says where the slots are, how large and how many; as ROCr's
//! `amd_aql_queue.cpp` (`InitScratchSRD`) and `amd_gpu_agent.cpp` (`AcquireQueueMainScratch`) fill it in. Slots are sized
//! for waves of 64 lanes, which those of 32 fit into.

use crate::generation::{Family, Generation, Shape};
use crate::gpu::Gpu;
use crate::memory::{Kind, Memory};
use crate::{Error, Result};
use std::sync::Arc;

/// Bytes of scratch of a die at most: what flat instructions reach.
const MOST_OF_XCC: u64 = 1 << 32;
/// Bits of `COMPUTE_TMPRING_SIZE.WAVES`.
const MOST_WAVES: u32 = (1 << 12) - 1;

/// How scratch is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Bytes of a lane.
    pub lane_bytes: u32,
    /// Bytes of a wave's slot.
    pub wave_bytes: u32,
    /// Slots of a die, a multiple of its engines.
    pub waves: u32,
    /// Dies.
    pub xccs: u32,
    /// Shader engines of a die.
    pub engines: u32,
}

impl Plan {
    /// For kernels with so many bytes in a lane, with slots for all waves that the GPU can run with scratch.
    pub fn new(generation: &Generation, shape: &Shape, lane_bytes: u32) -> Result<Plan> {
        let granule = generation.scratch_granule();
        let lanes = generation.wave_lanes;
        let wave_bytes = u64::from(lane_bytes) * u64::from(lanes);
        let granules = wave_bytes.div_ceil(u64::from(granule));
        if granules >= 1 << generation.scratch_wave_bits() {
            return Err(Error::Scratch {
                lane_bytes,
                most: (((1_u64 << generation.scratch_wave_bits()) - 1) * u64::from(granule)
                    / u64::from(lanes)) as u32,
            });
        }
        let wave_bytes = granules as u32 * granule;
        let engines = (shape.engines() / shape.xccs.max(1)).max(1);
        let slots = u64::from(shape.cus_per_xcc()?).next_multiple_of(u64::from(engines))
            * u64::from(shape.scratch_waves_per_cu.max(1));
        let per_engine = match generation.family {
            // The register has waves of one engine.
            Family::Gfx11 | Family::Gfx12 => MOST_WAVES,
            Family::Gfx9 | Family::Gfx10 => MOST_WAVES / engines,
        };
        let within = MOST_OF_XCC / u64::from(wave_bytes.max(1)) / u64::from(engines);
        let per_engine = (slots / u64::from(engines))
            .min(u64::from(per_engine))
            .min(within);
        Ok(Plan {
            lane_bytes: wave_bytes / lanes,
            wave_bytes,
            waves: per_engine as u32 * engines,
            xccs: shape.xccs.max(1),
            engines,
        })
    }

    /// Half of the slots, if a block still finds its own; less occupancy is better than none.
    pub fn halved(self) -> Option<Plan> {
        let per_engine = self.waves / self.engines / 2;
        // A block of 1024 threads has 16 waves of 64 lanes or 32 of 32, all of one engine.
        (per_engine >= 32).then_some(Plan {
            waves: per_engine * self.engines,
            ..self
        })
    }

    /// Bytes of a die's slots.
    pub fn xcc_bytes(&self) -> u64 {
        u64::from(self.wave_bytes) * u64::from(self.waves)
    }

    /// Bytes of memory for all of it.
    pub fn bytes(&self) -> u64 {
        self.xcc_bytes() * u64::from(self.xccs)
    }

    /// `COMPUTE_TMPRING_SIZE`: slots in the lower 12 bits, of an engine from gfx11 on, and their size in granules.
    pub fn ring_size(&self, generation: &Generation) -> u32 {
        let waves = match generation.family {
            Family::Gfx9 | Family::Gfx10 => self.waves,
            Family::Gfx11 | Family::Gfx12 => self.waves / self.engines,
        };
        waves | (self.wave_bytes / generation.scratch_granule()) << 12
    }

    /// The descriptor of a buffer that swizzles by lane (`SQ_BUF_RSRC_WORD0` to `3`).
    pub fn resource(&self, generation: &Generation, address: u64) -> [u32; 4] {
        /// X, Y, Z, W.
        const SELECT: u32 = 4 | 5 << 3 | 6 << 6 | 7 << 9;
        const ADD_LANE: u32 = 1 << 23;
        /// No bounds, as addresses are swizzled.
        const UNBOUNDED: u32 = 2 << 28;
        /// `BUF_FORMAT_32_UINT`.
        const FORMAT_UINT: u32 = 0x14 << 12;
        let (swizzle, last) = match generation.family {
            Family::Gfx9 => {
                const NUMBER_UINT: u32 = 4 << 12;
                const DATA_32: u32 = 4 << 15;
                const ELEMENT_4_BYTES: u32 = 1 << 19;
                const STRIDE_64: u32 = 3 << 21;
                (1 << 31, NUMBER_UINT | DATA_32 | ELEMENT_4_BYTES | STRIDE_64)
            }
            Family::Gfx10 => {
                const RESOURCE_LEVEL: u32 = 1 << 24;
                (1 << 31, FORMAT_UINT | RESOURCE_LEVEL | UNBOUNDED)
            }
            Family::Gfx11 | Family::Gfx12 => (1 << 30, FORMAT_UINT | UNBOUNDED),
        };
        [
            address as u32,
            (address >> 32) as u32 & 0xffff | swizzle,
            u32::try_from(self.xcc_bytes()).unwrap_or(u32::MAX),
            SELECT | ADD_LANE | last,
        ]
    }
}

/// A queue's scratch.
#[derive(Debug)]
pub(crate) struct Scratch {
    pub plan: Plan,
    pub memory: Memory,
}

impl Scratch {
    /// As it is planned; with fewer slots if memory is short.
    pub fn new(gpu: &Arc<Gpu>, mut plan: Plan) -> Result<Scratch> {
        loop {
            let bytes = usize::try_from(plan.bytes()).unwrap_or(usize::MAX);
            match gpu.allocate(bytes, Kind::Vram) {
                Ok(memory) => return Ok(Scratch { plan, memory }),
                Err(error @ Error::OutOfMemory { .. }) => {
                    plan = plan.halved().ok_or(error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(simds: u32, per_cu: u32, arrays: u32, per_engine: u32, xccs: u32) -> Shape {
        Shape {
            simds,
            simds_per_cu: per_cu,
            arrays,
            arrays_per_engine: per_engine,
            xccs,
            waves_per_simd: 16,
            scratch_waves_per_cu: 32,
            told: None,
        }
    }

    fn plan(arch: &str, shape: &Shape, lane_bytes: u32) -> Result<Plan> {
        Plan::new(Generation::of(arch).unwrap(), shape, lane_bytes)
    }

    /// Instinct MI300X: 38 compute units on each of 8 dies, with 4 engines each.
    #[test]
    fn every_die_of_mi300_has_its_part() {
        let generation = Generation::of("gfx942").unwrap();
        let plan = plan("gfx942", &shape(1216, 4, 32, 1, 8), 100).unwrap();
        // 6400 bytes of a wave are 7 granules of 1024; 38 units are 40 with those that are switched off.
        assert_eq!((plan.wave_bytes, plan.lane_bytes), (7168, 112));
        assert_eq!((plan.waves, plan.engines), (40 * 32, 4));
        assert_eq!(plan.bytes(), 8 * 1280 * 7168);
        assert_eq!(plan.ring_size(generation), 1280 | 7 << 12);
        assert_eq!(
            plan.resource(generation, 0x7f12_3456_7000),
            [0x3456_7000, 0x8000_7f12, 1280 * 7168, 0x00ea_4fac]
        );
    }

    /// Radeon RX 7900 XTX: 96 compute units, 6 engines of 2 arrays.
    #[test]
    fn gfx11_counts_waves_of_an_engine() {
        let generation = Generation::of("gfx1100").unwrap();
        let plan = plan("gfx1100", &shape(192, 2, 12, 2, 1), 100).unwrap();
        // 6400 bytes are 25 granules of 256.
        assert_eq!((plan.wave_bytes, plan.waves), (6400, 96 * 32));
        assert_eq!(plan.ring_size(generation), (96 * 32 / 6) | 25 << 12);
        let resource = plan.resource(generation, 0x7f12_3456_7000);
        assert_eq!(resource[1..], [0x4000_7f12, 3072 * 6400, 0x2081_4fac]);
        let navi21 = super::Plan::new(
            Generation::of("gfx1030").unwrap(),
            &shape(160, 2, 8, 2, 1),
            16,
        );
        let navi21 = navi21.unwrap();
        assert_eq!(
            navi21.ring_size(Generation::of("gfx1030").unwrap()),
            2560 | 1 << 12
        );
        assert_eq!(
            navi21.resource(Generation::of("gfx1030").unwrap(), 0)[3],
            0x2181_4fac
        );
    }

    #[test]
    fn limits_are_kept() {
        // 13 bits of 1024 bytes for 64 lanes.
        let mi300 = shape(1216, 4, 32, 1, 8);
        assert!(plan("gfx942", &mi300, 131_056).is_ok());
        assert_eq!(
            plan("gfx942", &mi300, 131_072),
            Err(Error::Scratch {
                lane_bytes: 131_072,
                most: 131_056
            })
        );
        // What would be more than 4 GiB of a die has fewer slots.
        let large = plan("gfx942", &mi300, 131_056).unwrap();
        assert!(large.xcc_bytes() <= 1 << 32 && large.waves.is_multiple_of(4) && large.waves > 500);
        assert_eq!(
            plan("gfx90a", &shape(416, 4, 8, 1, 1), 64).unwrap().waves,
            3328
        );
        // Halved until a block would not find its slots.
        let mut plan = plan("gfx942", &mi300, 100).unwrap();
        let mut steps = 0;
        while let Some(half) = plan.halved() {
            assert_eq!(half.waves * 2, plan.waves);
            plan = half;
            steps += 1;
        }
        assert_eq!((steps, plan.waves), (3, 160));
    }
}
