//! HIP's functions on the mock of the driver: what they promise to who calls them.

mod common;

use common::*;
use hip_on_kfd_runtime::hip::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const MIB: usize = 1 << 20;

fn pattern(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

#[test]
fn devices_are_what_the_kernel_describes() {
    mock();
    ok(hipInit(0));
    fails(hipInit(1), "hipErrorInvalidValue");
    let mut count = 0;
    // SAFETY: the count is written.
    ok(unsafe { hipGetDeviceCount(&mut count) });
    assert_eq!(count, 2);
    let mut image = [0u8; 1472];
    // SAFETY: the struct has this size.
    ok(unsafe { hipGetDevicePropertiesR0600(image.as_mut_ptr().cast(), 0) });
    let int = |at: usize| i32::from_ne_bytes(image[at..at + 4].try_into().unwrap());
    assert!(image[1160..].starts_with(b"gfx1100\0"));
    assert_eq!((int(308), int(320)), (32, 1024), "wave and block");
    assert!(int(388) > 0, "compute units");
    let memory = usize::from_ne_bytes(image[288..296].try_into().unwrap());
    let lds = usize::from_ne_bytes(image[296..304].try_into().unwrap());
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are written.
    ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
    assert_eq!((total, lds), (memory, 64 << 10));
    assert!(free > 0 && free <= total);
    // SAFETY: as above.
    let status = unsafe { hipGetDevicePropertiesR0600(image.as_mut_ptr().cast(), 2) };
    fails(status, "hipErrorInvalidDevice");
    fails(hipSetDevice(-1), "hipErrorInvalidDevice");
    // The last error of the thread, once.
    fails(hipGetLastError(), "hipErrorInvalidDevice");
    ok(hipGetLastError());
}

#[test]
fn copies_of_any_size_arrive_by_every_way() {
    mock();
    let stream = stream();
    // More than two chunks of pinned memory, and sizes that no word divides.
    for bytes in [1, 3, 4097, 9 * MIB + 5] {
        let (first, second) = (malloc(bytes), malloc(bytes));
        let data = pattern(bytes, bytes as u32);
        upload(first, &data, stream);
        // SAFETY: both have as many bytes.
        ok(unsafe { hipMemcpyAsync(second, first, bytes, DEVICE_TO_DEVICE, stream) });
        assert!(download(second, bytes, stream) == data, "{bytes} bytes");
        ok(hipFree(first));
        ok(hipFree(second));
    }
    let bytes = 1000;
    let (host, device) = (pinned(bytes), malloc(bytes));
    let data = pattern(bytes, 7);
    // SAFETY: pinned memory is the host's, with as many bytes, and no copy is under way.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), host.cast(), bytes);
        ok(hipMemcpyAsync(device, host, bytes, HOST_TO_DEVICE, stream));
        ok(hipMemsetAsync(host, 0, bytes, stream));
        ok(hipMemcpyAsync(host, device, bytes, DEVICE_TO_HOST, stream));
    }
    ok(hipStreamSynchronize(stream));
    // SAFETY: as above.
    assert_eq!(
        unsafe { std::slice::from_raw_parts(host.cast::<u8>(), bytes) },
        data
    );
    ok(hipHostFree(host));
    ok(hipFree(device));
    ok(hipStreamDestroy(stream));
}

#[test]
fn fills_set_every_byte_of_a_range_and_no_other() {
    mock();
    let stream = stream();
    let device = malloc(64);
    for offset in 0..5usize {
        for bytes in [0usize, 1, 2, 3, 4, 7, 9, 40] {
            // SAFETY: within the memory.
            unsafe {
                ok(hipMemsetAsync(device, 0x11, 64, stream));
                ok(hipMemsetAsync(
                    device.byte_add(offset),
                    0x2F3,
                    bytes,
                    stream,
                ));
            }
            let mut expected = [0x11; 64];
            expected[offset..offset + bytes].fill(0xF3);
            assert_eq!(
                download(device, 64, stream),
                expected,
                "{bytes} at {offset}"
            );
        }
    }
    ok(hipFree(device));
}

