//! Memory and copies.

use super::forward;
use crate::cuda::{call, with, INVALID_DEVICE, INVALID_VALUE};
use hip_abi::error::hipError_t;
use std::ffi::{c_int, c_uint, c_void};

/// Host memory that every context may use, and kernels may reach.
const PORTABLE_MAPPED: c_uint = 3;
/// The other flag of host memory that CUDA has: write-combined.
const WRITE_COMBINED: c_uint = 4;

forward! {
    fn hipHostMalloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint) = cuMemHostAlloc(pointer, bytes, PORTABLE_MAPPED | flags & WRITE_COMBINED);
    fn hipHostRegister(pointer: *mut c_void, bytes: usize, _flags: c_uint) = cuMemHostRegister(pointer, bytes, PORTABLE_MAPPED);
    fn hipHostUnregister(pointer: *mut c_void) = cuMemHostUnregister(pointer);
    fn hipHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void, flags: c_uint) = cuMemHostGetDevicePointer(device, host, flags);
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) = cuMemGetInfo(free, total);
}

#[no_mangle]
pub unsafe extern "C" fn hipMalloc(pointer: *mut *mut c_void, bytes: usize) -> hipError_t {
    if bytes == 0 {
        // SAFETY: the caller's pointer.
        unsafe { *pointer = std::ptr::null_mut() };
        return 0;
    }
    // SAFETY: the caller's pointer receives the address.
    call(|driver| unsafe { (driver.cuMemAlloc)(pointer, bytes) })
}

/// CUDA has one kind of device memory, of which other devices see at once what system-scope stores write.
#[no_mangle]
pub unsafe extern "C" fn hipExtMallocWithFlags(
    pointer: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> hipError_t {
    // SAFETY: passed on to the caller.
    unsafe { hipMalloc(pointer, bytes) }
}

#[no_mangle]
pub unsafe extern "C" fn hipFree(pointer: *mut c_void) -> hipError_t {
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: the caller has it from `hipMalloc` and does not use it any more.
    call(|driver| unsafe { (driver.cuMemFree)(pointer) })
}

#[no_mangle]
pub unsafe extern "C" fn hipHostFree(pointer: *mut c_void) -> hipError_t {
    if pointer.is_null() {
        return 0;
    }
    // SAFETY: the caller has it from `hipHostMalloc` and does not use it any more.
    call(|driver| unsafe { (driver.cuMemFreeHost)(pointer) })
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: *mut c_void,
) -> hipError_t {
    if bytes == 0 {
        return 0;
    }
    // SAFETY: the caller's memory is as large as said, stays until the copy is done, and lies where the kind says; the
    // stream is alive.
    call(|driver| unsafe {
        match kind {
            1 => (driver.cuMemcpyHtoDAsync)(to, from, bytes, stream),
            2 => (driver.cuMemcpyDtoHAsync)(to, from, bytes, stream),
            3 => (driver.cuMemcpyDtoDAsync)(to, from, bytes, stream),
            0 | 4 => (driver.cuMemcpyAsync)(to, from, bytes, stream),
            _ => INVALID_VALUE,
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipMemcpyPeerAsync(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    bytes: usize,
    stream: *mut c_void,
) -> hipError_t {
    if bytes == 0 {
        return 0;
    }
    with(|cuda| {
        let (Some(to_context), Some(from_context)) =
            (cuda.context(to_device), cuda.context(from_device))
        else {
            return INVALID_DEVICE;
        };
        // SAFETY: the caller's memory is as large as said, stays until the copy is done, and lies on these devices; the
        // stream is alive.
        unsafe {
            (cuda.driver.cuMemcpyPeerAsync)(
                to,
                to_context.raw,
                from,
                from_context.raw,
                bytes,
                stream,
            )
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipMemsetAsync(
    pointer: *mut c_void,
    value: c_int,
    bytes: usize,
    stream: *mut c_void,
) -> hipError_t {
    if bytes == 0 {
        return 0;
    }
    // SAFETY: the caller's memory is as large as said; the stream is alive.
    call(|driver| unsafe { (driver.cuMemsetD8Async)(pointer, value as u8, bytes, stream) })
}
