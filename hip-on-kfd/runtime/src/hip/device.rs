//! Devices, versions, and the thread's last error.

use super::properties;
use crate::status::{call, ordinal, put, set_ordinal, status, take_last_error};
use hip_abi::error::{hipError_t, HipError};
use std::ffi::{c_int, c_uint, c_void};

/// The release of HIP whose interface this is: 10,000,000 times the first number, 100,000 times the second.
pub const VERSION: c_int = 70_000_000;

pub extern "C" fn hipInit(flags: c_uint) -> hipError_t {
    match flags {
        0 => call(|_| Ok(())),
        _ => status(Err(HipError::InvalidValue)),
    }
}

pub unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer.
    status(unsafe { put(version, VERSION) })
}

/// The version of the kernel driver's interface.
pub unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> hipError_t {
    call(|runtime| {
        let (major, minor) = runtime.current()?.gpu.kfd().version();
        let number = major
            .saturating_mul(10_000_000)
            .saturating_add(minor.saturating_mul(100_000));
        // SAFETY: the caller's pointer.
        unsafe { put(version, number.min(c_int::MAX as u32) as c_int) }
    })
}

pub extern "C" fn hipGetLastError() -> hipError_t {
    take_last_error()
}

pub unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer. Without a device, there are none, and it fails.
    if let Err(error) = unsafe { put(count, 0) } {
        return status(Err(error));
    }
    // SAFETY: as above.
    call(|runtime| unsafe { put(count, runtime.devices.len() as c_int) })
}

pub unsafe extern "C" fn hipGetDevice(device: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer.
    call(|_| unsafe { put(device, ordinal() as c_int) })
}

pub extern "C" fn hipSetDevice(device: c_int) -> hipError_t {
    call(|runtime| {
        set_ordinal(runtime.device(device)?.ordinal);
        Ok(())
    })
}

pub extern "C" fn hipDeviceSynchronize() -> hipError_t {
    call(|runtime| {
        let device = runtime.current()?;
        device.gate()?;
        super::stream::none_captured(runtime, device)?;
        device.idle()
    })
}

pub unsafe extern "C" fn hipGetDevicePropertiesR0600(
    properties: *mut c_void,
    device: c_int,
) -> hipError_t {
    call(|runtime| {
        let image = properties::image(&runtime.device(device)?.gpu);
        // SAFETY: the caller's struct has this size.
        unsafe { put(properties.cast(), image) }
    })
}
