//! How many waves of a kernel a SIMD holds at once.

use crate::processor::Simd;
use crate::Kernel;

/// Waves by registers and static LDS, with blocks as large as the kernel allows; 0 if it cannot run.
pub(crate) fn waves(kernel: &Kernel, simd: &Simd) -> u32 {
    let wave = kernel.wave_size.max(1);
    // A wave of 64 takes twice the registers of a wave of 32.
    let (registers, granule) = if wave > simd.wave {
        (simd.registers / 2, (simd.granule / 2).max(1))
    } else {
        (simd.registers, simd.granule)
    };
    let by_vectors = match kernel.vgprs.max(1).checked_next_multiple_of(granule) {
        Some(taken) => registers / taken,
        None => 0,
    };
    let by_scalars = match kernel.sgprs {
        _ if !simd.shares_scalars => simd.waves,
        // LLVM's steps: 800 registers in granules of 16, less those that traps need.
        ..=80 => 10,
        81..=88 => 9,
        89..=100 => 8,
        _ => 7,
    };
    let by_lds = match kernel.lds_bytes {
        0 => simd.waves,
        lds => {
            let blocks = simd.lds / lds;
            blocks.saturating_mul(kernel.max_block.div_ceil(wave)) / simd.simds
        }
    };
    simd.waves.min(by_vectors).min(by_scalars).min(by_lds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Processor;

    /// Waves of a kernel with these resources.
    fn with(processor: &str, wave_size: u32, vgprs: u32, sgprs: u32, lds_bytes: u32) -> u32 {
        let kernel = Kernel {
            name: String::new(),
            symbol: String::new(),
            arguments: Vec::new(),
            hidden_arguments: Vec::new(),
            argument_bytes: 0,
            vgprs,
            agprs: 0,
            sgprs,
            vgpr_spills: 0,
            sgpr_spills: 0,
            lds_bytes,
            scratch_bytes: 0,
            dynamic_stack: false,
            wave_size,
            max_block: 256,
            required_block: None,
            waves_per_simd: None,
            descriptor: None,
        };
        waves(&kernel, &Processor::named(processor).unwrap().simd)
    }

    /// What clang 22 prints for kernels with so many registers.
    #[test]
    fn registers_bound_waves_as_clang_says() {
        const VGPRS: [u32; 8] = [40, 72, 84, 97, 120, 168, 200, 256];
        let rows: [(&[&str], u32, [u32; 8]); 6] = [
            (
                &["gfx906", "gfx908", "gfx9-generic"],
                64,
                [6, 3, 3, 2, 2, 1, 1, 1],
            ),
            (
                &["gfx90a", "gfx942", "gfx950", "gfx9-4-generic"],
                64,
                [8, 7, 5, 4, 4, 3, 2, 2],
            ),
            (
                &["gfx1010", "gfx10-1-generic"],
                32,
                [20, 14, 11, 9, 8, 6, 5, 4],
            ),
            (
                &["gfx1030", "gfx10-3-generic"],
                32,
                [16, 12, 10, 9, 8, 5, 4, 4],
            ),
            (
                &["gfx1102", "gfx1103", "gfx1150", "gfx1152", "gfx11-generic"],
                32,
                [16, 12, 10, 9, 8, 5, 4, 4],
            ),
            (
                &[
                    "gfx1100",
                    "gfx1101",
                    "gfx1151",
                    "gfx1200",
                    "gfx1201",
                    "gfx12-generic",
                ],
                32,
                [16, 16, 16, 12, 12, 9, 7, 5],
            ),
        ];
        for (processors, wave, want) in rows {
            for processor in processors {
                assert_eq!(
                    VGPRS.map(|vgprs| with(processor, wave, vgprs, 6, 0)),
                    want,
                    "{processor}"
                );
            }
        }
        assert_eq!(
            [
                with("gfx942", 64, 30, 106, 0),
                with("gfx942", 64, 30, 96, 0)
            ],
            [7, 8]
        );
        assert_eq!(with("gfx1100", 32, 30, 106, 0), 16);
        // A wave of 64 has half of the registers.
        assert_eq!(with("gfx1100", 64, 96, 6, 0), 8);
    }

    #[test]
    fn lds_bounds_waves_and_nothing_overflows() {
        // Blocks of 8 waves of 32, two in a compute unit of two SIMDs.
        assert_eq!(with("gfx1100", 32, 10, 6, 32 << 10), 8);
        // Blocks of 4 waves of 64, one in a compute unit of four SIMDs.
        assert_eq!(with("gfx942", 64, 10, 6, 40 << 10), 1);
        assert_eq!(with("gfx950", 64, 10, 6, 40 << 10), 4);
        assert_eq!(with("gfx942", 64, u32::MAX, u32::MAX, u32::MAX), 0);
        assert_eq!(with("gfx942", 0, 0, 0, 1), 8);
    }
}
