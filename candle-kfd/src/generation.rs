//! What differs from one GPU to the next, in one table.
//!
//! Sources: Linux' `amdkfd/kfd_queue.c` (sizes of what a queue saves, which the kernel compares since 6.11), `libhsakmt`'s
//! `queues.c` (the same for older kernels), ROCr's `amd_aql_queue.cpp` and `registers.h` (scratch), LLVM's AMDGPUUsage.

use crate::{Error, Result};
use code_object::TargetId;
use gpu_topology::Node;

/// Bytes of a memory page: of the GPUs' page tables and of x86-64.
pub const PAGE: usize = 4096;
/// Bytes of a doorbell, of every generation of the table.
pub const DOORBELL_BYTES: usize = 8;
/// Bytes of the buffer in which the end of packets is noted.
pub const EOP_BYTES: usize = 4096;
/// Bytes of all areas to which a queue's waves are saved, above which what the kernel tells is taken for nonsense: the
/// largest GPU of the table needs 190 MB.
const MOST_SAVED: u64 = 4 << 30;
/// Threads of a block at most.
pub const MAX_BLOCK: u32 = 1024;

/// Generations whose registers and descriptors have the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// CDNA 2 to 4.
    Gfx9,
    /// RDNA 2.
    Gfx10,
    /// RDNA 3 and 3.5.
    Gfx11,
    /// RDNA 4.
    Gfx12,
}

/// Versions of the copy engine whose packets differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SdmaVersion {
    /// 4.4.0.
    V4_4,
    /// 4.4.2 and 4.4.5.
    V4_4_2,
    /// 5.2.
    V5_2,
    /// 6.0 and 6.1.
    V6,
    /// 7.0.
    V7,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// Name of the processor, such as `gfx1100`.
    pub arch: &'static str,
    /// Whose registers it has.
    pub family: Family,
    /// Lanes of a wave that scratch is counted in: the widest that the hardware runs.
    pub wave_lanes: u32,
    /// Bytes of a compute unit's vector registers.
    vgpr_bytes: u32,
    /// Bytes of LDS that a block can have.
    pub lds_bytes: u32,
    /// The copy engine's packets.
    pub sdma: SdmaVersion,
}

const fn row(
    arch: &'static str,
    family: Family,
    vgpr_kib: u32,
    lds_kib: u32,
    sdma: SdmaVersion,
) -> Generation {
    Generation {
        arch,
        family,
        wave_lanes: 64,
        vgpr_bytes: vgpr_kib << 10,
        lds_bytes: lds_kib << 10,
        sdma,
    }
}

use Family::{Gfx10, Gfx11, Gfx12, Gfx9};
use SdmaVersion::{V4_4, V4_4_2, V5_2, V6, V7};

/// The GPUs that are known; all others are refused.
pub const GENERATIONS: &[Generation] = &[
    row("gfx90a", Gfx9, 512, 64, V4_4),
    row("gfx942", Gfx9, 512, 64, V4_4_2),
    row("gfx950", Gfx9, 512, 160, V4_4_2),
    row("gfx1030", Gfx10, 256, 64, V5_2),
    row("gfx1031", Gfx10, 256, 64, V5_2),
    row("gfx1032", Gfx10, 256, 64, V5_2),
    row("gfx1033", Gfx10, 256, 64, V5_2),
    row("gfx1034", Gfx10, 256, 64, V5_2),
    row("gfx1035", Gfx10, 256, 64, V5_2),
    row("gfx1036", Gfx10, 256, 64, V5_2),
    row("gfx1100", Gfx11, 384, 64, V6),
    row("gfx1101", Gfx11, 384, 64, V6),
    row("gfx1102", Gfx11, 256, 64, V6),
    row("gfx1103", Gfx11, 256, 64, V6),
    row("gfx1150", Gfx11, 256, 64, V6),
    row("gfx1151", Gfx11, 384, 64, V6),
    row("gfx1152", Gfx11, 256, 64, V6),
    row("gfx1200", Gfx12, 384, 64, V7),
    row("gfx1201", Gfx12, 384, 64, V7),
];

