//! What a process asks for once.

use super::super::state::{self, Shared, APERTURE_LAST, GPUVM, LDS_BASE, SCRATCH_BASE};
use super::super::{clock, identity, lock};
use crate::driver::Errno;
use crate::uapi::{
    AcquireVm, DeviceApertures, GetClockCounters, GetProcessAperturesNew, GetVersion,
    RuntimeEnable, SetMemoryPolicy, SetScratchBackingVa, SetTrapHandler,
    RUNTIME_ENABLE_MODE_ENABLE,
};
use std::sync::Arc;

pub(super) fn get_version(shared: &Arc<Shared>, request: &mut GetVersion) -> Result<(), Errno> {
    let (major, minor) = lock(&shared.state).setup.version;
    (request.major_version, request.minor_version) = (major, minor);
    Ok(())
}

pub(super) fn get_clock_counters(
    shared: &Arc<Shared>,
    request: &mut GetClockCounters,
) -> Result<(), Errno> {
    let known = lock(&shared.state).gpu(request.gpu_id).is_ok();
    let nanoseconds = clock::nanoseconds();
    // A node that is no GPU has no such counter.
    request.gpu_clock_counter = if known { clock::of(nanoseconds) } else { 0 };
    request.cpu_clock_counter = nanoseconds;
    request.system_clock_counter = nanoseconds;
    request.system_clock_freq = 1_000_000_000;
    Ok(())
}

pub(super) fn get_process_apertures(
    shared: &Arc<Shared>,
    request: &mut GetProcessAperturesNew,
) -> Result<(), Errno> {
    let apertures: Vec<DeviceApertures> = (lock(&shared.state).gpus.iter())
        .map(|gpu| DeviceApertures {
            lds_base: LDS_BASE,
            lds_limit: LDS_BASE + APERTURE_LAST,
            scratch_base: SCRATCH_BASE,
            scratch_limit: SCRATCH_BASE + APERTURE_LAST,
            gpuvm_base: GPUVM.0,
            gpuvm_limit: GPUVM.1,
            gpu_id: gpu.described.gpu_id,
            pad: 0,
        })
        .collect();
    if request.num_of_nodes == 0 {
        request.num_of_nodes = apertures.len() as u32;
        return Ok(());
    }
    let count = apertures.len().min(request.num_of_nodes as usize);
    request.num_of_nodes = count as u32;
    let to = request.kfd_process_device_apertures_ptr;
    shared
        .user
        .write(to, bytemuck::cast_slice(&apertures[..count]))
}

pub(super) fn acquire_vm(shared: &Arc<Shared>, request: &mut AcquireVm) -> Result<(), Errno> {
    let mut state = lock(&shared.state);
    let index = state.gpu(request.gpu_id)?;
    let descriptor = i32::try_from(request.drm_fd).map_err(|_| Errno(libc::EINVAL))?;
    let file = identity(descriptor).map_err(|_| Errno(libc::EINVAL))?;
    // A file that is no render node, or another GPU's: `amdgpu_file_to_fpriv`.
    if state.renders.get(&file) != Some(&index) {
        return Err(Errno(libc::EINVAL));
    }
    match state.gpus[index].vm {
        Some(own) if own == file => Ok(()),
        Some(_) => Err(Errno(libc::EBUSY)),
        None => {
            state.gpus[index].vm = Some(file);
            Ok(())
        }
    }
}

pub(super) fn set_scratch_backing(
    shared: &Arc<Shared>,
    request: &mut SetScratchBackingVa,
) -> Result<(), Errno> {
    lock(&shared.state)
        .bound(request.gpu_id, libc::ENODEV)
        .map(drop)
}

pub(super) fn set_trap_handler(
    shared: &Arc<Shared>,
    request: &mut SetTrapHandler,
) -> Result<(), Errno> {
    lock(&shared.state)
        .bound(request.gpu_id, libc::ESRCH)
        .map(drop)
}

pub(super) fn set_memory_policy(
    shared: &Arc<Shared>,
    request: &mut SetMemoryPolicy,
) -> Result<(), Errno> {
    // Coherent and not coherent.
    if request.default_policy > 1 || request.alternate_policy > 1 {
        return Err(Errno(libc::EINVAL));
    }
    lock(&shared.state)
        .bound(request.gpu_id, libc::ESRCH)
        .map(drop)
}

pub(super) fn runtime_enable(
    shared: &Arc<Shared>,
    request: &mut RuntimeEnable,
) -> Result<(), Errno> {
    let state: &mut state::State = &mut lock(&shared.state);
    let enable = request.mode_mask & RUNTIME_ENABLE_MODE_ENABLE != 0;
    if enable && state.runtime_enabled {
        return Err(Errno(libc::EBUSY));
    }
    state.runtime_enabled = enable;
    Ok(())
}
