//! Allocation, copies and fills.

use super::stream::{hipStream_t, stream};
use crate::device::Device;
use crate::memory::{Block, Place};
use crate::runtime::Runtime;
use crate::status::{call, ordinal, put};
use crate::work::{Direction, Work};
use candle_kfd::Kind;
use hip_abi::error::{hipError_t, HipError, HipResult};
use std::ffi::{c_int, c_uint, c_void};

/// `hipDeviceMallocDefault`.
const MALLOC_DEFAULT: c_uint = 0;
/// `hipDeviceMallocFinegrained` and `hipDeviceMallocUncached`, which are one here.
const MALLOC_FINE_GRAINED: [c_uint; 2] = [1, 3];
/// `hipMallocSignalMemory`, of so many bytes, and `hipDeviceMallocContiguous`.
const MALLOC_SIGNAL: c_uint = 2;
const SIGNAL_BYTES: usize = 8;
const MALLOC_CONTIGUOUS: c_uint = 4;
/// Flags of `hipHostMalloc`: portable, mapped, write-combined; of the thread's NUMA node.
const HOST_MALLOC_FLAGS: c_uint = 0x2000_0007;
/// `hipHostMallocCoherent` and `hipHostMallocNonCoherent`, one of them at most. All host memory is portable, mapped and
/// coherent here, which is also right for who does not need it.
const HOST_MALLOC_COHERENCE: c_uint = 0xc000_0000;

/// Allocates memory of a device, and shows it to those that may use it.
fn allocate(
    runtime: &'static Runtime,
    device: &Device,
    pointer: *mut *mut c_void,
    bytes: usize,
    kind: Kind,
) -> HipResult {
    if pointer.is_null() {
        return Err(HipError::InvalidValue);
    }
    device.gate()?;
    let mut address = 0;
    if bytes > 0 {
        let memory = device.gpu.allocate(bytes, kind);
        let memory = memory.map_err(|error| device.failed(error))?;
        let users = device.users(&runtime.devices);
        memory
            .map_to(&users)
            .map_err(|error| device.failed(error))?;
        let place = Place::Device(device.ordinal);
        address = runtime.memories.insert(Block { memory, place });
    }
    // SAFETY: the caller's pointer.
    unsafe { put(pointer, address as *mut c_void) }
}

pub unsafe extern "C" fn hipMalloc(pointer: *mut *mut c_void, bytes: usize) -> hipError_t {
    call(|runtime| allocate(runtime, runtime.current()?, pointer, bytes, Kind::Vram))
}

pub unsafe extern "C" fn hipExtMallocWithFlags(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> hipError_t {
    call(|runtime| {
        let kind = match flags {
            MALLOC_DEFAULT => Kind::Vram,
            _ if MALLOC_FINE_GRAINED.contains(&flags) => Kind::VramCoherent,
            MALLOC_SIGNAL if bytes == SIGNAL_BYTES => Kind::Uncached,
            MALLOC_CONTIGUOUS => {
                eprintln!(
                    "hip-on-kfd: hipDeviceMallocContiguous is not there; allocate without it"
                );
                return Err(HipError::NotSupported);
            }
            _ => return Err(HipError::InvalidValue),
        };
        allocate(runtime, runtime.current()?, pointer, bytes, kind)
    })
}

pub extern "C" fn hipFree(pointer: *mut c_void) -> hipError_t {
    call(|runtime| {
        if pointer.is_null() {
            return Ok(());
        }
        let is_device = |place| matches!(place, Place::Device(_));
        let block = runtime.memories.remove(pointer as u64, is_device)?;
        let Place::Device(owner) = block.place else {
            return Err(HipError::InvalidValue);
        };
        runtime.release(block, owner)
    })
}

pub unsafe extern "C" fn hipHostMalloc(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> hipError_t {
    call(|runtime| {
        let coherence = flags & HOST_MALLOC_COHERENCE;
        let unknown = flags & !(HOST_MALLOC_FLAGS | HOST_MALLOC_COHERENCE);
        if pointer.is_null() || unknown != 0 || coherence == HOST_MALLOC_COHERENCE {
            return Err(HipError::InvalidValue);
        }
        let device = runtime.current()?;
        let mut address = 0;
        if bytes > 0 {
            let memory = device.gpu.allocate(bytes, Kind::Gtt);
            let memory = memory.map_err(|error| device.failed(error))?;
            let others = runtime.devices.iter().filter(|other| other.gate().is_ok());
            let others: Vec<_> = others.map(|other| other.gpu.clone()).collect();
            memory
                .map_to(&others)
                .map_err(|error| device.failed(error))?;
            let place = Place::Pinned;
            address = runtime.memories.insert(Block { memory, place });
        }
        // SAFETY: the caller's pointer.
        unsafe { put(pointer, address as *mut c_void) }
    })
}

pub extern "C" fn hipHostFree(pointer: *mut c_void) -> hipError_t {
    call(|runtime| {
        if pointer.is_null() {
            return Ok(());
        }
        let is_pinned = |place| place == Place::Pinned;
        let block = runtime.memories.remove(pointer as u64, is_pinned)?;
        // Every device reaches it.
        runtime.release(block, ordinal())
    })
}

pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t {
    call(|runtime| {
        let device = runtime.current()?;
        let available = device.gpu.free_bytes();
        let available = available.map_err(|error| device.failed(error))?;
        let all = device.gpu.node().memory_bytes;
        // SAFETY: the caller's pointers.
        unsafe { put(free, available.min(all) as usize).and_then(|()| put(total, all as usize)) }
    })
}

/// # Safety
/// As of [`Work::run`] for a copy.
unsafe fn copy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    direction: HipResult<Direction>,
    handle: hipStream_t,
) -> hipError_t {
    call(|runtime| {
        let stream = stream(runtime, handle)?;
        let work = Work::Copy {
            to: to as u64,
            from: from as u64,
            bytes,
            direction: direction?,
        };
        // SAFETY: the caller's promise.
        unsafe { stream.submit(runtime, work) }
    })
}

pub unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    handle: hipStream_t,
) -> hipError_t {
    // SAFETY: the caller's memory is as large as said, and stays until the copy is done.
    unsafe { copy(to, from, bytes, Direction::from_code(kind), handle) }
}

pub unsafe extern "C" fn hipMemcpyPeerAsync(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    bytes: usize,
    handle: hipStream_t,
) -> hipError_t {
    let devices = |runtime: &'static Runtime| {
        runtime.device(to_device)?;
        runtime
            .device(from_device)
            .map(|_| Direction::DeviceToDevice)
    };
    let direction = crate::runtime::runtime().and_then(devices);
    // SAFETY: as above.
    unsafe { copy(to, from, bytes, direction, handle) }
}

pub unsafe extern "C" fn hipMemsetAsync(
    pointer: *mut c_void,
    value: c_int,
    bytes: usize,
    handle: hipStream_t,
) -> hipError_t {
    call(|runtime| {
        let work = Work::Fill {
            to: pointer as u64,
            value: value as u8,
            bytes,
        };
        // SAFETY: the caller's memory is as large as said, and stays until the fill is done.
        unsafe { stream(runtime, handle)?.submit(runtime, work) }
    })
}
