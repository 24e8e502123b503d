//! Memory of a GPU, and which GPUs see it.

use super::request;

/// `KFD_IOC_ALLOC_MEM_FLAGS_…`: kinds and properties of memory.
#[allow(missing_docs)] // the header's names
pub mod flags {
    pub const VRAM: u32 = 1 << 0;
    pub const GTT: u32 = 1 << 1;
    pub const USERPTR: u32 = 1 << 2;
    pub const DOORBELL: u32 = 1 << 3;
    pub const MMIO_REMAP: u32 = 1 << 4;
    pub const UNCACHED: u32 = 1 << 25;
    pub const COHERENT: u32 = 1 << 26;
    pub const AQL_QUEUE_MEM: u32 = 1 << 27;
    pub const NO_SUBSTITUTE: u32 = 1 << 28;
    pub const PUBLIC: u32 = 1 << 29;
    pub const EXECUTABLE: u32 = 1 << 30;
    pub const WRITABLE: u32 = 1 << 31;
}

request! {
    /// Takes memory for a range of addresses.
    AllocMemoryOfGpu = ALLOC_MEMORY_OF_GPU(Both, 0x16) {
        va_addr: u64,
        size: u64,
        handle: u64,
        /// To the driver the host's address of `USERPTR` memory; from it the offset at which a render node maps it.
        mmap_offset: u64,
        gpu_id: u32,
        flags: u32,
    }
}

request! {
    /// Gives memory back.
    FreeMemoryOfGpu = FREE_MEMORY_OF_GPU(Write, 0x17) {
        handle: u64,
    }
}

request! {
    /// Lets GPUs see memory: an array of `gpu_id`, `u32` each.
    MapMemoryToGpu = MAP_MEMORY_TO_GPU(Both, 0x18) {
        handle: u64,
        device_ids_array_ptr: u64,
        n_devices: u32,
        n_success: u32,
    }
}

request! {
    /// The reverse of [`MapMemoryToGpu`].
    UnmapMemoryFromGpu = UNMAP_MEMORY_FROM_GPU(Both, 0x19) {
        handle: u64,
        device_ids_array_ptr: u64,
        n_devices: u32,
        n_success: u32,
    }
}

request! {
    /// How much device memory is free; since version 1.9.
    GetAvailableMemory = AVAILABLE_MEMORY(Both, 0x23) {
        available: u64,
        gpu_id: u32,
        pad: u32,
    }
}
