//! The processors that code objects are for.

use serde::Serialize;

/// What a SIMD has: from the ISA documents and LLVM's `AMDGPUBaseInfo`, whose occupancy this agrees with (clang's
/// `-Rpass-analysis=kernel-resource-usage` prints it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Simd {
    /// Waves at once.
    pub waves: u32,
    /// Lanes of the waves that registers are counted for; others take in proportion.
    pub wave: u32,
    /// Vector registers of a lane, of all waves together.
    pub registers: u32,
    /// A wave gets a multiple of so many.
    pub granule: u32,
    /// Whether scalar registers are shared by the waves, too: 800 of them.
    pub shares_scalars: bool,
    /// SIMDs of a compute unit, which share its LDS.
    pub simds: u32,
    /// LDS of a compute unit, in bytes.
    pub lds: u32,
}

/// Vega and CDNA 1.
const GFX9: Simd = Simd {
    waves: 10,
    wave: 64,
    registers: 256,
    granule: 4,
    shares_scalars: true,
    simds: 4,
    lds: 64 << 10,
};
/// CDNA 2 and 3, whose accumulation registers are of the same file.
const GFX90A: Simd = Simd {
    waves: 8,
    registers: 512,
    granule: 8,
    ..GFX9
};
/// CDNA 4.
const GFX950: Simd = Simd {
    lds: 160 << 10,
    ..GFX90A
};
const RDNA1: Simd = Simd {
    waves: 20,
    wave: 32,
    registers: 1024,
    granule: 8,
    shares_scalars: false,
    simds: 2,
    lds: 64 << 10,
};
/// RDNA 2, and the small ones of RDNA 3.
const RDNA2: Simd = Simd {
    waves: 16,
    granule: 16,
    ..RDNA1
};
/// The large ones of RDNA 3, and RDNA 4: half as many registers again.
const RDNA3: Simd = Simd {
    registers: 1536,
    granule: 24,
    ..RDNA2
};

/// A processor that a code object may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// `EF_AMDGPU_MACH` of the ELF header's flags.
    pub(crate) machine: u8,
    /// Its name, such as `gfx942` or `gfx11-generic`.
    pub name: &'static str,
    /// The generic processor whose code it runs, too.
    pub generic: Option<&'static str>,
    pub(crate) simd: Simd,
}

const fn row(machine: u8, name: &'static str, generic: &'static str, simd: Simd) -> Processor {
    Processor {
        machine,
        name,
        generic: if generic.is_empty() {
            None
        } else {
            Some(generic)
        },
        simd,
    }
}

/// Processors of code objects, numbered as LLVM does.
pub const PROCESSORS: &[Processor] = &[
    row(0x2c, "gfx900", "gfx9-generic", GFX9),
    row(0x2d, "gfx902", "gfx9-generic", GFX9),
    row(0x2e, "gfx904", "gfx9-generic", GFX9),
    row(0x2f, "gfx906", "gfx9-generic", GFX9),
    row(0x30, "gfx908", "", GFX9),
    row(0x31, "gfx909", "gfx9-generic", GFX9),
    row(0x32, "gfx90c", "gfx9-generic", GFX9),
    row(0x33, "gfx1010", "gfx10-1-generic", RDNA1),
    row(0x34, "gfx1011", "gfx10-1-generic", RDNA1),
    row(0x35, "gfx1012", "gfx10-1-generic", RDNA1),
    row(0x36, "gfx1030", "gfx10-3-generic", RDNA2),
    row(0x37, "gfx1031", "gfx10-3-generic", RDNA2),
    row(0x38, "gfx1032", "gfx10-3-generic", RDNA2),
    row(0x39, "gfx1033", "gfx10-3-generic", RDNA2),
    row(0x3d, "gfx1035", "gfx10-3-generic", RDNA2),
    row(0x3e, "gfx1034", "gfx10-3-generic", RDNA2),
    row(0x3f, "gfx90a", "", GFX90A),
    row(0x41, "gfx1100", "gfx11-generic", RDNA3),
    row(0x42, "gfx1013", "gfx10-1-generic", RDNA1),
    row(0x43, "gfx1150", "gfx11-generic", RDNA2),
    row(0x44, "gfx1103", "gfx11-generic", RDNA2),
    row(0x45, "gfx1036", "gfx10-3-generic", RDNA2),
    row(0x46, "gfx1101", "gfx11-generic", RDNA3),
    row(0x47, "gfx1102", "gfx11-generic", RDNA2),
    row(0x48, "gfx1200", "gfx12-generic", RDNA3),
    row(0x4a, "gfx1151", "gfx11-generic", RDNA3),
    row(0x4c, "gfx942", "gfx9-4-generic", GFX90A),
    row(0x4e, "gfx1201", "gfx12-generic", RDNA3),
    row(0x4f, "gfx950", "gfx9-4-generic", GFX950),
    row(0x51, "gfx9-generic", "", GFX9),
    row(0x52, "gfx10-1-generic", "", RDNA1),
    row(0x53, "gfx10-3-generic", "", RDNA2),
    row(0x54, "gfx11-generic", "", RDNA2),
    row(0x55, "gfx1152", "gfx11-generic", RDNA2),
    row(0x58, "gfx1153", "gfx11-generic", RDNA2),
    row(0x59, "gfx12-generic", "", RDNA3),
    row(0x5f, "gfx9-4-generic", "", GFX90A),
];

impl Processor {
    /// The processor of this name, without settings of features.
    pub fn named(name: &str) -> Option<&'static Processor> {
        PROCESSORS.iter().find(|processor| processor.name == name)
    }

    pub(crate) fn numbered(machine: u8) -> Option<&'static Processor> {
        PROCESSORS
            .iter()
            .find(|processor| processor.machine == machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_agree_with_each_other() {
        for (at, row) in PROCESSORS.iter().enumerate() {
            let others = &PROCESSORS[at + 1..];
            assert!(others
                .iter()
                .all(|other| other.name != row.name && other.machine != row.machine));
            if let Some(generic) = row.generic {
                let generic = Processor::named(generic).expect(generic);
                assert!(generic.generic.is_none());
                assert!(generic.simd.registers <= row.simd.registers, "{}", row.name);
            }
        }
    }

    #[test]
    fn processors_have_the_generic_one_of_their_instructions() {
        for (name, generic) in [
            ("gfx906", Some("gfx9-generic")),
            ("gfx908", None),
            ("gfx90a", None),
            ("gfx942", Some("gfx9-4-generic")),
            ("gfx950", Some("gfx9-4-generic")),
            ("gfx1012", Some("gfx10-1-generic")),
            ("gfx1036", Some("gfx10-3-generic")),
            ("gfx1103", Some("gfx11-generic")),
            ("gfx1153", Some("gfx11-generic")),
            ("gfx1200", Some("gfx12-generic")),
            ("gfx11-generic", None),
        ] {
            let processor = Processor::named(name).expect(name);
            assert_eq!(processor.generic, generic, "{name}");
        }
        assert!(Processor::named("gfx11").is_none());
    }
}
