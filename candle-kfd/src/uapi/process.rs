//! Version, apertures, clocks, and what a process asks for once.

use super::request;

request! {
    /// The interface's version.
    GetVersion = GET_VERSION(Read, 0x01) {
        major_version: u32,
        minor_version: u32,
    }
}

request! {
    /// Counters of one moment.
    GetClockCounters = GET_CLOCK_COUNTERS(Both, 0x05) {
        gpu_clock_counter: u64,
        cpu_clock_counter: u64,
        system_clock_counter: u64,
        system_clock_freq: u64,
        gpu_id: u32,
        pad: u32,
    }
}

request! {
    /// The address ranges of each GPU: an array of [`DeviceApertures`].
    GetProcessAperturesNew = GET_PROCESS_APERTURES_NEW(Both, 0x14) {
        kfd_process_device_apertures_ptr: u64,
        num_of_nodes: u32,
        pad: u32,
    }
}

/// `kfd_process_device_apertures`.
#[allow(missing_docs)] // fields carry the header's names
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct DeviceApertures {
    pub lds_base: u64,
    pub lds_limit: u64,
    pub scratch_base: u64,
    pub scratch_limit: u64,
    pub gpuvm_base: u64,
    pub gpuvm_limit: u64,
    pub gpu_id: u32,
    pub pad: u32,
}

request! {
    /// Makes a render node's address space this process's on its GPU.
    AcquireVm = ACQUIRE_VM(Write, 0x15) {
        drm_fd: u32,
        gpu_id: u32,
    }
}

request! {
    /// Where scratch memory is.
    SetScratchBackingVa = SET_SCRATCH_BACKING_VA(Both, 0x11) {
        va_addr: u64,
        gpu_id: u32,
        pad: u32,
    }
}

request! {
    /// The handler of traps: its code, and its memory.
    SetTrapHandler = SET_TRAP_HANDLER(Write, 0x13) {
        tba_addr: u64,
        tma_addr: u64,
        gpu_id: u32,
        pad: u32,
    }
}

request! {
    /// How memory is cached.
    SetMemoryPolicy = SET_MEMORY_POLICY(Write, 0x04) {
        alternate_aperture_base: u64,
        alternate_aperture_size: u64,
        gpu_id: u32,
        default_policy: u32,
        alternate_policy: u32,
        /// `pad` before version 1.18.
        misc_process_flag: u32,
    }
}

request! {
    /// Tells the driver that a runtime works in this process; since version 1.13.
    RuntimeEnable = RUNTIME_ENABLE(Both, 0x25) {
        r_debug: u64,
        mode_mask: u32,
        capabilities_mask: u32,
    }
}

/// `KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK`.
pub const RUNTIME_ENABLE_MODE_ENABLE: u32 = 1;