impl Generation {
    /// The row of a processor.
    ///
    /// # Errors
    /// [`Error::UnknownArch`] if there is none.
    pub fn of(arch: &str) -> Result<&'static Generation> {
        GENERATIONS
            .iter()
            .find(|row| row.arch == arch)
            .ok_or_else(|| Error::UnknownArch {
                arch: arch.to_string(),
            })
    }

    /// Where the waves of a queue are saved when it has to make way: what `kfd_queue_ctx_save_restore_size` computes. A
    /// kernel that tells sizes of its own has the last word.
    ///
    /// # Errors
    /// [`Error::Topology`] if the numbers are those of no GPU.
    pub fn save_area(&self, shape: &Shape) -> Result<SaveArea> {
        const SGPR_BYTES: u64 = 16 << 10;
        const HARDWARE_REGISTER_BYTES: u64 = 4 << 10;
        const DEBUGGER_BYTES_PER_WAVE: u64 = 32;
        const DEBUGGER_ALIGNMENT: u64 = 64;
        /// What the hardware can address of RDNA 1 and 2.
        const MOST_CONTROL_STACK_OF_GFX10: u64 = 0x7000;
        let cus = u64::from(shape.cus_per_xcc()?);
        let (waves, stack_bytes_per_wave) = match self.family {
            Family::Gfx9 => {
                let engines = shape
                    .arrays
                    .checked_div(shape.arrays_per_engine)
                    .unwrap_or(0);
                ((cus * 40).min(u64::from(engines) * 512), 8)
            }
            _ => (cus * 32, 12),
        };
        let per_cu = u64::from(self.vgpr_bytes)
            + SGPR_BYTES
            + u64::from(self.lds_bytes)
            + HARDWARE_REGISTER_BYTES;
        let mut control_stack = (SaveArea::HEADER_BYTES as u64 + waves * stack_bytes_per_wave + 8)
            .next_multiple_of(PAGE as u64);
        if self.family == Family::Gfx10 {
            control_stack = control_stack.min(MOST_CONTROL_STACK_OF_GFX10);
        }
        let mut bytes = control_stack + (cus * per_cu).next_multiple_of(PAGE as u64);
        if let Some(told) = shape.told {
            (bytes, control_stack) = (told.bytes.into(), told.control_stack.into());
        }
        if control_stack > bytes || bytes.saturating_mul(shape.xccs.into()) > MOST_SAVED {
            return Err(Error::Topology {
                problem: format!("{} dies with {bytes} bytes each to save waves", shape.xccs),
            });
        }
        let narrow = |bytes: u64| {
            u32::try_from(bytes).map_err(|_| Error::Topology {
                problem: format!("{cus} compute units need {bytes} bytes to save their waves"),
            })
        };
        Ok(SaveArea {
            bytes: narrow(bytes)?,
            control_stack: narrow(control_stack)?,
            debug: narrow((waves * DEBUGGER_BYTES_PER_WAVE).next_multiple_of(DEBUGGER_ALIGNMENT))?,
            xccs: shape.xccs,
        })
    }

    /// What code is compiled for, without features.
    pub fn target(&self) -> TargetId {
        TargetId::parse(self.arch).expect("rows of the table are named by processors")
    }

    /// Bytes that a wave's scratch is a multiple of.
    pub fn scratch_granule(&self) -> u32 {
        match self.family {
            Family::Gfx9 | Family::Gfx10 => 1024,
            Family::Gfx11 | Family::Gfx12 => 256,
        }
    }

    /// Bits of `COMPUTE_TMPRING_SIZE.WAVESIZE`, the number of granules of a wave.
    pub fn scratch_wave_bits(&self) -> u32 {
        match self.family {
            Family::Gfx9 | Family::Gfx10 => 13,
            Family::Gfx11 => 15,
            Family::Gfx12 => 18,
        }
    }
}

