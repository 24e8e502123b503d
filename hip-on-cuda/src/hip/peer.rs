//! Devices that reach each other's memory.

use crate::cuda::{device, remember, with, Context, Cuda, INVALID_DEVICE, INVALID_VALUE};
use hip_abi::error::{hipError_t, HipError};
use std::ffi::{c_int, c_uint};

/// What CUDA answers where HIP says that there is no such device.
const UNSUPPORTED: hipError_t = HipError::PeerAccessUnsupported as hipError_t;
/// Numbers of attributes in HIP; CUDA counts them from one.
const ATTRIBUTES: std::ops::Range<c_int> = 0..4;

/// Calls with two devices; both have to be there.
fn with_both(
    ordinal: c_int,
    peer: c_int,
    call: impl FnOnce(&'static Cuda, &Context, &Context) -> c_int,
) -> hipError_t {
    with(|cuda| match (cuda.context(ordinal), cuda.context(peer)) {
        (Some(own), Some(other)) => call(cuda, own, other),
        _ => INVALID_DEVICE,
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceCanAccessPeer(
    can: *mut c_int,
    ordinal: c_int,
    peer: c_int,
) -> hipError_t {
    // SAFETY: the caller's pointer receives the answer.
    with_both(ordinal, peer, |cuda, own, other| unsafe {
        if ordinal == peer {
            *can = 0;
            return 0;
        }
        (cuda.driver.cuDeviceCanAccessPeer)(can, own.device, other.device)
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_int,
    ordinal: c_int,
    peer: c_int,
) -> hipError_t {
    if !ATTRIBUTES.contains(&attribute) {
        return remember(INVALID_VALUE);
    }
    // SAFETY: the caller's pointer receives the answer.
    with_both(ordinal, peer, |cuda, own, other| unsafe {
        (cuda.driver.cuDeviceGetP2PAttribute)(value, attribute + 1, own.device, other.device)
    })
}

#[no_mangle]
pub extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> hipError_t {
    if flags != 0 {
        return remember(INVALID_VALUE);
    }
    with_both(device(), peer, |cuda, own, other| {
        if own.device == other.device {
            return INVALID_DEVICE;
        }
        // SAFETY: the context is alive for good.
        match unsafe { (cuda.driver.cuCtxEnablePeerAccess)(other.raw, 0) } {
            UNSUPPORTED => INVALID_DEVICE,
            status => status,
        }
    })
}

#[no_mangle]
pub extern "C" fn hipDeviceDisablePeerAccess(peer: c_int) -> hipError_t {
    // SAFETY: the context is alive for good.
    with_both(device(), peer, |cuda, _, other| unsafe {
        (cuda.driver.cuCtxDisablePeerAccess)(other.raw)
    })
}
