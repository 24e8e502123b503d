//! Devices, versions and errors.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

use super::{api, current_device, put, status, CURRENT_DEVICE, LAST_ERROR};
use crate::arch::Arch;
use crate::error::{hipError_t, HipError, HipResult};
use crate::exec::{Dim3, MAX_BLOCK, MAX_GRID};
use crate::inject::Failure;
use crate::sim::{sim, Counters, Sim};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `sizeof(hipDeviceProp_tR0600)`.
const PROPERTIES_BYTES: usize = 1472;
const COMPUTE_UNITS: i32 = 32;
const CLOCK_KHZ: i32 = 2_000_000;
const MEMORY_CLOCK_KHZ: i32 = 1_000_000;
const MEMORY_BUS_BITS: i32 = 4096;
const L2_BYTES: i32 = 4 << 20;
const REGISTERS: i32 = 65536;
const THREADS_PER_UNIT: i32 = 2048;

fn device(sim: &'static Sim, ordinal: c_int) -> HipResult<&'static crate::sim::Device> {
    let index = usize::try_from(ordinal).map_err(|_| HipError::InvalidDevice)?;
    sim.devices.get(index).ok_or(HipError::InvalidDevice)
}

fn device_name(arch: &Arch) -> String {
    format!("hip-sim {}", arch.name())
}

/// PCI bus numbers: one per device, from 3 on, as on a machine with an integrated GPU.
fn bus(ordinal: usize) -> i32 {
    ordinal as i32 + 3
}

#[no_mangle]
pub extern "C" fn hipInit(flags: c_uint) -> hipError_t {
    match flags {
        0 => api(|_| Ok(())),
        _ => status(Err(HipError::InvalidValue)),
    }
}

#[no_mangle]
pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer; without a device the real runtime writes 0 and fails too.
    status(unsafe { put(count, sim().devices.len() as c_int) }.and_then(|()| sim().gate()))
}

#[no_mangle]
pub unsafe extern "C" fn hipGetDevice(ordinal: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer.
    api(|_| unsafe { put(ordinal, current_device() as c_int) })
}