/// How many of everything a GPU has, from the `properties` that the kernel shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// SIMDs of all dies: `simd_count`.
    pub simds: u32,
    /// SIMDs of a compute unit: `simd_per_cu`.
    pub simds_per_cu: u32,
    /// Shader arrays: `array_count`.
    pub arrays: u32,
    /// Shader arrays of an engine: `simd_arrays_per_engine`.
    pub arrays_per_engine: u32,
    /// Dies that each run a part of every kernel: `num_xcc`.
    pub xccs: u32,
    /// Waves of a SIMD: `max_waves_per_simd`.
    pub waves_per_simd: u32,
    /// Waves of a compute unit that can have scratch at once: `max_slots_scratch_cu`.
    pub scratch_waves_per_cu: u32,
    /// What the kernel says of a queue's save area, since 6.12 or so.
    pub told: Option<ToldSizes>,
}

/// Sizes of a queue's save area that the kernel names: `cwsr_size` and `ctl_stack_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldSizes {
    /// Of an XCC's part, in bytes.
    pub bytes: u32,
    /// Of the control stack in it, in bytes.
    pub control_stack: u32,
}

impl From<&Node> for Shape {
    fn from(node: &Node) -> Self {
        Shape {
            simds: node.simd_count,
            simds_per_cu: node.simd_per_cu,
            arrays: node.array_count,
            arrays_per_engine: node.arrays_per_engine,
            xccs: node.xcc_count,
            waves_per_simd: node.max_waves_per_simd,
            scratch_waves_per_cu: node.max_scratch_waves_per_cu,
            told: (node.cwsr_bytes > 0 && node.control_stack_bytes > 0).then_some(ToldSizes {
                bytes: node.cwsr_bytes,
                control_stack: node.control_stack_bytes,
            }),
        }
    }
}

impl Shape {
    /// Compute units of all dies.
    ///
    /// # Errors
    /// [`Error::Topology`] if there is none.
    pub fn cus(&self) -> Result<u32> {
        match self.simds.checked_div(self.simds_per_cu) {
            Some(cus @ 1..) if self.xccs > 0 && cus >= self.xccs => Ok(cus),
            _ => Err(Error::Topology {
                problem: format!(
                    "{} SIMDs, {} in a compute unit, {} dies",
                    self.simds, self.simds_per_cu, self.xccs
                ),
            }),
        }
    }

    /// Compute units of a die.
    ///
    /// # Errors
    /// [`Error::Topology`] if there is none.
    pub fn cus_per_xcc(&self) -> Result<u32> {
        Ok(self.cus()? / self.xccs)
    }

    /// Shader engines of all dies, one at least.
    pub fn engines(&self) -> u32 {
        self.arrays
            .checked_div(self.arrays_per_engine)
            .unwrap_or(0)
            .max(1)
    }
}

/// Sizes of the area in which a queue's waves are saved, of one XCC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveArea {
    /// Header, control stack and the waves' state: the request's `ctx_save_restore_size`.
    pub bytes: u32,
    /// Header and control stack: the request's `ctl_stack_size`.
    pub control_stack: u32,
    /// What a debugger uses, behind the areas of all XCCs.
    pub debug: u32,
    /// How many XCCs have one.
    pub xccs: u32,
}

impl SaveArea {
    /// Bytes of the header at the begin of each XCC's part, `HsaUserContextSaveAreaHeader`.
    pub const HEADER_BYTES: usize = 40;

