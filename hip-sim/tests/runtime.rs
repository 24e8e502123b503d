//! Memory, failures, streams, events, graphs and modules. One test at a time: injected failures and limits are global.

mod common;

use common::*;
use hip_sim::control::{hip_sim_inject, hip_sim_reset_counters, hip_sim_set_memory_limit};
use hip_sim::hip::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::MutexGuard;

const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const INVALID_CONFIGURATION: i32 = 9;
const NO_BINARY_FOR_GPU: i32 = 209;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_ADDRESS: i32 = 700;
const LAUNCH_FAILURE: i32 = 719;
const CAPTURE_UNSUPPORTED: i32 = 900;
const CAPTURE_INVALIDATED: i32 = 901;
const CAPTURE_IMPLICIT: i32 = 906;

fn setup() -> MutexGuard<'static, ()> {
    let turn = common::turn();
    std::env::set_var("HIP_SIM_ARCH", "gfx942,gfx1100");
    std::env::set_var("HIP_SIM_MEMORY", "64M");
    ok(hipSetDevice(0));
    take_reports();
    turn
}

fn inject(kind: &std::ffi::CStr, nth: u64) {
    assert_eq!(unsafe { hip_sim_inject(kind.as_ptr(), nth) }, 0);
}

const SOURCE: &str = r#"
    __device__ int state[4] = {1, 2, 3, 4};
    extern "C" __global__ void add_one(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1.0f;
    }
    extern "C" __global__ void poke(unsigned char* x, int at) { x[at] = 0; }
    extern "C" __global__ void use_state(int* out) { out[threadIdx.x] = state[threadIdx.x]; }
    extern "C" __global__ void diverge(int* x) {
        if (threadIdx.x < 8) { __syncthreads(); x[0] = 1; } else { x[threadIdx.x] = __shfl_xor(x[0], 1); }
    }
    extern "C" __global__ void two_barriers(int* x) {
        if (threadIdx.x == 0) {
            __syncthreads();
        } else {
            __syncthreads();
        }
    }
    extern "C" __global__ void early_exit(int* x) {
        if (threadIdx.x >= 70) return;
        __syncthreads();
        x[threadIdx.x] = 1;
    }"#;

fn stream() -> hipStream_t {
    let mut stream = null_mut();
    ok(unsafe { hipStreamCreateWithFlags(&mut stream, 1) });
    stream
}

#[test]
fn memory_can_be_filled_and_used_again() {
    let _turn = setup();
    hip_sim_reset_counters();
    let (mut free, mut total) = (0, 0);
    ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
    assert_eq!((free, total), (64 << 20, 64 << 20));
    let first = Buffer::new(40 << 20);
    let mut second = null_mut();
    assert_eq!(unsafe { hipMalloc(&mut second, 40 << 20) }, OUT_OF_MEMORY);
    assert_eq!((hipGetLastError(), hipGetLastError()), (OUT_OF_MEMORY, 0));
    drop(first);
    let again = Buffer::new(64 << 20);
    ok(unsafe { hipMemGetInfo(&mut free, &mut total) });
    assert_eq!(free, 0);
    drop(again);
    assert_eq!(hip_sim_set_memory_limit(0, 1 << 20), 0);
    assert_eq!(unsafe { hipMalloc(&mut second, 2 << 20) }, OUT_OF_MEMORY);
    assert_eq!(hip_sim_set_memory_limit(0, 64 << 20), 0);
    let counters = counters();
    assert_eq!(
        (
            counters.mallocs,
            counters.frees,
            counters.live_bytes,
            counters.peak_bytes
        ),
        (2, 2, 0, 64 << 20)
    );
}

#[test]
fn fresh_memory_is_poisoned_and_frees_are_checked() {
    let _turn = setup();
    let buffer = Buffer::new(16);
    assert!(buffer.to_vec::<f32>().iter().all(|v| v.is_nan()));
    assert_eq!(hipFree(buffer.ptr.wrapping_byte_add(4)), INVALID_VALUE);
    let address = buffer.ptr;
    drop(buffer);
    assert_eq!(hipFree(address), INVALID_VALUE);
    ok(hipFree(null_mut()));
}

