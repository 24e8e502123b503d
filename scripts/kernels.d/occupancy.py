"""How many waves of a kernel fit on a SIMD at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a compute unit has, from the ISA documents and LLVM's target description."""

    wave: int
    waves: int
    simds: int
    registers: int
    granule: int
    lds: int


CDNA = Limits(wave=64, waves=8, simds=4, registers=512, granule=8, lds=64 << 10)
RDNA = Limits(wave=32, waves=16, simds=2, registers=1536, granule=24, lds=64 << 10)
LIMITS = {
    "gfx90a": CDNA,
    "gfx942": CDNA,
    "gfx950": Limits(wave=64, waves=8, simds=4, registers=512, granule=8, lds=160 << 10),
    "gfx1030": Limits(wave=32, waves=16, simds=2, registers=1024, granule=16, lds=64 << 10),
    "gfx1100": RDNA,
    "gfx1151": RDNA,
    "gfx1201": RDNA,
}


def waves(kernel, arch):
    """Waves on a SIMD by vector registers and static LDS, with blocks of the largest size that the kernel allows."""
    unit = LIMITS[arch]
    granules = -(-max(kernel[".vgpr_count"], 1) // unit.granule) * unit.granule
    by_registers = unit.registers // granules
    waves_of_block = -(-kernel[".max_flat_workgroup_size"] // unit.wave)
    lds = kernel[".group_segment_fixed_size"]
    by_lds = unit.lds // lds * waves_of_block // unit.simds if lds else unit.waves
    return min(unit.waves, by_registers, by_lds)
