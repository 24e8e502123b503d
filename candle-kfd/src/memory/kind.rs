//! Kinds of memory, and what the driver is asked for each.

use crate::uapi::flags;
use std::fmt;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Memory of the GPU that the host does not see.
    Vram,
    /// Memory of the GPU that the host sees through its window (resizable BAR).
    VramVisible,
    /// Memory of the GPU that no cache keeps: what several GPUs exchange while their kernels run. The host does not see it.
    VramCoherent,
    /// Memory of the GPU that the host sees, for code; on a GPU with a small window, memory of the host.
    Executable,
    /// Memory of the host that both see; what one writes, the other sees after a release at system scope.
    Gtt,
    /// Memory of the host that no cache of the GPU keeps: signals, pointers of queues, events.
    Uncached,
    /// The ring of a queue.
    Queue,
    /// Memory of the caller, at its own address where that can be.
    User,
}

/// What every kind is: not to be replaced by another kind, and executable, as libhsakmt has it for all memory (`fmm.c`,
/// `fmm_translate_hsa_to_ioc_flags`) and nobody has tried otherwise.
const ALWAYS: u32 = flags::WRITABLE | flags::EXECUTABLE | flags::NO_SUBSTITUTE;

impl Kind {
    /// What the driver is asked for. Flags are the same for all generations of the table: the kernel makes of them what the
    /// page tables of each need (Linux' `gmc_v9_0.c`, `gmc_v10_0.c`, `gmc_v11_0.c`, `gmc_v12_0.c`, `get_vm_pte`).
    ///
    /// * Memory of the GPU is cached by it, as libhsakmt's coarse-grained memory; what GPUs exchange is not, as HIP's
    ///   `hipDeviceMallocUncached`.
    /// * Memory of the host is coherent, as its fine-grained memory; signals and rings are uncached besides, as tinygrad's
    ///   `ops_amd.py` has them.
    /// * `AQL_QUEUE_MEM` maps half of the memory twice, which only GPUs before gfx9 need (Linux' `amdgpu_amdkfd_gpuvm.c`).
    pub(crate) const fn flags(self) -> u32 {
        ALWAYS
            | match self {
                Kind::Vram => flags::VRAM,
                Kind::VramCoherent => flags::VRAM | flags::COHERENT | flags::UNCACHED,
                Kind::VramVisible | Kind::Executable => flags::VRAM | flags::PUBLIC,
                Kind::Gtt => flags::GTT | flags::COHERENT,
                Kind::Uncached | Kind::Queue => flags::GTT | flags::COHERENT | flags::UNCACHED,
                Kind::User => flags::USERPTR | flags::COHERENT,
            }
    }

    /// Whether it takes of the GPU's own memory.
    pub const fn is_device(self) -> bool {
        matches!(
            self,
            Kind::Vram | Kind::VramVisible | Kind::VramCoherent | Kind::Executable
        )
    }

    /// Whether the host reads and writes it through [`Memory::host`](super::Memory::host).
    pub const fn is_visible(self) -> bool {
        !matches!(self, Kind::Vram | Kind::VramCoherent | Kind::User)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Vram => "device memory",
            Kind::VramVisible => "device memory that the host sees",
            Kind::VramCoherent => "uncached device memory",
            Kind::Executable => "memory for code",
            Kind::Gtt => "host memory",
            Kind::Uncached => "uncached host memory",
            Kind::Queue => "memory for a queue",
            Kind::User => "the caller's memory",
        })
    }
}