#[test]
fn overwritten_guard_zones_are_found() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let buffer = Buffer::new(100);
    module.launch("poke", 1, 1, 0, &mut [buffer.arg(), Arg::I32(101)]);
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    let reports = take_reports();
    assert!(
        reports[0].contains("guard zone overwritten at byte 101") && reports[0].contains("poke"),
        "{reports:?}"
    );
    assert_eq!(hipDeviceSynchronize(), 0);
    module.launch("poke", 1, 1, 0, &mut [buffer.arg(), Arg::I32(-1)]);
    assert_eq!(hipFree(buffer.ptr), ILLEGAL_ADDRESS);
    assert!(take_reports()[0].contains("at byte -1"));
    std::mem::forget(buffer);
}

#[test]
fn copies_refuse_the_wrong_side_and_the_wrong_size() {
    let _turn = setup();
    let (a, b) = (Buffer::from_slice(&[1u8; 64]), Buffer::new(64));
    let mut host = [0u8; 128];
    let host: *mut c_void = host.as_mut_ptr().cast();
    unsafe {
        assert_eq!(hipMemcpy(host, a.ptr, 64, 1), INVALID_VALUE);
        assert_eq!(hipMemcpy(a.ptr, host, 64, 2), INVALID_VALUE);
        assert_eq!(hipMemcpy(host, a.ptr, 65, 2), INVALID_VALUE);
        assert_eq!(hipMemcpy(b.ptr, a.ptr, 64, 9), 21);
        assert_eq!(hipMemset(host, 0, 4), INVALID_VALUE);
        ok(hipMemcpy(b.ptr, a.ptr, 64, 4));
        ok(hipMemsetD32Async(a.ptr, 0x01020304, 2, null_mut()));
        ok(hipMemcpyDtoHAsync(host, a.ptr, 8, null_mut()));
        assert_eq!(
            std::slice::from_raw_parts(host.cast::<u8>(), 8),
            [4, 3, 2, 1, 4, 3, 2, 1]
        );
        let mut pinned = null_mut();
        ok(hipHostMalloc(&mut pinned, 64, 0));
        ok(hipMemcpyAsync(pinned, b.ptr, 64, 2, null_mut()));
        assert_eq!(*pinned.cast::<u8>().add(63), 1);
        ok(hipHostFree(pinned));
        assert_eq!(hipHostFree(pinned), INVALID_VALUE);
    }
    assert_eq!(b.to_vec::<u8>(), [1u8; 64]);
    assert_eq!(take_reports().len(), 4);
}

#[test]
fn injected_failures_hit_the_nth_call() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let x = Buffer::from_slice(&[0f32; 4]);
    let mut pointer = null_mut();
    inject(c"malloc", 2);
    ok(unsafe { hipMalloc(&mut pointer, 4) });
    ok(hipFree(pointer));
    assert_eq!(unsafe { hipMalloc(&mut pointer, 4) }, OUT_OF_MEMORY);
    inject(c"launch", 1);
    assert_eq!(
        module.try_launch("add_one", 1, 4, 0, &mut [x.arg(), Arg::I32(4)]),
        LAUNCH_FAILURE
    );
    module.launch("add_one", 1, 4, 0, &mut [x.arg(), Arg::I32(4)]);
    inject(c"copy", 1);
    assert_eq!(unsafe { hipMemset(x.ptr, 0, 4) }, 999);
    inject(c"lost", 1);
    assert_eq!(
        (hipDeviceSynchronize(), hipDeviceSynchronize()),
        (LAUNCH_FAILURE, LAUNCH_FAILURE)
    );
    ok(hipDeviceReset());
    ok(hipDeviceSynchronize());
    assert_eq!(x.to_vec::<f32>(), [1f32; 4]);
}