    /// Bytes of memory for all XCCs.
    pub fn total(&self) -> usize {
        ((self.bytes as usize + self.debug as usize) * self.xccs as usize).next_multiple_of(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(simds: u32, simds_per_cu: u32, arrays: u32, per_engine: u32, xccs: u32) -> Shape {
        Shape {
            simds,
            simds_per_cu,
            arrays,
            arrays_per_engine: per_engine,
            xccs,
            waves_per_simd: 16,
            scratch_waves_per_cu: 32,
            told: None,
        }
    }

    /// Numbers of the formulas in `kfd_queue.c`, computed apart from this code.
    #[test]
    fn areas_are_those_of_the_kernel() {
        let rows = [
            // Instinct MI210: 104 compute units, 8 engines.
            (
                "gfx90a",
                shape(416, 4, 8, 1, 1),
                63_508_480,
                36_864,
                131_072,
            ),
            // Instinct MI300X: 304 compute units on 8 dies.
            (
                "gfx942",
                shape(1216, 4, 32, 1, 8),
                23_203_840,
                12_288,
                48_640,
            ),
            // Instinct MI355X, whose LDS is larger.
            (
                "gfx950",
                shape(1024, 4, 32, 1, 8),
                22_687_744,
                12_288,
                40_960,
            ),
            // Radeon RX 6900 XT.
            (
                "gfx1030",
                shape(160, 2, 8, 2, 1),
                27_881_472,
                28_672,
                81_920,
            ),
            // Radeon RX 7900 XTX.
            (
                "gfx1100",
                shape(192, 2, 12, 2, 1),
                46_047_232,
                40_960,
                98_304,
            ),
            // Radeon RX 9070 XT.
            (
                "gfx1201",
                shape(128, 2, 8, 2, 1),
                30_699_520,
                28_672,
                65_536,
            ),
        ];
        for (arch, shape, bytes, control_stack, debug) in rows {
            let area = Generation::of(arch).unwrap().save_area(&shape).unwrap();
            let want = SaveArea {
                bytes,
                control_stack,
                debug,
                xccs: shape.xccs,
            };
            assert_eq!(area, want, "{arch}");
            assert_eq!(area.total() % PAGE, 0, "{arch}");
            assert!(area.total() >= (bytes + debug) as usize * shape.xccs as usize);
        }
    }

    #[test]
    fn the_kernel_has_the_last_word() {
        let mut shape = shape(192, 2, 12, 2, 1);
        let generation = Generation::of("gfx1100").unwrap();
        shape.told = Some(ToldSizes {
            bytes: 50_000_000,
            control_stack: 0x8000,
        });
        let area = generation.save_area(&shape).unwrap();
        assert_eq!((area.bytes, area.control_stack), (50_000_000, 0x8000));
    }

    #[test]
    fn areas_that_no_machine_has_are_refused() {
        let generation = Generation::of("gfx942").unwrap();
        for (bytes, control_stack, xccs) in [
            (u32::MAX, 0x3000, 8),
            (u32::MAX, u32::MAX, u32::MAX),
            // A control stack larger than what it is in.
            (4096, 8192, 1),
        ] {
            let mut shape = shape(u32::MAX, 1, 32, 1, xccs);
            shape.told = Some(ToldSizes {
                bytes,
                control_stack,
            });
            let area = generation.save_area(&shape);
            assert!(matches!(area, Err(Error::Topology { .. })), "{area:?}");
        }
    }

    #[test]
    fn impossible_shapes_and_unknown_processors_are_refused() {
        let generation = Generation::of("gfx942").unwrap();
        for shape in [
            shape(0, 4, 32, 1, 8),
            shape(1216, 0, 32, 1, 8),
            shape(1216, 4, 32, 1, 0),
            shape(8, 4, 32, 1, 8),
            shape(u32::MAX, 1, 32, 1, 1),
        ] {
            assert!(matches!(
                generation.save_area(&shape),
                Err(Error::Topology { .. })
            ));
        }
        // Engines that nobody tells are none to divide by.
        assert!(generation.save_area(&shape(1216, 4, 32, 0, 8)).is_ok());
        for arch in [
            "gfx906",
            "gfx908",
            "gfx1010",
            "gfx1250",
            "gfx11-generic",
            "",
        ] {
            assert_eq!(
                Generation::of(arch),
                Err(Error::UnknownArch {
                    arch: arch.to_string()
                })
            );
        }
    }
}
