//! The GPUs that there are mocks of: what the driver says of each.
//!
//! Counts are those that the driver reports for a card of the kind (sizes of what it saves are computed from them as
//! `kfd_queue_ctx_save_restore_size` in Linux' `kfd_queue.c` does, independently of this crate's own table).

/// What a GPU is like. Fields carry the names of `properties` in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub arch: String,
    pub gfx_target_version: u32,
    pub name: &'static str,
    pub device_id: u32,
    pub simd_count: u32,
    pub simd_per_cu: u32,
    pub array_count: u32,
    pub simd_arrays_per_engine: u32,
    pub cu_per_simd_array: u32,
    pub num_xcc: u32,
    pub lds_size_in_kb: u32,
    pub max_waves_per_simd: u32,
    pub wave_front_size: u32,
    pub num_sdma_engines: u32,
    pub num_sdma_xgmi_engines: u32,
    pub num_sdma_queues_per_engine: u32,
    pub num_cp_queues: u32,
    pub max_engine_clk_fcompute: u32,
    pub vram_gib: u32,
    pub width: u32,
}

/// What differs from one kind to the next: name, PCI device, SIMDs, arrays, arrays of an engine, compute units of an
/// array, dies, engines for copies (those to other GPUs second), GiB of memory, width of its bus.
type Row = (
    &'static str,
    &'static str,
    u32,
    [u32; 4],
    u32,
    [u32; 2],
    u32,
    u32,
);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("gfx90a",  "AMD Instinct MI210",        0x740f, [416, 8, 1, 14],   1, [2, 3],  64,  4096),
    ("gfx942",  "AMD Instinct MI300X",       0x74a1, [1216, 32, 1, 10], 8, [2, 14], 192, 8192),
    ("gfx950",  "AMD Instinct MI350X",       0x75a0, [1024, 32, 1, 9],  8, [2, 14], 288, 8192),
    ("gfx1030", "AMD Radeon RX 6800 XT",     0x73bf, [144, 8, 2, 10],   1, [4, 0],  16,  256),
    ("gfx1031", "AMD Radeon RX 6700 XT",     0x73df, [80, 4, 2, 10],    1, [2, 0],  12,  192),
    ("gfx1032", "AMD Radeon RX 6600",        0x73ff, [56, 4, 2, 8],     1, [2, 0],  8,   128),
    ("gfx1100", "AMD Radeon RX 7900 XTX",    0x744c, [192, 12, 2, 8],   1, [2, 0],  24,  384),
    ("gfx1101", "AMD Radeon RX 7800 XT",     0x747e, [120, 6, 2, 10],   1, [2, 0],  16,  256),
    ("gfx1102", "AMD Radeon RX 7600",        0x7480, [64, 4, 2, 8],     1, [2, 0],  8,   128),
    ("gfx1103", "AMD Radeon 780M",           0x15bf, [24, 2, 2, 6],     1, [1, 0],  4,   128),
    ("gfx1150", "AMD Radeon 890M",           0x150e, [32, 2, 2, 8],     1, [1, 0],  4,   128),
    ("gfx1151", "AMD Radeon 8060S",          0x1586, [80, 4, 2, 10],    1, [1, 0],  64,  256),
    ("gfx1200", "AMD Radeon RX 9060 XT",     0x7590, [64, 4, 2, 8],     1, [2, 0],  16,  128),
    ("gfx1201", "AMD Radeon RX 9070 XT",     0x7550, [128, 8, 2, 8],    1, [2, 0],  16,  256),
];