#[test]
fn memory_is_checked_before_anything_is_enqueued() {
    mock();
    let stream = stream();
    let device = malloc(4096);
    let mut host = [0u8; 64];
    let place: *mut c_void = host.as_mut_ptr().cast();
    // SAFETY: refused, or within bounds.
    unsafe {
        let copy =
            |to, from: *mut c_void, bytes, kind| hipMemcpyAsync(to, from, bytes, kind, stream);
        let invalid = "hipErrorInvalidValue";
        fails(
            copy(device.byte_add(4090), place, 16, HOST_TO_DEVICE),
            invalid,
        );
        fails(copy(place, device, 16, HOST_TO_DEVICE), invalid);
        fails(copy(device, null_mut(), 16, HOST_TO_DEVICE), invalid);
        fails(copy(device, place, 16, 9), "hipErrorInvalidMemcpyDirection");
        ok(copy(device, place, 0, HOST_TO_DEVICE));
        fails(hipMemsetAsync(device, 0, 4097, stream), invalid);
        fails(hipMemsetAsync(place, 0, 16, stream), invalid);
        fails(hipMalloc(null_mut(), 16), invalid);
        assert!(malloc(0).is_null());
        fails(hipMalloc(&mut null_mut(), 1 << 50), "hipErrorOutOfMemory");
        fails(hipFree(device.byte_add(64)), invalid);
        fails(hipHostFree(device), invalid);
        fails(hipHostMalloc(&mut null_mut(), 16, 8), invalid);
        fails(hipExtMallocWithFlags(&mut null_mut(), 16, 9), invalid);
    }
    ok(hipFree(null_mut()));
    ok(hipFree(device));
    fails(hipFree(device), "hipErrorInvalidValue");
    fails(hipStreamSynchronize(device), "hipErrorInvalidHandle");
}

#[test]
fn arguments_reach_a_kernel_at_their_offsets() {
    mock();
    let stream = stream();
    let scale = function(module(), "scale");
    let (mut out, mut input) = (malloc(256), malloc(1024));
    let values: Vec<u8> = (0..256u32).flat_map(|i| (i as f32).to_ne_bytes()).collect();
    upload(input, &values, stream);
    let mut dims = [10u32, 20, 30, 40, 50, 60, 3];
    let (mut step, mut by) = (2u8, 0.5f64);
    let mut params: [*mut c_void; 5] = [
        (&raw mut out).cast(),
        (&raw mut input).cast(),
        dims.as_mut_ptr().cast(),
        (&raw mut step).cast(),
        (&raw mut by).cast(),
    ];
    ok(launch(scale, 64, stream, &mut params));
    // They were read when the call returned.
    (step, by, dims) = (0, 0.0, [0; 7]);
    let _ = (step, by, dims);
    let result = words(&download(out, 256, stream));
    for (lane, bits) in result.into_iter().enumerate() {
        let expected = (63 - lane) as f32 + [10.0, 20.0, 30.0, 40.0, 50.0, 60.0][lane % 6] + 3.0;
        assert_eq!(f32::from_bits(bits), expected, "lane {lane}");
    }
    fails(launch(scale, 64, stream, &mut []), "hipErrorInvalidValue");
    params[2] = null_mut();
    fails(
        launch(scale, 64, stream, &mut params),
        "hipErrorInvalidValue",
    );
    ok(launch(function(module(), "nothing"), 64, stream, &mut []));
    ok(hipStreamSynchronize(stream));
    ok(hipFree(out));
    ok(hipFree(input));
}

#[test]
fn kernels_copies_and_fills_of_a_stream_come_in_order() {
    mock();
    let stream = stream();
    let add_to = function(module(), "scramble");
    let (first, second) = (malloc(256), malloc(256));
    // SAFETY: within the memory.
    unsafe {
        ok(hipMemsetAsync(first, 0, 256, stream));
        for round in 1..50u32 {
            add(add_to, first, 64, round, stream);
            add(add_to, first, 64, 1, stream);
            ok(hipMemcpyAsync(second, first, 256, DEVICE_TO_DEVICE, stream));
            add(add_to, second, 64, 1000, stream);
            ok(hipMemcpyAsync(first, second, 256, DEVICE_TO_DEVICE, stream));
        }
    }
    let expected = (1..50).map(|round| round + 1001).sum::<u32>();
    assert_eq!(words(&download(first, 256, stream)), [expected; 64]);
    ok(hipFree(first));
    ok(hipFree(second));
}

