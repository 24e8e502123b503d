//! The table of rules.

use crate::model::Severity::{self, Edit, Error, Note, Warning};

/// A rule: what is looked for, what it means on AMD GPUs, and what to do.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Letter and number, such as `W3`; also the anchor in docs/rocm-port/rules.md, in lower case.
    pub id: &'static str,
    /// In a few words.
    pub title: &'static str,
    /// How bad a finding is, unless the finding says otherwise.
    pub severity: Severity,
    /// What it means on an AMD GPU.
    pub meaning: &'static str,
    /// What to do about it.
    pub action: &'static str,
}

impl Rule {
    /// The rule with an id, in either case.
    pub fn find(id: &str) -> Option<&'static Rule> {
        RULES.iter().find(|rule| rule.id.eq_ignore_ascii_case(id))
    }
}

const fn rule(
    id: &'static str,
    severity: Severity,
    title: &'static str,
    meaning: &'static str,
    action: &'static str,
) -> Rule {
    Rule {
        id,
        title,
        severity,
        meaning,
        action,
    }
}

/// All rules, by topic.
pub const RULES: &[Rule] = &[
    rule(
        "W1",
        Note,
        "Warp mask of 32 bits",
        "A wave of gfx9 has 64 lanes, and HIP's own `*_sync` functions want 64-bit masks. On the shim a warp is 32 lanes on every GPU: a wave of 64 is two warps, and a full mask of 32 bits means the lane's own half.",
        "Nothing for a ported kernel. Code that you write for HIP without the shim needs the mask of the wave.",
    ),
    rule(
        "W2",
        Note,
        "Lane and warp numbers by arithmetic",
        "`threadIdx.x & 31` and `/ 32` number lanes and warps of 32. On the shim that agrees with its shuffles and votes; it does not agree with the hardware's wave where that has 64 lanes.",
        "Nothing, unless the number is used with a HIP builtin of the hardware wave: use the shim's functions there.",
    ),
    rule(
        "W3",
        Note,
        "Ballot and population count",
        "HIP's ballot has 64 bits on gfx9. The shim's `__ballot_sync`, `__activemask` and `__match_*_sync` give 32 bits of the lane's own half, so `__popc` and shifts of 32 bits are right.",
        "Nothing for a ported kernel.",
    ),
    rule(
        "W4",
        Note,
        "__syncwarp as a fence",
        "Lanes of a wave run in lockstep on AMD, but the compiler may still move loads and stores of LDS over the place. The shim's `__syncwarp` is a fence of the block's memory for the wave.",
        "Nothing for a ported kernel.",
    ),
    rule(
        "W5",
        Note,
        "Shared array sized by warps",
        "An array with one element a warp, or 32 elements, is sized for warps of 32. With the shim's warps the sizes stay right; with waves of 64 half of it would stay unused.",
        "Nothing for a ported kernel.",
    ),
    rule(
        "W6",
        Warning,
        "Warp function without _sync",
        "CUDA took these functions out; in HIP the same names work on the whole hardware wave, of 64 lanes on gfx9. The shim gives them the meaning that CUDA had, on 32 lanes.",
        "Prefer the `_sync` function with an explicit mask.",
    ),
    rule(
        "W7",
        Warning,
        "Hardware lanes or 64-bit masks",
        "The text asks the hardware for lane numbers or masks, or keeps a mask in 64 bits. The shim answers for warps of 32 lanes; a table with an entry for each lane of the hardware wave is too short or too long.",
        "Check what the number indexes; run `rocm-port check`, which compares both widths.",
    ),
    rule(
        "P1",
        Edit,
        "Inline PTX that is translated",
        "AMD GPUs have no PTX. `rocm-port port` replaces each of these `asm` statements by a call of a shim function with the same operands, and records it in the patch file.",
        "Look at the patch.",
    ),
    rule(
        "P2",
        Error,
        "Inline PTX that is not known",
        "There is no shim function for this instruction.",
        "Write the statement in CUDA C++ (most instructions have an intrinsic), or as AMD's builtin under `#ifdef USE_ROCM`.",
    ),
    rule(
        "C1",
        Error,
        "CUTLASS or CuTe",
        "Both are built on NVIDIA's matrix instructions and copies; neither exists for AMD.",
        "Use the kernel of ours that takes its place: `rocm-port scan` names it where there is one.",
    ),
    rule(
        "L1",
        Note,
        "Block and warp primitives of cub",
        "The shim has cub's block-wide and warp-wide primitives, on warps of 32 lanes.",
        "Nothing for a ported kernel.",
    ),
    rule(
        "L2",
        Warning,
        "Device-wide algorithm of cub or thrust",
        "This is a host call that launches kernels of NVIDIA's library; a ported unit holds device code only.",
        "Use candle's operation (sort, scan, reduction) on `Device::Rocm`; docs/rocm-port/libraries.md has the table.",
    ),
    rule(
        "L3",
        Note,
        "Cooperative groups",
        "The shim has thread blocks, tiles up to 32 lanes, coalesced groups, and their shuffles, votes, scans and reductions.",
        "Nothing for a ported kernel.",
    ),
    rule(
        "L4",
        Error,
        "Synchronisation of the whole grid",
        "The launchers of a ported unit give no guarantee that all blocks are resident at the same time, so that a grid that waits for itself may hang.",
        "Split the kernel in two launches at this place.",
    ),
    rule(
        "L5",
        Note,
        "Random numbers of cuRAND",
        "The shim has cuRAND's device functions for Philox 4x32-10 and XORWOW.",
        "Nothing for a ported kernel; other generators are reported as not in the shim.",
    ),
    rule(
        "L6",
        Note,
        "Asynchronous copies and barriers of CUDA C++",
        "`cuda::pipeline`, `cuda::barrier` and `__pipeline_memcpy_async` are plain copies and fences on the shim: the results are the same, the overlap is the scheduler's.",
        "Nothing for correctness; measure if the kernel depends on the overlap.",
    ),
    rule(
        "L7",
        Note,
        "thrust in device code",
        "The shim has thrust's functors, tuples and sequential algorithms for device code.",
        "Nothing for a ported kernel; what is missing is reported by name.",
    ),
    rule(
        "F1",
        Note,
        "8-bit floats",
        "CUDA's e4m3 and e5m2 are the OCP formats. gfx942 computes in the FNUZ formats, whose bytes mean other values; gfx950 and gfx12 compute in OCP's. The shim converts OCP bytes in software where the hardware differs.",
        "Nothing for conversions. Do not hand these bytes to matrix instructions of gfx942.",
    ),
    rule(
        "F2",
        Error,
        "4-bit and 6-bit floats of CUDA",
        "The types of `cuda_fp4.h` and `cuda_fp6.h` are not in the shim; only gfx950 has instructions for these formats.",
        "Convert with a table of values, as the kernels for older NVIDIA GPUs do.",
    ),
    rule(
        "M1",
        Error,
        "Matrix instructions in PTX",
        "`mma.sync`, `ldmatrix` and their kin have layouts of NVIDIA's registers. AMD's MFMA and WMMA instructions have others.",
        "Use nvcuda::wmma, which the shim has, or a matrix product of ours. Some files do without for older GPUs: try `--cuda-arch 610`.",
    ),
    rule(
        "M2",
        Note,
        "nvcuda::wmma",
        "The shim has wmma fragments for warps of 32 lanes, right on every GPU; they may be slower than AMD's own instructions.",
        "Nothing for correctness.",
    ),
    rule(
        "M3",
        Edit,
        "cp.async",
        "AMD GPUs before gfx950 have no asynchronous copy from global memory to LDS. `rocm-port port` makes it a plain copy; commit and wait become fences.",
        "Nothing for correctness; measure if the kernel depends on the overlap.",
    ),
    rule(
        "M4",
        Error,
        "TMA, wgmma, tcgen05 or mbarrier",
        "Hardware of Hopper and Blackwell without a counterpart.",
        "Port the kernel's version for Ampere, if there is one, or use a kernel of ours.",
    ),
    rule(
        "A1",
        Error,
        "More than 64 KiB of shared memory",
        "A block has at most 64 KiB of LDS on every AMD GPU but gfx950, which has 160 KiB.",
        "Use smaller tiles.",
    ),
    rule(
        "A2",
        Note,
        "Dynamic shared memory above 48 KiB",
        "CUDA wants an attribute for it; AMD GPUs give up to 64 KiB without, and no more with it.",
        "Drop the call; see that the size stays within 64 KiB.",
    ),
    rule(
        "A3",
        Error,
        "Launch bounds above 1024 threads",
        "A block has at most 1024 threads.",
        "Use smaller blocks.",
    ),
    rule(
        "A4",
        Error,
        "Clusters of blocks",
        "AMD GPUs have no clusters and no shared memory across blocks.",
        "Use the kernel's version without clusters.",
    ),
    rule(
        "N1",
        Note,
        "Threads in two or three dimensions",
        "Warps are formed along x first, then y, then z, as in CUDA, and the shim's lane numbers follow that.",
        "Nothing for a ported kernel.",
    ),
    rule(
        "H1",
        Note,
        "CUDA runtime call in host code",
        "A ported unit holds device code only; launchers in Rust take the place of host code.",
        "`rocm-port port` writes the launchers; `--host` translates host code to HIP C++ for those who want that.",
    ),
    rule(
        "H2",
        Note,
        "CUDA driver call in host code",
        "As H1, for the driver's functions (`cuLaunchKernel` and its kin).",
        "As H1.",
    ),
    rule(
        "H3",
        Warning,
        "Library of NVIDIA in host code",
        "cuBLAS, cuDNN, cuSPARSE, cuFFT, cuSOLVER and NCCL are host libraries.",
        "Use candle's operation on `Device::Rocm`; for collectives, candle-rocm-collective.",
    ),
    rule(
        "H4",
        Warning,
        "Cooperative launch",
        "The launchers do not promise that all blocks are resident at the same time.",
        "Harmless if the kernel does not wait for the whole grid (L4); else split it.",
    ),
    rule(
        "T1",
        Error,
        "Textures or surfaces",
        "The launchers bind no textures, and AMD's compute-only GPUs have no texture units.",
        "Read from a buffer, and interpolate in the kernel.",
    ),
    rule(
        "T2",
        Warning,
        "Constant memory that the host writes",
        "`cudaMemcpyToSymbol` writes a variable of the module. `__constant__` variables with initial values need nothing.",
        "Pass the values as a kernel argument, or as a buffer.",
    ),
    rule(
        "T3",
        Error,
        "Kernel launched from a kernel",
        "AMD GPUs have no dynamic parallelism.",
        "Launch from the host.",
    ),
    rule(
        "T4",
        Error,
        "Managed variables",
        "`__managed__` variables belong to a module that host code links; a ported unit has no host side.",
        "Pass a buffer.",
    ),
    rule(
        "G1",
        Error,
        "The path for NVIDIA changed",
        "Without the feature `rocm`, a ported crate has to be what it was, byte for byte. `rocm-port port --verify` finds what is not.",
        "Take the change back, or put it behind the feature.",
    ),
    rule(
        "G2",
        Note,
        "Address spaces asked for",
        "`__isShared` and the `__cvta` functions look at apertures. The shim has them; a converted LDS address is 32 bits, as in CUDA.",
        "Do not compute with the difference of two such addresses of different spaces.",
    ),
    rule(
        "G3",
        Note,
        "Vector access through a cast",
        "A `float4` has to lie at a multiple of 16 bytes. Global loads of AMD GPUs forgive a multiple of 4, LDS does not always.",
        "See that the offset of every buffer is a multiple of the vector; `rocm-port check` finds addresses that are not.",
    ),
    rule(
        "G4",
        Note,
        "printf in a kernel",
        "The shim accepts printf and prints nothing: there is no host side that reads it.",
        "Write to a buffer.",
    ),
    rule(
        "G5",
        Note,
        "Clocks",
        "`clock64` counts other ticks than on NVIDIA, at a constant frequency on some GPUs.",
        "Do not compute with the number of ticks.",
    ),
    rule(
        "S1",
        Error,
        "Not in the shim",
        "The name is neither defined by the project nor by the shim headers.",
        "Define it under `#ifdef USE_ROCM`, or say which function of the shim means the same.",
    ),
    rule(
        "S2",
        Note,
        "Template kernel that nothing instantiates",
        "No launch and no instantiation was found, so there is no entry for it. It counts neither as portable nor as by hand.",
        "If it is used: `rocm-port port --instance 'kernel<float, 128>'`.",
    ),
    rule(
        "R1",
        Warning,
        "Text that was not understood",
        "The grammar could not read a part of the file, or the file could not be preprocessed; what is in it was not looked at.",
        "Install a C++ compiler, or pass the macros and include folders that the build passes (`-D`, `-I`).",
    ),
    rule(
        "R2",
        Note,
        "Read for another architecture",
        "At the usual `__CUDA_ARCH__` the file's kernels use NVIDIA's matrix instructions; for the one named here the same kernels do without.",
        "Nothing: the ported unit sets the same `__CUDA_ARCH__`. Say `--cuda-arch` to choose yourself.",
    ),
    rule(
        "B1",
        Note,
        "Build script compiles CUDA",
        "`bindgen_cuda`, `cudaforge`, `cc` with `cuda(true)`, or nvcc itself.",
        "`rocm-port port` has it skip nvcc with the feature `rocm`.",
    ),
    rule(
        "U1",
        Note,
        "CUDA in Rust",
        "Rust code uses cudarc or candle's CUDA types.",
        "`rocm-port port` writes the counterpart where the pattern is the usual one, and lists the rest in PORTING.md.",
    ),
];