impl Model {
    /// Of a name such as `gfx1100`. Names without a row have the counts of `gfx1100`, so that there are GPUs that this
    /// crate does not know; those that are no names of AMD's are none.
    pub fn of(arch: &str) -> Option<Self> {
        let digits = arch
            .strip_prefix("gfx")
            .filter(|digits| digits.is_ascii())?;
        let (major, rest) = digits.split_at_checked(digits.len().checked_sub(2)?)?;
        let major: u32 = major.parse().ok()?;
        let minor = u32::from_str_radix(&rest[..1], 16).ok()?;
        let step = u32::from_str_radix(&rest[1..], 16).ok()?;
        let row = ROWS.iter().find(|row| row.0 == arch);
        let row = row.or_else(|| ROWS.iter().find(|row| row.0 == "gfx1100"))?;
        let &(
            _,
            name,
            device_id,
            [simds, arrays, per_engine, units],
            dies,
            [copies, peers],
            gib,
            width,
        ) = row;
        let cdna = major == 9;
        Some(Model {
            arch: arch.to_string(),
            gfx_target_version: major * 10_000 + minor * 100 + step,
            name,
            device_id,
            simd_count: simds,
            simd_per_cu: if cdna { 4 } else { 2 },
            array_count: arrays,
            simd_arrays_per_engine: per_engine,
            cu_per_simd_array: units,
            num_xcc: dies,
            lds_size_in_kb: if arch == "gfx950" { 160 } else { 64 },
            max_waves_per_simd: if cdna { 8 } else { 16 },
            wave_front_size: if cdna { 64 } else { 32 },
            num_sdma_engines: copies,
            num_sdma_xgmi_engines: peers,
            num_sdma_queues_per_engine: if cdna { 8 } else { 6 },
            num_cp_queues: if dies > 1 { 192 } else { 24 },
            max_engine_clk_fcompute: if cdna { 2100 } else { 2500 },
            vram_gib: gib,
            width,
        })
    }

    /// Sizes of what a queue hands to the driver. The first kernels that compared them (`first`) counted too few vector
    /// registers for gfx1151.
    pub fn areas(&self, first: bool) -> Areas {
        const PAGE: u32 = super::pages::PAGE as u32;
        let version = self.gfx_target_version;
        let units = self.simd_count / self.simd_per_cu / self.num_xcc;
        let waves = if version < 100_100 {
            (units * 40).min(self.array_count / self.simd_arrays_per_engine * 512)
        } else {
            units * 32
        };
        let vector_registers = match version {
            90_402 | 90_010 | 90_008 | 90_500 => 0x80000,
            110_501 if first => 0x40000,
            110_000 | 110_001 | 110_501 | 120_000 | 120_001 => 0x60000,
            _ => 0x40000,
        };
        let lds = if version == 90_500 {
            self.lds_size_in_kb << 10
        } else {
            0x10000
        };
        let waves_data = units * (vector_registers + 0x4000 + lds + 0x1000);
        let of_a_wave = if version >= 100_100 { 12 } else { 8 };
        let mut control = (40 + waves * of_a_wave + 8).next_multiple_of(PAGE);
        if version / 10_000 == 10 {
            control = control.min(0x7000);
        }
        Areas {
            control_stack: control,
            save: control + waves_data.next_multiple_of(PAGE),
            debugger: (waves * 32).next_multiple_of(64),
            end_of_pipe: 4096,
        }
    }
}

/// Sizes in bytes, each of one die, as `kfd_queue.c` compares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Areas {
    pub control_stack: u32,
    pub save: u32,
    pub debugger: u32,
    pub end_of_pipe: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_versions() {
        let version = |arch: &str| Model::of(arch).map(|model| model.gfx_target_version);
        assert_eq!(version("gfx90a"), Some(90_010));
        assert_eq!(version("gfx942"), Some(90_402));
        assert_eq!(version("gfx1151"), Some(110_501));
        assert_eq!(version("gfx1399"), Some(130_909));
        for wrong in ["", "gfx", "gfx1", "gfx90", "gfx1é", "gfx11zz", "sm_80"] {
            assert_eq!(version(wrong), None, "{wrong}");
        }
    }

    /// Sizes that libhsakmt computes for these cards, too (`queues.c`).
    #[test]
    fn areas_are_those_of_the_driver() {
        let areas = |arch| Model::of(arch).unwrap().areas(false);
        // 48 work group processors of two compute units: 96 of 32 waves.
        assert_eq!(
            areas("gfx1100"),
            Areas {
                control_stack: 40_960,
                save: 40_960 + 96 * (0x60000 + 0x15000),
                debugger: 98_304,
                end_of_pipe: 4096
            }
        );
        // 38 compute units of a die, 40 waves each.
        assert_eq!(
            areas("gfx942"),
            Areas {
                control_stack: 12_288,
                save: 12_288 + 38 * (0x80000 + 0x15000),
                debugger: 1520 * 32,
                end_of_pipe: 4096
            }
        );
        assert_eq!(areas("gfx1030").control_stack, 0x7000);
    }
}