#[test]
fn streams_wait_for_events_and_events_have_times() {
    mock();
    let add_to = function(module(), "scramble");
    let streams: Vec<_> = (0..6).map(|_| stream()).collect();
    let numbers = malloc(256);
    let (start, stop) = (event(0), event(0));
    // SAFETY: within the memory.
    ok(unsafe { hipMemsetAsync(numbers, 0, 256, streams[0]) });
    ok(hipEventRecord(start, streams[0]));
    // More streams than queues, each behind the one before.
    for round in 0..20 {
        let (on, next) = (streams[round % 6], streams[(round + 1) % 6]);
        add(add_to, numbers, 64, round as u32, on);
        let done = event(2);
        ok(hipEventRecord(done, on));
        ok(hipStreamWaitEvent(next, done, 0));
        ok(hipEventDestroy(done));
    }
    let last = streams[20 % 6];
    ok(hipEventRecord(stop, last));
    ok(hipEventSynchronize(stop));
    ok(hipEventQuery(stop));
    assert_eq!(words(&download(numbers, 256, last)), [190; 64]);
    let mut milliseconds = -1.0;
    // SAFETY: the time is written.
    ok(unsafe { hipEventElapsedTime(&mut milliseconds, start, stop) });
    assert!(
        milliseconds > 0.0 && milliseconds < 60_000.0,
        "{milliseconds}"
    );
    let untimed = event(2);
    ok(hipEventRecord(untimed, last));
    // SAFETY: as above.
    let status = unsafe { hipEventElapsedTime(&mut milliseconds, start, untimed) };
    fails(status, "hipErrorInvalidHandle");
    // One that was never recorded is not waited for.
    ok(hipStreamWaitEvent(last, event(0), 0));
    ok(hipEventSynchronize(event(0)));
    for stream in streams {
        ok(hipStreamQuery(stream));
        ok(hipStreamDestroy(stream));
    }
    ok(hipFree(numbers));
}

#[test]
fn the_default_stream_and_blocking_streams_wait_for_each_other() {
    mock();
    let add_to = function(module(), "scramble");
    // SAFETY: the result is written.
    let blocking = made(|out| unsafe { hipStreamCreateWithFlags(out, 0) });
    let numbers = malloc(256);
    // SAFETY: within the memory.
    ok(unsafe { hipMemsetAsync(numbers, 0, 256, null_mut()) });
    for _ in 0..20 {
        add(add_to, numbers, 64, 1, blocking);
        // SAFETY: within the memory.
        ok(unsafe {
            hipMemcpyAsync(
                numbers,
                numbers.byte_add(128),
                128,
                DEVICE_TO_DEVICE,
                null_mut(),
            )
        });
        add(add_to, numbers, 64, 1, null_mut());
    }
    ok(hipStreamSynchronize(null_mut()));
    assert_eq!(words(&download(numbers, 256, null_mut())), [40; 64]);
    ok(hipStreamDestroy(blocking));
    ok(hipFree(numbers));
}

#[test]
fn a_graph_does_what_was_recorded_each_time() {
    mock();
    let (main, side) = (stream(), stream());
    let add_to = function(module(), "scramble");
    let numbers = malloc(256);
    // SAFETY: within the memory.
    unsafe {
        ok(hipMemsetAsync(numbers, 1, 256, main));
        ok(hipStreamBeginCapture(main, RELAXED));
        ok(hipMemsetAsync(numbers, 0, 256, main));
    }
    add(add_to, numbers, 64, 5, main);
    let fork = event(2);
    ok(hipEventRecord(fork, main));
    ok(hipStreamWaitEvent(side, fork, 0));
    add(add_to, numbers, 32, 1, side);
    fails(hipEventQuery(fork), "hipErrorCapturedEvent");
    // SAFETY: the handles are written.
    let graph = made(|out| unsafe { hipStreamEndCapture(main, out) });
    let exec = made(|out| unsafe { hipGraphInstantiate(out, graph, null_mut(), null_mut(), 0) });
    ok(hipGraphDestroy(graph));
    // Nothing has run so far.
    assert_eq!(words(&download(numbers, 4, main)), [0x0101_0101]);
    for _ in 0..3 {
        ok(hipGraphLaunch(exec, main));
        let result = words(&download(numbers, 256, main));
        assert_eq!((&result[..32], &result[32..]), (&[6; 32][..], &[5; 32][..]));
    }
    ok(hipGraphExecDestroy(exec));
    fails(hipGraphLaunch(exec, main), "hipErrorInvalidValue");
    ok(hipFree(numbers));
}