#[no_mangle]
pub extern "C" fn hipSetDevice(ordinal: c_int) -> hipError_t {
    api(|sim| {
        device(sim, ordinal)?;
        CURRENT_DEVICE.with(|c| c.set(ordinal as usize));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(
    properties: *mut c_void,
    ordinal: c_int,
) -> hipError_t {
    api(|sim| {
        let arch = &device(sim, ordinal)?.arch;
        let ordinal = ordinal as usize;
        let mut image = [0u8; PROPERTIES_BYTES];
        let mut set = |offset: usize, bytes: &[u8]| {
            image[offset..offset + bytes.len()].copy_from_slice(bytes)
        };
        let (major, minor) = arch.capability();
        set(0, device_name(arch).as_bytes());
        set(256, &[ordinal as u8 + 1; 16]); // uuid
        set(1160, arch.device_name().as_bytes());
        for (offset, value) in [
            (288, sim.memory.info(ordinal).1), // totalGlobalMem
            (296, arch.shared_bytes()),        // sharedMemPerBlock
            (312, i32::MAX as usize),          // memPitch
            (352, i32::MAX as usize),          // totalConstMem
            (368, 256),                        // textureAlignment
            (640, arch.shared_bytes()),        // sharedMemPerMultiprocessor
            (696, arch.shared_bytes()),        // sharedMemPerBlockOptin
            (1416, arch.shared_bytes()),       // maxSharedMemoryPerMultiProcessor
        ] {
            set(offset, &value.to_ne_bytes());
        }
        for (offset, value) in [
            (304, REGISTERS),          // regsPerBlock
            (308, arch.wave() as i32), // warpSize
            (320, MAX_BLOCK as i32),   // maxThreadsPerBlock
            (324, MAX_BLOCK as i32),   // maxThreadsDim
            (328, MAX_BLOCK as i32),
            (332, MAX_BLOCK as i32),
            (336, MAX_GRID.x as i32), // maxGridSize
            (340, MAX_GRID.y as i32),
            (344, MAX_GRID.z as i32),
            (348, CLOCK_KHZ), // clockRate
            (360, major),
            (364, minor),
            (388, COMPUTE_UNITS),                       // multiProcessorCount
            (400, 1),                                   // canMapHostMemory
            (576, 1),                                   // concurrentKernels
            (584, bus(ordinal)),                        // pciBusID
            (604, 1),                                   // unifiedAddressing
            (608, MEMORY_CLOCK_KHZ),                    // memoryClockRate
            (612, MEMORY_BUS_BITS),                     // memoryBusWidth
            (616, L2_BYTES),                            // l2CacheSize
            (624, THREADS_PER_UNIT),                    // maxThreadsPerMultiProcessor
            (648, REGISTERS),                           // regsPerMultiprocessor
            (712, THREADS_PER_UNIT / MAX_BLOCK as i32), // maxBlocksPerMultiProcessor
            (728, 1),                                   // hostRegisterSupported
            (1424, 100_000),                            // clockInstructionRate
        ] {
            set(offset, &value.to_ne_bytes());
        }
        // SAFETY: the caller's struct has this size.
        unsafe { put(properties.cast(), image) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    ordinal: c_int,
) -> hipError_t {
    api(|sim| {
        let arch = &device(sim, ordinal)?.arch;
        let Dim3 { x, y, z } = MAX_GRID;
        let answer = match attribute {
            3 | 8 | 85 => 1, // can map host memory, concurrent kernels, unified addressing
            10 | 16 | 24 | 65 | 88 | 10011 => 0, // cooperative launch, integrated, managed, pageable, pools, large bar
            5 => CLOCK_KHZ,
            19 => L2_BYTES,
            23 => arch.capability().0,
            26..=28 | 56 => MAX_BLOCK as i32,
            29 => x as i32,
            30 => y as i32,
            31 => z as i32,
            57 => THREADS_PER_UNIT,
            59 => MEMORY_BUS_BITS,
            60 => MEMORY_CLOCK_KHZ,
            61 => arch.capability().1,
            63 | 10015 => COMPUTE_UNITS,
            67 => bus(ordinal as usize),
            68 | 69 => 0, // PCI device and domain
            71 | 72 => REGISTERS,
            74..=76 | 10002 => arch.shared_bytes() as i32,
            87 => arch.wave() as i32,
            10017 => 100_000, // wall clock, kHz
            _ => return Err(HipError::InvalidValue),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, answer) }
    })
}

/// Copies text and a zero into the caller's buffer, cut to its length.
///
/// # Safety
/// `buffer` is null or has `len` writable bytes.
unsafe fn put_text(buffer: *mut c_char, len: c_int, text: &str) -> HipResult {
    let room = usize::try_from(len)
        .ok()
        .filter(|n| *n > 0 && !buffer.is_null())
        .ok_or(HipError::InvalidValue)?;
    let count = text.len().min(room - 1);
    // SAFETY: `count` bytes and the zero fit into the caller's buffer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), count);
        *buffer.add(count) = 0;
    }
    Ok(())
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGetName(
    buffer: *mut c_char,
    len: c_int,
    ordinal: c_int,
) -> hipError_t {
    // SAFETY: the caller's buffer.
    api(|sim| unsafe { put_text(buffer, len, &device_name(&device(sim, ordinal)?.arch)) })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGetPCIBusId(
    buffer: *mut c_char,
    len: c_int,
    ordinal: c_int,
) -> hipError_t {
    api(|sim| {
        device(sim, ordinal)?;
        // SAFETY: the caller's buffer.
        unsafe {
            put_text(
                buffer,
                len,
                &format!("0000:{:02x}:00.0", bus(ordinal as usize)),
            )
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGet(out: *mut c_int, ordinal: c_int) -> hipError_t {
    // SAFETY: the caller's pointer.
    api(|sim| device(sim, ordinal).and_then(|_| unsafe { put(out, ordinal) }))
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, ordinal: c_int) -> hipError_t {
    api(|sim| {
        device(sim, ordinal)?;
        // SAFETY: the caller's pointer.
        unsafe { put(bytes, sim.memory.info(ordinal as usize).1) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceCanAccessPeer(
    can: *mut c_int,
    ordinal: c_int,
    peer: c_int,
) -> hipError_t {
    api(|sim| {
        device(sim, ordinal)?;
        device(sim, peer)?;
        let reaches = sim.config.peers.can_access(ordinal as usize, peer as usize);
        // SAFETY: the caller's pointer.
        unsafe { put(can, reaches as c_int) }
    })
}

#[no_mangle]
pub extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> hipError_t {
    api(|sim| {
        if flags != 0 {
            return Err(HipError::InvalidValue);
        }
        device(sim, peer)?;
        sim.config.failures.check(Failure::PeerEnable)?;
        sim.config.peers.enable(current_device(), peer as usize)?;
        sim.show_peers();
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn hipDeviceDisablePeerAccess(peer: c_int) -> hipError_t {
    api(|sim| {
        device(sim, peer)?;
        let own = current_device();
        if own == peer as usize {
            return Err(HipError::PeerAccessNotEnabled);
        }
        sim.config.peers.disable(own, peer as usize)?;
        sim.show_peers();
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_int,
    ordinal: c_int,
    peer: c_int,
) -> hipError_t {
    api(|sim| {
        device(sim, ordinal)?;
        device(sim, peer)?;
        if ordinal == peer {
            return Err(HipError::InvalidDevice);
        }
        let (links, own, other) = (&sim.config.peers, ordinal as usize, peer as usize);
        let answer = match attribute {
            0 => 0, // performance rank: all links are alike
            1 => links.can_access(own, other) as c_int,
            2 => links.has_atomics(own, other) as c_int,
            3 => 0, // arrays
            _ => return Err(HipError::InvalidValue),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, answer) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> hipError_t {
    // SAFETY: the caller's pointers.
    api(|_| unsafe { put(least, 1).and_then(|()| put(greatest, -1)) })
}

#[no_mangle]
pub extern "C" fn hipDeviceSynchronize() -> hipError_t {
    api(|sim| {
        super::graph::forbid_while_capturing(sim)?;
        super::graph::forbid_waiting(sim, current_device())?;
        Counters::count(&sim.counters.synchronizations);
        sim.check_guards(current_device())
    })
}

/// Brings a lost device back; memory and handles stay, unlike with the real runtime.
#[no_mangle]
pub extern "C" fn hipDeviceReset() -> hipError_t {
    let sim = sim();
    sim.config.failures.arm(Failure::Lost, 0);
    status(sim.gate())
}

#[no_mangle]
pub extern "C" fn hipGetLastError() -> hipError_t {
    LAST_ERROR.with(|last| last.replace(0))
}

#[no_mangle]
pub extern "C" fn hipPeekAtLastError() -> hipError_t {
    LAST_ERROR.with(|last| last.get())
}

#[no_mangle]
pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer.
    status(unsafe { put(version, sim().config.version) })
}

#[no_mangle]
pub unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> hipError_t {
    // Another driver has other faults.
    let driver = sim().config.version + sim().config.wrong.fingerprint() as c_int;
    // SAFETY: the caller's pointer.
    status(unsafe { put(version, driver) })
}
