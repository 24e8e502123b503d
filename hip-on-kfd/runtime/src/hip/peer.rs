//! Devices that reach each other's memory.

use crate::runtime::Runtime;
use crate::status::{call, ordinal, put};
use crate::sync::lock;
use hip_abi::error::{hipError_t, HipError, HipResult};
use std::ffi::{c_int, c_uint};

pub unsafe extern "C" fn hipDeviceCanAccessPeer(
    can: *mut c_int,
    device: c_int,
    peer: c_int,
) -> hipError_t {
    call(|runtime| {
        let (device, peer) = (runtime.device(device)?, runtime.device(peer)?);
        let can_access = device.ordinal != peer.ordinal && device.is_linked(peer);
        // SAFETY: the caller's pointer.
        unsafe { put(can, c_int::from(can_access)) }
    })
}

/// Shows all memory of a device to another.
fn show(runtime: &Runtime, owner: usize, user: usize) -> HipResult {
    let user = &runtime.devices[user];
    let gpus = [user.gpu.clone()];
    runtime.memories.of_device(owner, |block| {
        let shown = block.memory.map_to(&gpus);
        shown.map_err(|error| user.failed(error))
    })
}

pub extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> hipError_t {
    call(|runtime| {
        if flags != 0 {
            return Err(HipError::InvalidValue);
        }
        let (device, peer) = (runtime.current()?, runtime.device(peer)?);
        if device.ordinal == peer.ordinal {
            return Err(HipError::InvalidDevice);
        }
        if !device.is_linked(peer) {
            return Err(HipError::InvalidDevice);
        }
        if !lock(&device.peers).insert(peer.ordinal) {
            return Err(HipError::PeerAccessAlreadyEnabled);
        }
        let shown = show(runtime, peer.ordinal, ordinal());
        if shown.is_err() {
            lock(&device.peers).remove(&peer.ordinal);
        }
        shown
    })
}