#[test]
fn waiting_spoils_a_capture() {
    mock();
    let stream = stream();
    fails(hipStreamBeginCapture(stream, 0), "hipErrorNotSupported");
    fails(
        hipStreamBeginCapture(null_mut(), RELAXED),
        "hipErrorStreamCaptureUnsupported",
    );
    ok(hipStreamBeginCapture(stream, RELAXED));
    fails(
        hipStreamBeginCapture(stream, RELAXED),
        "hipErrorIllegalState",
    );
    fails(
        hipStreamSynchronize(stream),
        "hipErrorStreamCaptureUnsupported",
    );
    let mut graph = null_mut();
    // SAFETY: the handle is written.
    let ended = unsafe { hipStreamEndCapture(stream, &mut graph) };
    fails(ended, "hipErrorStreamCaptureInvalidated");
    assert!(graph.is_null());
    ok(hipStreamSynchronize(stream));
}

#[test]
fn devices_reach_each_other() {
    mock();
    let bytes = 5 * MIB;
    let data = pattern(bytes, 3);
    let first = malloc(bytes);
    upload(first, &data, null_mut());
    ok(hipStreamSynchronize(null_mut()));
    ok(hipSetDevice(1));
    let second = malloc(bytes);
    let stream = stream();
    // SAFETY: both have as many bytes.
    ok(unsafe { hipMemcpyPeerAsync(second, 1, first, 0, bytes, stream) });
    assert!(download(second, bytes, stream) == data);
    let mut can = -1;
    // SAFETY: the answer is written.
    unsafe {
        ok(hipDeviceCanAccessPeer(&mut can, 1, 0));
        assert_eq!(can, 1);
        ok(hipDeviceCanAccessPeer(&mut can, 1, 1));
        assert_eq!(can, 0);
    }
    ok(hipDeviceEnablePeerAccess(0, 0));
    fails(
        hipDeviceEnablePeerAccess(0, 0),
        "hipErrorPeerAccessAlreadyEnabled",
    );
    fails(hipDeviceEnablePeerAccess(1, 0), "hipErrorInvalidDevice");
    // A kernel on the second device, in memory of the first that was there and in some that is new.
    let add_to = function(module(), "scramble");
    add(add_to, first, 64, 1, stream);
    ok(hipStreamSynchronize(stream));
    ok(hipSetDevice(0));
    let new = malloc(256);
    // SAFETY: within the memory.
    ok(unsafe { hipMemsetAsync(new, 0, 256, null_mut()) });
    let zeroed = event(2);
    ok(hipEventRecord(zeroed, null_mut()));
    ok(hipSetDevice(1));
    ok(hipStreamWaitEvent(stream, zeroed, 0));
    add(add_to, new, 64, 9, stream);
    assert_eq!(words(&download(new, 256, stream)), [9; 64]);
    let expected: Vec<u32> = words(&data[..256])
        .iter()
        .map(|word| word.wrapping_add(1))
        .collect();
    assert_eq!(words(&download(first, 256, stream)), expected);
    ok(hipSetDevice(0));
    for memory in [first, second, new] {
        ok(hipFree(memory));
    }
}

#[test]
fn what_is_no_object_or_kernel_is_told_apart() {
    mock();
    let load = |bytes: &[u8]| {
        let mut module = null_mut();
        // SAFETY: refused before more than the bytes is read.
        unsafe { hipModuleLoadData(&mut module, bytes.as_ptr().cast()) }
    };
    fails(load(b"no code object at all"), "hipErrorInvalidImage");
    let mut other = OBJECT.to_vec();
    // EF_AMDGPU_MACH of gfx942.
    other[48] = 0x4c;
    assert_ne!(load(&other), 0);
    // SAFETY: null is refused.
    fails(
        unsafe { hipModuleLoadData(&mut null_mut(), std::ptr::null()) },
        "hipErrorInvalidValue",
    );
    let module = module();
    // SAFETY: the name is a C string.
    let status = unsafe { hipModuleGetFunction(&mut null_mut(), module, c"absent".as_ptr()) };
    fails(status, "hipErrorNotFound");
    let nothing = function(module, "nothing");
    // Its blocks have 64 threads at most.
    assert_ne!(launch(nothing, 65, null_mut(), &mut []), 0);
    ok(hipModuleUnload(module));
    fails(hipModuleUnload(module), "hipErrorInvalidHandle");
    fails(
        launch(nothing, 64, null_mut(), &mut []),
        "hipErrorInvalidHandle",
    );
}