#[test]
fn launch_configurations_are_checked() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let x = Buffer::from_slice(&[0f32; 4]);
    let f = module.function("add_one");
    let launch =
        |grid, block| launch_on(f, grid, block, 0, null_mut(), &mut [x.arg(), Arg::I32(4)]);
    assert_eq!(launch([0, 1, 1], [64, 1, 1]), INVALID_CONFIGURATION);
    assert_eq!(launch([1, 1, 1], [0, 1, 1]), INVALID_CONFIGURATION);
    assert_eq!(launch([1, 1, 1], [1025, 1, 1]), INVALID_CONFIGURATION);
    assert_eq!(launch([1, 1, 1], [32, 32, 2]), INVALID_CONFIGURATION);
    assert_eq!(launch([1, 70_000, 1], [1, 1, 1]), INVALID_CONFIGURATION);
    assert_eq!(launch([1 << 22, 1, 1], [1024, 1, 1]), INVALID_CONFIGURATION);
    unsafe {
        // No arguments at all, then the packed form: too short, and right.
        assert_eq!(
            hipModuleLaunchKernel(f, 1, 1, 1, 4, 1, 1, 0, null_mut(), null_mut(), null_mut()),
            INVALID_VALUE
        );
        let mut packed = (x.ptr, 4i32);
        for (mut bytes, status) in [(8usize, INVALID_VALUE), (12, 0)] {
            let key = |k: usize| k as *mut c_void;
            let mut extra = [
                key(1),
                (&raw mut packed).cast(),
                key(2),
                (&raw mut bytes).cast(),
                key(3),
            ];
            assert_eq!(
                hipModuleLaunchKernel(
                    f,
                    1,
                    1,
                    1,
                    4,
                    1,
                    1,
                    0,
                    null_mut(),
                    null_mut(),
                    extra.as_mut_ptr()
                ),
                status
            );
        }
    }
    assert_eq!(x.to_vec::<f32>(), [1f32; 4]);
}

#[test]
fn blocks_that_can_never_end_are_reported() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let x = Buffer::from_slice(&[0i32; 128]);
    assert_eq!(
        module.try_launch("diverge", 1, 64, 0, &mut [x.arg()]),
        LAUNCH_FAILURE
    );
    let reports = take_reports();
    assert!(
        reports[0].contains("kernel diverge") && reports[0].contains("wave operation"),
        "{reports:?}"
    );
    assert_eq!(
        module.try_launch("two_barriers", 1, 64, 0, &mut [x.arg()]),
        LAUNCH_FAILURE
    );
    let reports = take_reports();
    assert!(
        reports[0].contains("kernel two_barriers")
            && reports[0].contains("different __syncthreads"),
        "{reports:?}"
    );
    // Threads that have left do not hold the others up, and the runner works on after an aborted block.
    module.launch("early_exit", 1, 128, 0, &mut [x.arg()]);
    assert_eq!(x.to_vec::<i32>()[1..].iter().sum::<i32>(), 69);
}

#[test]
fn modules_belong_to_their_architecture_and_handles_end() {
    let _turn = setup();
    let code = compile(SOURCE, "gfx1100").unwrap();
    let mut module = null_mut();
    assert_eq!(
        unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) },
        NO_BINARY_FOR_GPU
    );
    assert_eq!(
        unsafe { hipModuleLoadData(&mut module, b"garbage, no ELF file".as_ptr().cast()) },
        200
    );
    let module = Module::new(SOURCE);
    let mut function = null_mut();
    assert_eq!(
        unsafe { hipModuleGetFunction(&mut function, module.0, c"missing".as_ptr()) },
        500
    );
    let f = module.function("add_one");
    ok(hipModuleUnload(module.0));
    assert_eq!(
        launch_on(
            f,
            [1, 1, 1],
            [1, 1, 1],
            0,
            null_mut(),
            &mut [Arg::Pointer(null_mut()), Arg::I32(0)]
        ),
        INVALID_HANDLE
    );
    assert_eq!(hipModuleUnload(module.0), INVALID_HANDLE);
}

#[test]
fn module_variables_are_device_memory() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let (mut pointer, mut bytes) = (null_mut(), 0);
    ok(unsafe { hipModuleGetGlobal(&mut pointer, &mut bytes, module.0, c"state".as_ptr()) });
    assert_eq!(bytes, 16);
    ok(unsafe { hipMemcpy(pointer, [5i32, 6, 7, 8].as_ptr().cast(), 16, 1) });
    let out = Buffer::new(16);
    module.launch("use_state", 1, 4, 0, &mut [out.arg()]);
    assert_eq!(out.to_vec::<i32>(), [5, 6, 7, 8]);
}

#[test]
fn compile_errors_come_with_the_users_line() {
    let _turn = setup();
    let log = compile(
        "\nextern \"C\" __global__ void broken(float* x) {\n    x[0] = undefined_name;\n}",
        "gfx942",
    )
    .unwrap_err();
    assert!(
        log.contains("test.hip:3:") && log.contains("undefined_name"),
        "{log}"
    );
    assert!(compile("", "gfx1")
        .unwrap_err()
        .contains("invalid target ID"));
}

