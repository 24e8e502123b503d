//! Allocation, copies and memsets.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

use super::graph::{forbid_while_capturing, NodeKind};
use super::stream::{hipStream_t, stream};
use super::{api, current_device, put};
use crate::error::{hipError_t, HipError, HipResult};
use crate::exec::describe;
use crate::inject::Failure;
use crate::memory::{Extent, Fault};
use crate::sim::{Counters, Sim};
use crate::wrong::Direction;
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

const PAGE: usize = 4096;

/// Flags of `hipExtMallocWithFlags`: default, fine-grained, signals (eight bytes), uncached, contiguous.
const DEVICE_MALLOC_FLAGS: std::ops::RangeInclusive<c_uint> = 0..=4;
const DEVICE_MALLOC_SIGNALS: c_uint = 2;
const SIGNAL_BYTES: usize = 8;
/// Flags of `hipHostMalloc`: portable, mapped, write-combined, of the thread's NUMA node; coherent, or not.
const HOST_MALLOC_FLAGS: c_uint = 0x2000_0007;
const HOST_MALLOC_COHERENT: c_uint = 0x4000_0000;
const HOST_MALLOC_NON_COHERENT: c_uint = 0x8000_0000;

const HOST_TO_HOST: c_int = 0;
const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const DEVICE_TO_DEVICE: c_int = 3;
const DEFAULT: c_int = 4;

/// Pinned host memory, by address: which devices can reach too.
#[derive(Default)]
pub(crate) struct HostMemory {
    allocated: BTreeMap<usize, Layout>,
    registered: BTreeMap<usize, usize>,
}

impl HostMemory {
    fn is_pinned(&self, address: usize) -> bool {
        let allocated = self
            .allocated
            .range(..=address)
            .next_back()
            .map(|(s, l)| (*s, l.size()));
        let registered = self
            .registered
            .range(..=address)
            .next_back()
            .map(|(s, l)| (*s, *l));
        [allocated, registered]
            .into_iter()
            .flatten()
            .any(|(start, len)| address < start + len)
    }
}

/// `hipPointerAttribute_t`.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct hipPointerAttribute_t {
    pub r#type: c_int,
    pub device: c_int,
    pub devicePointer: *mut c_void,
    pub hostPointer: *mut c_void,
    pub isManaged: c_int,
    pub allocationFlags: c_uint,
}

