//! Devices, memory and copies.

use super::*;

pub fn devices(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("devices");
    let mut number = -1;
    // SAFETY: results are written, or null is refused.
    unsafe {
        side.says("init", (hip.hipInit)(0));
        side.says("init with flags", (hip.hipInit)(1));
        side.says("last error", (hip.hipGetLastError)());
        side.says("last error again", (hip.hipGetLastError)());
        side.says("count", (hip.hipGetDeviceCount)(&mut number));
        side.note("how many", number);
        side.says("count nowhere", (hip.hipGetDeviceCount)(null_mut()));
        for device in [-1, 2, 1] {
            side.says("set", (hip.hipSetDevice)(device));
            side.says("get", (hip.hipGetDevice)(&mut number));
            side.note("which", number);
        }
        side.says("set back", (hip.hipSetDevice)(0));
        side.says("get nowhere", (hip.hipGetDevice)(null_mut()));
        side.says("version nowhere", (hip.hipRuntimeGetVersion)(null_mut()));
        side.says("driver nowhere", (hip.hipDriverGetVersion)(null_mut()));
        let mut image = [0u8; 1472];
        let properties = image.as_mut_ptr().cast();
        side.says(
            "properties",
            (hip.hipGetDevicePropertiesR0600)(properties, 1),
        );
        side.says("of none", (hip.hipGetDevicePropertiesR0600)(properties, 2));
        side.says("nowhere", (hip.hipGetDevicePropertiesR0600)(null_mut(), 0));
        side.says("synchronize", (hip.hipDeviceSynchronize)());
        for (device, peer) in [(0, 1), (1, 0), (0, 0), (0, 2), (-1, 0)] {
            side.says(
                "can",
                (hip.hipDeviceCanAccessPeer)(&mut number, device, peer),
            );
            side.note("reaches", number);
        }
        side.says(
            "can nowhere",
            (hip.hipDeviceCanAccessPeer)(null_mut(), 0, 1),
        );
        for (peer, flags) in [(0, 0), (2, 0), (-1, 0), (1, 1), (1, 0), (1, 0)] {
            let what = format!("enable {peer} {flags}");
            side.says(&what, (hip.hipDeviceEnablePeerAccess)(peer, flags));
        }
    }
}

pub fn memory(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("memory");
    let (mut free, mut total) = (0, 0);
    let mut out = null_mut();
    // SAFETY: results are written, or what is passed is refused.
    unsafe {
        side.says("malloc nowhere", (hip.hipMalloc)(null_mut(), 16));
        side.says("malloc nothing", (hip.hipMalloc)(&mut out, 0));
        side.note("is null", out.is_null());
        side.says("malloc nothing nowhere", (hip.hipMalloc)(null_mut(), 0));
        side.says("malloc too much", (hip.hipMalloc)(&mut out, 1 << 50));
        side.says("info", (hip.hipMemGetInfo)(&mut free, &mut total));
        side.note("there is some", free > 0 && free <= total);
        side.says("info nowhere", (hip.hipMemGetInfo)(null_mut(), &mut total));
        side.says("free nothing", (hip.hipFree)(null_mut()));
        side.says("free nobody's", (hip.hipFree)(NOBODY));
        side.says("host free nothing", (hip.hipHostFree)(null_mut()));
        side.says("host free nobody's", (hip.hipHostFree)(NOBODY));
        for flags in 0..=5 {
            let mut memory = null_mut();
            let status = (hip.hipExtMallocWithFlags)(&mut memory, 64, flags);
            side.says(&format!("flags {flags}"), status);
            if status == 0 {
                common::ok((hip.hipFree)(memory));
            }
        }
        // Portable, mapped, write-combined, of a NUMA node, coherent, not coherent, both, unknown ones.
        for flags in [
            0,
            1,
            2,
            4,
            7,
            0x2000_0000,
            0x4000_0000,
            0x8000_0000,
            0xc000_0000,
            8,
            16,
        ] {
            let mut memory = null_mut();
            let status = (hip.hipHostMalloc)(&mut memory, 64, flags);
            side.says(&format!("host flags {flags:#x}"), status);
            if status == 0 {
                common::ok((hip.hipHostFree)(memory));
            }
        }
        side.says("host nowhere", (hip.hipHostMalloc)(null_mut(), 16, 0));
        side.says("host nothing", (hip.hipHostMalloc)(&mut out, 0, 0));
        side.note("host is null", out.is_null());
        let device = side.malloc(4096);
        let pinned = side.made(|out| (hip.hipHostMalloc)(out, 4096, 0));
        side.says("host free of a device's", (hip.hipHostFree)(device));
        side.says("free of the host's", (hip.hipFree)(pinned));
        side.says("free within", (hip.hipFree)(device.byte_add(64)));
        side.says("free", (hip.hipFree)(device));
        side.says("free again", (hip.hipFree)(device));
        side.says("host free", (hip.hipHostFree)(pinned));
        side.says("host free again", (hip.hipHostFree)(pinned));
    }
}

