//! What the engine asks of devices beyond tensors: memory, launches, and what an error means.

use super::api::DeviceMemory;
use super::forward::Forward;
use candle_core::Device;

pub(super) use worker::device::launches;
use worker::device::{host_memory_room, shared_memory_room};
pub(super) use worker::fault::{diagnose, DeviceFault};

/// As [`diagnose`], of an error of a model, which may know that it is lost.
pub(super) fn diagnose_model(forward: &dyn Forward, error: &candle_core::Error) -> DeviceFault {
    match forward.lost() {
        Some(reason) => DeviceFault::Lost(reason),
        None => diagnose(forward.device(), error),
    }
}

/// Free and total bytes of a device's memory, where it is known.
pub(super) fn memory(device: &Device) -> Option<(u64, u64)> {
    match device {
        Device::Rocm(device) => {
            let (free, total) = device.device().memory_info().ok()?;
            Some((free as u64, total as u64))
        }
        _ => None,
    }
}

/// The memory of each device, as far as it is known.
pub(super) fn memory_of_each(devices: &[Device]) -> Vec<DeviceMemory> {
    let of_one = |device: &Device| {
        let (free, total) = memory(device)?;
        let ordinal = device.as_rocm_device().ok()?.device().ordinal();
        Some(DeviceMemory {
            name: format!("rocm:{ordinal}"),
            used: total.saturating_sub(free),
            total,
        })
    };
    devices.iter().filter_map(of_one).collect()
}

/// Bytes that the cache of keys and values may take: most of what is free, for there are activations as well. The system
/// counts pages of mapped files as free; weights that are used there are not.
pub(crate) fn room_for_cache(device: &Device, mapped: u64) -> Option<u64> {
    if device.is_cpu() {
        // The system lends what other programs may need: half of it.
        return Some(host_memory_room()?.saturating_sub(mapped) / 2);
    }
    if let Some(room) = shared_memory_room(device) {
        // Other programs live in it, too, and fill it while this one runs.
        return Some(room.saturating_sub(mapped) / 4 * 3);
    }
    memory(device).map(|(free, _)| free - reserve(free))
}

/// Bytes that weights may take on a GPU with memory of its own, so that there is room for keys and values besides; `None`
/// for other devices.
pub(super) fn room_for_weights(device: &Device) -> Option<u64> {
    if device.is_cpu() || shared_memory_room(device).is_some() {
        return None;
    }
    memory(device).map(|(free, _)| (free - reserve(free)) / 16 * 15)
}

/// Bytes of free GPU memory that the cache leaves: for activations, and for what HIP allocates itself, of which it does
/// not always survive to find too little (graphs, kernels, their scratch memory).
fn reserve(free: u64) -> u64 {
    const LEAST: u64 = 1 << 30;
    (free / 10).max(LEAST).min(free / 2)
}

#[cfg(test)]
mod tests {
    use super::reserve;

    #[test]
    fn the_cache_leaves_a_tenth_and_a_gibibyte_but_not_all() {
        const GIB: u64 = 1 << 30;
        assert_eq!(reserve(190 * GIB), 19 * GIB);
        assert_eq!(reserve(8 * GIB), GIB);
        assert_eq!(reserve(GIB), GIB / 2);
        assert_eq!(reserve(0), 0);
    }
}