#[test]
fn a_captured_graph_replays_with_its_arguments() {
    let _turn = setup();
    let module = Module::new(SOURCE);
    let (x, y) = (
        Buffer::from_slice(&[0f32; 8]),
        Buffer::from_slice(&[0f32; 8]),
    );
    let stream = stream();
    let f = module.function("add_one");
    let (mut graph, mut exec, mut status, mut nodes) = (null_mut(), null_mut(), 0, 0);
    ok(hipStreamBeginCapture(stream, 0));
    ok(unsafe { hipStreamIsCapturing(stream, &mut status) });
    assert_eq!(status, 1);
    ok(unsafe { hipMemsetAsync(y.ptr, 0, 32, stream) });
    ok(launch_on(
        f,
        [1, 1, 1],
        [8, 1, 1],
        0,
        stream,
        &mut [x.arg(), Arg::I32(8)],
    ));
    ok(unsafe { hipMemcpyAsync(y.ptr, x.ptr, 16, 3, stream) });
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    // Nothing ran while it was captured.
    assert_eq!(x.to_vec::<f32>(), [0f32; 8]);
    ok(unsafe { hipGraphGetNodes(graph, null_mut(), &mut nodes) });
    assert_eq!(nodes, 3);
    ok(unsafe { hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0) });
    ok(hipGraphDestroy(graph));
    let before = counters();
    for _ in 0..3 {
        ok(hipGraphLaunch(exec, stream));
    }
    ok(hipStreamSynchronize(stream));
    let after = counters();
    assert_eq!(
        (after.graphs - before.graphs, after.calls - before.calls),
        (3, 4)
    );
    assert_eq!(x.to_vec::<f32>(), [3f32; 8]);
    assert_eq!(y.to_vec::<f32>(), [3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    ok(hipGraphExecDestroy(exec));
    assert_eq!(hipGraphLaunch(exec, stream), INVALID_VALUE);
    ok(hipStreamDestroy(stream));
    assert_eq!(hipStreamSynchronize(stream), INVALID_HANDLE);
}

extern "C" fn device_synchronize(_: hipStream_t) -> i32 {
    hipDeviceSynchronize()
}

#[test]
fn what_a_capture_forbids_spoils_it() {
    let _turn = setup();
    let stream = stream();
    let (mut graph, mut pointer) = (null_mut(), null_mut());
    for forbidden in [0, 1, 2] {
        ok(hipStreamBeginCapture(stream, 0));
        let status = match forbidden {
            0 => unsafe { hipMalloc(&mut pointer, 4) },
            1 => hipStreamSynchronize(stream),
            _ => hipDeviceSynchronize(),
        };
        assert_eq!(status, CAPTURE_UNSUPPORTED);
        assert_eq!(
            unsafe { hipStreamEndCapture(stream, &mut graph) },
            CAPTURE_INVALIDATED
        );
    }
    // Whatever the mode, nobody may wait for what is being captured.
    let waits: [extern "C" fn(hipStream_t) -> i32; 3] =
        [hipStreamSynchronize, hipStreamQuery, device_synchronize];
    for wait in waits {
        ok(hipStreamBeginCapture(stream, 2));
        assert_eq!(wait(stream), CAPTURE_UNSUPPORTED);
        assert_eq!(
            unsafe { hipStreamEndCapture(stream, &mut graph) },
            CAPTURE_INVALIDATED
        );
    }
    // Another thread may allocate during a thread-local capture; this one may during a relaxed one.
    ok(hipStreamBeginCapture(stream, 1));
    std::thread::spawn(|| drop(Buffer::new(4))).join().unwrap();
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(hipGraphDestroy(graph));
    ok(hipStreamBeginCapture(stream, 2));
    drop(Buffer::new(4));
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(hipGraphDestroy(graph));
    ok(hipStreamDestroy(stream));
    // The default stream may not be used while a stream that waits for it is captured.
    let mut blocking = null_mut();
    ok(unsafe { hipStreamCreate(&mut blocking) });
    let x = Buffer::new(4);
    ok(hipStreamBeginCapture(blocking, 0));
    assert_eq!(
        unsafe { hipMemsetAsync(x.ptr, 0, 4, null_mut()) },
        CAPTURE_IMPLICIT
    );
    assert_eq!(
        unsafe { hipStreamEndCapture(blocking, &mut graph) },
        CAPTURE_INVALIDATED
    );
    ok(hipStreamDestroy(blocking));
}

#[test]
fn events_join_streams_and_tell_time() {
    let _turn = setup();
    let (first, second) = (stream(), stream());
    let (mut start, mut stop, mut untimed) = (null_mut(), null_mut(), null_mut());
    unsafe {
        ok(hipEventCreate(&mut start));
        ok(hipEventCreate(&mut stop));
        ok(hipEventCreateWithFlags(&mut untimed, 2));
        ok(hipEventRecord(start, first));
        std::thread::sleep(std::time::Duration::from_millis(5));
        ok(hipEventRecord(stop, second));
        let mut elapsed = 0.0;
        ok(hipEventElapsedTime(&mut elapsed, start, stop));
        assert!(elapsed >= 5.0);
        ok(hipEventRecord(untimed, first));
        assert_eq!(
            hipEventElapsedTime(&mut elapsed, untimed, stop),
            INVALID_HANDLE
        );
        // A stream that waits for an event of a captured stream is captured with it.
        let x = Buffer::from_slice(&[7u8; 4]);
        ok(hipStreamBeginCapture(first, 1));
        ok(hipEventRecord(start, first));
        ok(hipStreamWaitEvent(second, start, 0));
        ok(hipMemsetAsync(x.ptr, 0, 4, second));
        let mut graph = null_mut();
        ok(hipStreamEndCapture(first, &mut graph));
        ok(hipGraphDestroy(graph));
        assert_eq!(x.to_vec::<u8>(), [7u8; 4]);
        ok(hipMemsetAsync(x.ptr, 0, 4, second));
        assert_eq!(x.to_vec::<u8>(), [0u8; 4]);
    }
    for event in [start, stop, untimed] {
        ok(hipEventDestroy(event));
    }
    ok(hipStreamDestroy(first));
    ok(hipStreamDestroy(second));
}

#[test]
fn host_threads_share_the_devices() {
    let _turn = setup();
    let source = SOURCE.to_string();
    let threads: Vec<_> = (0..8)
        .map(|t| {
            let source = source.clone();
            std::thread::spawn(move || {
                ok(hipSetDevice(t % 2));
                let module = Module::new(&source);
                let stream = stream();
                let n = 20_000usize;
                let x = Buffer::from_slice(&vec![0f32; n]);
                let f = module.function("add_one");
                for _ in 0..50 {
                    ok(launch_on(
                        f,
                        [n.div_ceil(256) as u32, 1, 1],
                        [256, 1, 1],
                        0,
                        stream,
                        &mut [x.arg(), Arg::I32(n as i32)],
                    ));
                }
                ok(hipStreamSynchronize(stream));
                assert!(x.to_vec::<f32>().iter().all(|v| *v == 50.0));
                ok(hipStreamDestroy(stream));
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    guards_intact();
}

#[test]
fn a_kernel_that_crashes_the_process_is_named() {
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crashes_in_a_kernel",
            "--include-ignored",
            "--nocapture",
        ])
        .env("HIP_SIM_TEST_CRASH", "1")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("hip-sim: kernel poke: access to address 0x0000000000000010"),
        "{log}"
    );
    assert!(!output.status.success());
}

#[test]
#[ignore = "helper process of the test above"]
fn crashes_in_a_kernel() {
    if std::env::var_os("HIP_SIM_TEST_CRASH").is_some() {
        Module::new(SOURCE).launch(
            "poke",
            1,
            1,
            0,
            &mut [Arg::Pointer(null_mut()), Arg::I32(16)],
        );
    }
}

#[test]
fn devices_copy_to_each_other() {
    let _turn = setup();
    let a = Buffer::from_slice(&[9u8; 16]);
    ok(hipSetDevice(1));
    assert_eq!(arch(), "gfx1100");
    let (b, mut can) = (Buffer::new(16), 0);
    unsafe {
        ok(hipDeviceCanAccessPeer(&mut can, 0, 1));
        ok(hipMemcpyPeerAsync(b.ptr, 1, a.ptr, 0, 16, null_mut()));
        assert_eq!(
            hipMemcpyPeerAsync(b.ptr, 0, a.ptr, 1, 16, null_mut()),
            INVALID_VALUE
        );
    }
    assert_eq!((can, b.to_vec::<u8>()), (1, vec![9u8; 16]));
    assert_eq!(hipSetDevice(2), 101);
}