/// All device memory here is alike, so every kind of it is the same.
#[no_mangle]
pub unsafe extern "C" fn hipExtMallocWithFlags(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> hipError_t {
    let is_known = DEVICE_MALLOC_FLAGS.contains(&flags)
        && (flags != DEVICE_MALLOC_SIGNALS || bytes == SIGNAL_BYTES);
    match is_known {
        // SAFETY: passed on to the caller.
        true => unsafe { hipMalloc(pointer, bytes) },
        false => api(|_| Err(HipError::InvalidValue)),
    }
}

#[no_mangle]
pub unsafe extern "C" fn hipMalloc(pointer: *mut *mut c_void, bytes: usize) -> hipError_t {
    api(|sim| {
        forbid_while_capturing(sim)?;
        if bytes == 0 {
            // SAFETY: the caller's pointer.
            return unsafe { put(pointer, std::ptr::null_mut()) };
        }
        if pointer.is_null() {
            return Err(HipError::InvalidValue);
        }
        sim.config.failures.check(Failure::Malloc)?;
        let address = sim.memory.alloc(current_device(), bytes)?;
        // SAFETY: the caller's pointer.
        unsafe { put(pointer, address as *mut c_void) }
    })
}

#[no_mangle]
pub extern "C" fn hipFree(pointer: *mut c_void) -> hipError_t {
    api(|sim| {
        if pointer.is_null() {
            return Ok(());
        }
        forbid_while_capturing(sim)?;
        match sim.memory.free(pointer as usize)? {
            None => Ok(()),
            Some(overrun) => {
                sim.report_overrun(&overrun);
                Err(HipError::IllegalAddress)
            }
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t {
    api(|sim| {
        let (available, size) = sim.memory.info(current_device());
        // SAFETY: the caller's pointers.
        unsafe { put(free, available).and_then(|()| put(total, size)) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipHostMalloc(
    pointer: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> hipError_t {
    const COHERENCE: c_uint = HOST_MALLOC_COHERENT | HOST_MALLOC_NON_COHERENT;
    api(|sim| {
        forbid_while_capturing(sim)?;
        if flags & !(HOST_MALLOC_FLAGS | COHERENCE) != 0 || flags & COHERENCE == COHERENCE {
            return Err(HipError::InvalidValue);
        }
        if bytes == 0 {
            // SAFETY: the caller's pointer.
            return unsafe { put(pointer, std::ptr::null_mut()) };
        }
        if pointer.is_null() {
            return Err(HipError::InvalidValue);
        }
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| HipError::OutOfMemory)?;
        // SAFETY: the layout is not empty.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        if address.is_null() {
            return Err(HipError::OutOfMemory);
        }
        host_memory(sim).allocated.insert(address as usize, layout);
        // SAFETY: the caller's pointer.
        unsafe { put(pointer, address.cast()) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipHostFree(pointer: *mut c_void) -> hipError_t {
    api(|sim| {
        if pointer.is_null() {
            return Ok(());
        }
        let layout = host_memory(sim)
            .allocated
            .remove(&(pointer as usize))
            .ok_or(HipError::InvalidValue)?;
        // SAFETY: allocated by hipHostMalloc with this layout, and just forgotten.
        unsafe { std::alloc::dealloc(pointer.cast(), layout) };
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn hipHostRegister(
    pointer: *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> hipError_t {
    api(|sim| {
        if pointer.is_null() || bytes == 0 || sim.memory.is_device(pointer as usize) {
            return Err(HipError::InvalidValue);
        }
        let mut host = host_memory(sim);
        if host.is_pinned(pointer as usize) {
            return Err(HipError::HostMemoryAlreadyRegistered);
        }
        host.registered.insert(pointer as usize, bytes);
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn hipHostUnregister(pointer: *mut c_void) -> hipError_t {
    api(|sim| {
        let removed = host_memory(sim).registered.remove(&(pointer as usize));
        removed.map(|_| ()).ok_or(HipError::HostMemoryNotRegistered)
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipHostGetDevicePointer(
    device: *mut *mut c_void,
    host: *mut c_void,
    flags: c_uint,
) -> hipError_t {
    api(|sim| {
        if flags != 0 || !host_memory(sim).is_pinned(host as usize) {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(device, host) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipPointerGetAttributes(
    attributes: *mut hipPointerAttribute_t,
    pointer: *const c_void,
) -> hipError_t {
    api(|sim| {
        let address = pointer as usize;
        let pinned = host_memory(sim).is_pinned(address);
        let mut found = hipPointerAttribute_t {
            r#type: 0,
            device: -2,
            devicePointer: std::ptr::null_mut(),
            hostPointer: std::ptr::null_mut(),
            isManaged: 0,
            allocationFlags: 0,
        };
        if let Some(Extent { device, .. }) = sim.memory.find(address) {
            (found.r#type, found.device, found.devicePointer) =
                (2, device as c_int, pointer.cast_mut());
        } else if pinned {
            (
                found.r#type,
                found.device,
                found.devicePointer,
                found.hostPointer,
            ) = (
                1,
                current_device() as c_int,
                pointer.cast_mut(),
                pointer.cast_mut(),
            );
        }
        // SAFETY: the caller's pointer.
        unsafe { put(attributes, found) }
    })
}

fn host_memory(sim: &Sim) -> std::sync::MutexGuard<'_, HostMemory> {
    sim.host_memory.lock().unwrap_or_else(|e| e.into_inner())
}

/// Tells whether one side of a copy is device memory, and refuses what its kind or its allocation does not allow.
fn is_device_side(
    sim: &Sim,
    address: usize,
    bytes: usize,
    expected: Option<bool>,
    side: &str,
) -> HipResult<bool> {
    let device = sim.memory.is_device(address);
    let pinned = !device && host_memory(sim).is_pinned(address);
    if expected.is_some_and(|e| e != device) && !pinned {
        let is = if device { "device" } else { "host" };
        sim.reports.add(format!(
            "copy: the {side} {address:#x} is a {is} pointer, which this direction does not allow"
        ));
        return Err(HipError::InvalidValue);
    }
    if device && !sim.memory.holds(address, bytes) {
        let place = describe(&sim.memory, address);
        sim.reports.add(format!("copy: {bytes} bytes at the {side} {address:#x} ({place}) are not inside one allocation"));
        return Err(HipError::InvalidValue);
    }
    Ok(device)
}

/// A copy whose arguments were checked.
struct Copy {
    dst: usize,
    src: usize,
    bytes: usize,
    from_device: bool,
    to_device: bool,
}

impl Copy {
    fn new(
        sim: &Sim,
        dst: *mut c_void,
        src: *const c_void,
        bytes: usize,
        kind: c_int,
    ) -> HipResult<Copy> {
        let (from, to) = match kind {
            HOST_TO_HOST => (Some(false), Some(false)),
            HOST_TO_DEVICE => (Some(false), Some(true)),
            DEVICE_TO_HOST => (Some(true), Some(false)),
            DEVICE_TO_DEVICE => (Some(true), Some(true)),
            DEFAULT => (None, None),
            _ => return Err(HipError::InvalidMemcpyDirection),
        };
        if bytes > 0 && (dst.is_null() || src.is_null()) {
            return Err(HipError::InvalidValue);
        }
        let (dst, src) = (dst as usize, src as usize);
        if bytes == 0 {
            return Ok(Copy {
                dst,
                src,
                bytes,
                from_device: false,
                to_device: false,
            });
        }
        let from_device = is_device_side(sim, src, bytes, from, "source")?;
        let to_device = is_device_side(sim, dst, bytes, to, "destination")?;
        Ok(Copy {
            dst,
            src,
            bytes,
            from_device,
            to_device,
        })
    }

    fn direction(&self, sim: &Sim) -> Option<Direction> {
        match (self.from_device, self.to_device) {
            (false, false) => None,
            (false, true) => Some(Direction::HostToDevice),
            (true, false) => Some(Direction::DeviceToHost),
            (true, true) => Some(
                match sim.memory.device_of(self.src) == sim.memory.device_of(self.dst) {
                    true => Direction::WithinDevice,
                    false => Direction::BetweenDevices,
                },
            ),
        }
    }

    fn run(&self, sim: &Sim) -> HipResult {
        sim.config.failures.check(Failure::Copy)?;
        let Copy {
            dst,
            src,
            bytes,
            from_device,
            to_device,
        } = *self;
        // A graph may run after its memory was freed.
        if (from_device && !sim.memory.holds(src, bytes))
            || (to_device && !sim.memory.holds(dst, bytes))
        {
            return Err(HipError::IllegalAddress);
        }
        if from_device {
            if let Err(Fault::Uninitialised(at)) = sim.memory.check(src, bytes, true) {
                let place = describe(&sim.memory, at);
                sim.reports.add(format!(
                    "copy of {bytes} bytes reads memory that was never written: {place}"
                ));
            }
        }
        let between = (self.direction(sim) == Some(Direction::BetweenDevices))
            .then(|| sim.memory.device_of(src).zip(sim.memory.device_of(dst)))
            .flatten();
        if let Some((from, to)) = between {
            sim.config.failures.check(Failure::PeerCopy)?;
            sim.config.peers.delay(from, to);
        }
        // SAFETY: the device sides were checked; the host sides are the caller's promise. Overlap is allowed here.
        unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes) };
        if (self.direction(sim)).is_some_and(|d| sim.config.wrong.spoils_copy(d, bytes)) {
            let word = (dst + bytes / 8 * 4) as *mut u32;
            // SAFETY: in the middle of what was just written, which is longer than a word.
            unsafe { word.write_unaligned(word.read_unaligned() ^ (1 << 30)) };
        }
        if bytes > 0 && between.is_some_and(|(a, b)| sim.config.wrong.spoils_link(a, b)) {
            // SAFETY: the last byte of what was just written.
            unsafe { *((dst + bytes - 1) as *mut u8) ^= 1 << 6 };
        }
        if to_device {
            sim.memory.mark_initialised(dst, bytes);
        }
        Counters::count(&sim.counters.copies);
        Ok(())
    }
}

fn copy_async(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: c_int,
    handle: hipStream_t,
) -> hipError_t {
    api(|sim| {
        let stream = stream(sim, handle)?;
        let copy = Copy::new(sim, dst, src, bytes, kind)?;
        stream.submit(sim, NodeKind::Memcpy, move |sim| copy.run(sim))
    })
}

/// A copy that waits: not allowed during a capture.
fn copy(dst: *mut c_void, src: *const c_void, bytes: usize, kind: c_int) -> hipError_t {
    api(|sim| {
        forbid_while_capturing(sim)?;
        let copy = Copy::new(sim, dst, src, bytes, kind)?;
        stream(sim, std::ptr::null_mut())?.submit(sim, NodeKind::Memcpy, move |sim| copy.run(sim))
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpy(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: c_int,
) -> hipError_t {
    copy(dst, src, bytes, kind)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyHtoD(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
) -> hipError_t {
    copy(dst, src, bytes, HOST_TO_DEVICE)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyDtoH(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
) -> hipError_t {
    copy(dst, src, bytes, DEVICE_TO_HOST)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyDtoD(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
) -> hipError_t {
    copy(dst, src, bytes, DEVICE_TO_DEVICE)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyAsync(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: hipStream_t,
) -> hipError_t {
    copy_async(dst, src, bytes, kind, stream)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyHtoDAsync(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: hipStream_t,
) -> hipError_t {
    copy_async(dst, src, bytes, HOST_TO_DEVICE, stream)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyDtoHAsync(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: hipStream_t,
) -> hipError_t {
    copy_async(dst, src, bytes, DEVICE_TO_HOST, stream)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyDtoDAsync(
    dst: *mut c_void,
    src: *const c_void,
    bytes: usize,
    stream: hipStream_t,
) -> hipError_t {
    copy_async(dst, src, bytes, DEVICE_TO_DEVICE, stream)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyPeerAsync(
    dst: *mut c_void,
    dst_device: c_int,
    src: *const c_void,
    src_device: c_int,
    bytes: usize,
    handle: hipStream_t,
) -> hipError_t {
    api(|sim| {
        let stream = stream(sim, handle)?;
        let copy = Copy::new(sim, dst, src, bytes, DEVICE_TO_DEVICE)?;
        let lives_on = |address, device: c_int| {
            sim.memory
                .find(address)
                .is_some_and(|e| e.device as c_int == device)
        };
        if bytes > 0 && !(lives_on(copy.dst, dst_device) && lives_on(copy.src, src_device)) {
            return Err(HipError::InvalidValue);
        }
        stream.submit(sim, NodeKind::Memcpy, move |sim| copy.run(sim))
    })
}

/// Writes `count` copies of a pattern of 1, 2 or 4 bytes.
fn memset(
    dst: *mut c_void,
    pattern: Vec<u8>,
    count: usize,
    handle: hipStream_t,
    waits: bool,
) -> hipError_t {
    api(|sim| {
        if waits {
            forbid_while_capturing(sim)?;
        }
        let stream = stream(sim, handle)?;
        let bytes = count
            .checked_mul(pattern.len())
            .ok_or(HipError::InvalidValue)?;
        if bytes == 0 {
            return Ok(());
        }
        let dst = dst as usize;
        is_device_side(sim, dst, bytes, Some(true), "destination")?;
        stream.submit(sim, NodeKind::Memset, move |sim| {
            sim.config.failures.check(Failure::Copy)?;
            if sim.memory.is_device(dst) && !sim.memory.holds(dst, bytes) {
                return Err(HipError::IllegalAddress);
            }
            // SAFETY: checked to lie inside one allocation or pinned host memory.
            let target = unsafe { std::slice::from_raw_parts_mut(dst as *mut u8, bytes) };
            match pattern.as_slice() {
                [byte] => target.fill(*byte),
                _ => target
                    .chunks_exact_mut(pattern.len())
                    .for_each(|c| c.copy_from_slice(&pattern)),
            }
            sim.memory.mark_initialised(dst, bytes);
            Counters::count(&sim.counters.memsets);
            Ok(())
        })
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipMemset(dst: *mut c_void, value: c_int, bytes: usize) -> hipError_t {
    memset(dst, vec![value as u8], bytes, std::ptr::null_mut(), true)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemsetAsync(
    dst: *mut c_void,
    value: c_int,
    bytes: usize,
    stream: hipStream_t,
) -> hipError_t {
    memset(dst, vec![value as u8], bytes, stream, false)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemsetD16Async(
    dst: *mut c_void,
    value: u16,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    memset(dst, value.to_ne_bytes().to_vec(), count, stream, false)
}

#[no_mangle]
pub unsafe extern "C" fn hipMemsetD32Async(
    dst: *mut c_void,
    value: c_int,
    count: usize,
    stream: hipStream_t,
) -> hipError_t {
    memset(dst, value.to_ne_bytes().to_vec(), count, stream, false)
}