pub fn copies(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("copies");
    let stream = side.stream(NON_BLOCKING);
    let (device, other) = (side.malloc(4096), side.malloc(4096));
    let mut words: Vec<u32> = (0..1024).collect();
    let host: *mut c_void = words.as_mut_ptr().cast();
    // SAFETY: within bounds, or refused; the vector outlives the copies, which are waited for.
    unsafe {
        let pinned = side.made(|out| (hip.hipHostMalloc)(out, 4096, 0));
        let copy = |to, from: *mut c_void, bytes, kind, what: &str| {
            side.says(what, (hip.hipMemcpyAsync)(to, from, bytes, kind, stream));
        };
        copy(device, host, 4096, DEVICE, "up");
        copy(other, device, 4096, WITHIN, "within");
        copy(pinned, other, 4096, HOST, "down to pinned");
        common::ok((hip.hipStreamSynchronize)(stream));
        side.note(
            "arrived",
            std::slice::from_raw_parts(pinned.cast::<u32>(), 1024),
        );
        // Every direction between every two kinds of memory.
        for kind in [-1, 0, 1, 2, 3, 4, 5] {
            for (to, to_name) in [(device, "device"), (pinned, "pinned"), (host, "host")] {
                for (from, from_name) in [(other, "device"), (pinned, "pinned"), (host, "host")] {
                    if to != from {
                        let what = format!("direction {kind}, {from_name} to {to_name}");
                        copy(to, from, 64, kind, &what);
                    }
                }
            }
        }
        common::ok((hip.hipStreamSynchronize)(stream));
        copy(device, host, 0, DEVICE, "nothing");
        copy(null_mut(), null_mut(), 0, DEVICE, "nothing from nowhere");
        copy(NOBODY, host, 0, DEVICE, "nothing to nobody's");
        copy(null_mut(), device, 16, HOST, "to nowhere");
        copy(device, null_mut(), 16, DEVICE, "from nowhere");
        copy(device.byte_add(4090), host, 16, DEVICE, "past the end");
        copy(host, device.byte_add(4090), 16, HOST, "from past the end");
        let status = (hip.hipMemcpyAsync)(device, host, 16, DEVICE, NOBODY);
        side.says("on no stream", status);
        let status = (hip.hipMemcpyAsync)(device, host, 16, 9, NOBODY);
        side.says("on no stream in no direction", status);
        let fill = |to, bytes, what: &str| {
            side.says(what, (hip.hipMemsetAsync)(to, 0x1ff, bytes, stream));
        };
        fill(device, 4096, "fill");
        fill(pinned, 64, "fill pinned");
        fill(host, 64, "fill the host's");
        fill(null_mut(), 64, "fill nothing");
        fill(device.byte_add(1), 4096, "fill past the end");
        fill(NOBODY, 0, "fill no bytes");
        side.note("filled", side.words(device, 1024, stream));
        let peer = |to_device, from_device, what: &str| {
            let status =
                (hip.hipMemcpyPeerAsync)(device, to_device, other, from_device, 64, stream);
            side.says(what, status);
        };
        peer(0, 0, "peer of itself");
        peer(1, 0, "peer that has it not");
        peer(0, 1, "from a peer that has it not");
        peer(0, 2, "no peer");
        common::ok((hip.hipStreamSynchronize)(stream));
        for memory in [device, other] {
            common::ok((hip.hipFree)(memory));
        }
        common::ok((hip.hipHostFree)(pinned));
        common::ok((hip.hipStreamDestroy)(stream));
    }
}
