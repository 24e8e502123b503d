//! `HIP_SIM_WRONG`: every fault makes wrong what it says, and nothing else. One test at a time: faults are global.

mod common;

use common::*;
use hip_sim::control::hip_sim_wrong;
use hip_sim::hip::*;
use hip_sim::rocblas::*;
use std::ffi::{c_int, CStr};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::MutexGuard;

const SIGABRT: i32 = 6;

/// Devices 0 (gfx942) to 3, and no fault.
fn setup(device: c_int) -> MutexGuard<'static, ()> {
    let turn = common::turn();
    std::env::set_var("HIP_SIM_ARCH", "gfx942,gfx1100,gfx1201,sm_90");
    std::env::set_var("HIP_SIM_MEMORY", "64M");
    wrong(c"");
    ok(hipSetDevice(device));
    take_reports();
    turn
}

#[track_caller]
fn wrong(faults: &CStr) {
    assert_eq!(unsafe { hip_sim_wrong(faults.as_ptr()) }, 0, "{faults:?}");
}

/// What `result` gives with a fault must differ from what it gives before and after.
#[track_caller]
fn differs<T: PartialEq + std::fmt::Debug>(faults: &CStr, result: impl Fn() -> T) -> T {
    let right = result();
    wrong(faults);
    let spoiled = result();
    wrong(c"");
    assert_ne!(spoiled, right, "{faults:?} changes nothing");
    assert_eq!(result(), right, "{faults:?} stays after it was turned off");
    spoiled
}

#[test]
fn an_unknown_fault_is_refused() {
    let _turn = setup(0);
    assert_eq!(unsafe { hip_sim_wrong(c"flipped".as_ptr()) }, 1);
    assert_eq!(unsafe { hip_sim_wrong(std::ptr::null()) }, 1);
}

/// As `candle-rocm-kernels/hip/target/host.h` uses the two.
const LANES: &str = r#"
    #if __HIP_SIM__
    extern "C" __global__ void fast(unsigned* out) {
        const unsigned lane = hip_sim_lane();
        out[lane] = (unsigned)hip_sim_wave_exchange(lane)[lane ^ 16u ^ hip_sim_flipped_lane()];
    }
    extern "C" __global__ void plain(unsigned* out) {
        const unsigned lane = hip_sim_lane();
        out[lane] = (unsigned)hip_sim_wave_exchange(lane)[lane ^ 16u];
    }
    extern "C" __global__ void inside_a_wave(unsigned* out) {
        __shared__ unsigned words[64];
        const unsigned lane = hip_sim_lane();
        words[lane] = 0;
        __syncthreads();
        words[lane] = lane + 1;
        if (!hip_sim_stale_lds()) hip_sim_wave_exchange(0);
        out[lane] = words[(lane + 1) % HIP_SIM_WAVE];
    }
    extern "C" __global__ void by_barrier(unsigned* out) {
        __shared__ unsigned words[64];
        const unsigned lane = hip_sim_lane();
        words[lane] = lane + 1;
        __syncthreads();
        out[lane] = words[(lane + 1) % HIP_SIM_WAVE];
    }
    #endif"#;

#[test]
fn lanes_are_flipped_in_fast_exchanges_only() {
    for (device, wave) in [(0, 64), (1, 32)] {
        let _turn = setup(device);
        let module = Module::new(LANES);
        let run = |name: &str| {
            let out = Buffer::new(4 * wave);
            module.launch(name, 1, wave as u32, 0, &mut [out.arg()]);
            out.to_vec::<u32>()
        };
        let expected: Vec<u32> = (0..wave as u32).map(|lane| lane ^ 16).collect();
        let beside: Vec<u32> = expected.iter().map(|lane| lane ^ 1).collect();
        assert_eq!(run("fast"), expected);
        assert_eq!(differs(c"flipped-lane", || run("fast")), beside);
        wrong(c"flipped-lane");
        assert_eq!(run("plain"), expected);
        wrong(c"");
    }
}

#[test]
fn shared_memory_is_stale_inside_a_wave_only() {
    for (device, wave) in [(0, 64), (1, 32)] {
        let _turn = setup(device);
        let module = Module::new(LANES);
        let run = |name: &str| {
            let out = Buffer::new(4 * wave);
            module.launch(name, 1, wave as u32, 0, &mut [out.arg()]);
            out.to_vec::<u32>()
        };
        let spoiled = differs(c"stale-lds", || run("inside_a_wave"));
        assert_eq!(spoiled[0], 0, "what lane 1 had written before");
        wrong(c"stale-lds");
        assert_eq!(run("by_barrier")[..3], [2, 3, 4]);
        wrong(c"");
    }
}

/// A product of zeros on top of sums that all differ, by the matrix instruction of an arch: the type of its operands, how
/// many sums a lane has, and the call.
fn product(operand: &str, sums: u32, call: &str) -> String {
    format!(
        r#"
        extern "C" __global__ void product(float* out) {{
            {operand} a = {{}}, b = {{}};
            hip_sim_f32x{sums} c;
            for (int i = 0; i < {sums}; ++i) c[i] = {sums} * threadIdx.x + i;
            c = {call};
            for (int i = 0; i < {sums}; ++i) out[{sums} * threadIdx.x + i] = c[i];
        }}"#
    )
}

#[test]
fn matrix_instructions_of_every_arch_leave_their_sums_elsewhere() {
    let mfma = "__builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0)";
    let gfx11 = "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c)";
    let gfx12 = "__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c)";
    let mma = "hip_sim_mma_f16(a, hip_sim_i32x2{}, c)";
    for (device, wave, operand, sums, call) in [
        (0, 64, "hip_sim_i16x4", 4, mfma),
        (1, 32, "hip_sim_i16x16", 8, gfx11),
        (2, 32, "hip_sim_i16x8", 8, gfx12),
        (3, 32, "hip_sim_i32x4", 4, mma),
    ] {
        let _turn = setup(device);
        let module = Module::new(&product(operand, sums, call));
        let run = || {
            let out = Buffer::new((4 * sums * wave) as usize);
            module.launch("product", 1, wave, 0, &mut [out.arg()]);
            out.to_vec::<f32>()
        };
        let right: Vec<f32> = (0..sums * wave).map(|i| i as f32).collect();
        assert_eq!(run(), right);
        let mut spoiled = differs(c"matrix-layout", run);
        spoiled.sort_by(f32::total_cmp);
        assert_eq!(spoiled, right, "the same sums in other places");
    }
}

const FILL: &str = r#"
    extern "C" __global__ void fill_ones(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
    extern "C" __global__ void add_one(int* x) { x[blockIdx.x * blockDim.x + threadIdx.x] += 1; }"#;

#[test]
fn kernels_whose_name_fits_leave_out_their_last_block() {
    let _turn = setup(0);
    let module = Module::new(FILL);
    let run = |grid: u32| {
        let x = Buffer::from_slice(&vec![5i32; 4 * grid as usize]);
        module.launch("fill_ones", grid, 4, 0, &mut [x.arg()]);
        x.to_vec::<i32>()
    };
    assert_eq!(differs(c"kernel:fill*", || run(1)), [5; 4]);
    let spoiled = differs(c"kernel:*_ones", || run(3));
    assert_eq!(spoiled, [1, 1, 1, 1, 1, 1, 1, 1, 5, 5, 5, 5]);
    wrong(c"kernel:add*");
    assert_eq!(run(1), [1; 4]);
    wrong(c"");
}

/// A 2x2 product of ones in f32, with `b` transposed or not.
fn ones(transposed: bool) -> Vec<f32> {
    let (a, b, c) = (
        Buffer::from_slice(&[1f32; 4]),
        Buffer::from_slice(&[1f32; 4]),
        Buffer::new(16),
    );
    let (one, zero, mut handle) = (1f32, 0f32, null_mut());
    let ops = if transposed { 112 } else { 111 };
    let (alpha, beta): (*const f32, *const f32) = (&one, &zero);
    unsafe {
        ok(rocblas_create_handle(&mut handle));
        ok(rocblas_sgemm(
            handle,
            111,
            ops,
            2,
            2,
            2,
            alpha,
            a.ptr.cast(),
            2,
            b.ptr.cast(),
            2,
            beta,
            c.ptr.cast(),
            2,
        ));
    }
    ok(rocblas_destroy_handle(handle));
    c.to_vec()
}

#[test]
fn products_have_a_wrong_element() {
    let _turn = setup(0);
    assert_eq!(differs(c"blas:f32", || ones(false)), [2.0, 2.0, 2.0, 5.0]);
    differs(c"blas:f32:nt", || ones(true));
    wrong(c"blas:f32:nt,blas:f16");
    assert_eq!(ones(false), [2.0; 4]);
    wrong(c"");
}

#[test]
fn replays_of_a_graph_leave_out_their_last_kernel() {
    let _turn = setup(0);
    let module = Module::new(FILL);
    let (mut stream, mut graph, mut exec) = (null_mut(), null_mut(), null_mut());
    let x = Buffer::from_slice(&[5i32; 4]);
    ok(unsafe { hipStreamCreateWithFlags(&mut stream, 1) });
    ok(hipStreamBeginCapture(stream, 2));
    let on = |name: &str| {
        let f = module.function(name);
        ok(launch_on(f, [1; 3], [4, 1, 1], 0, stream, &mut [x.arg()]));
    };
    on("fill_ones");
    on("add_one");
    ok(unsafe { hipStreamEndCapture(stream, &mut graph) });
    ok(unsafe { hipGraphInstantiate(&mut exec, graph, null_mut(), null_mut(), 0) });
    let run = || {
        ok(hipGraphLaunch(exec, stream));
        ok(hipStreamSynchronize(stream));
        x.to_vec::<i32>()
    };
    assert_eq!(run(), [2; 4]);
    assert_eq!(differs(c"graph", run), [1; 4]);
    // Launches are right.
    wrong(c"graph");
    on("add_one");
    assert_eq!(x.to_vec::<i32>(), [3; 4]);
    wrong(c"");
    ok(hipGraphExecDestroy(exec));
    ok(hipGraphDestroy(graph));
    ok(hipStreamDestroy(stream));
}

/// Where two lists differ.
fn places(a: &[u32], b: &[u32]) -> Vec<usize> {
    (0..a.len()).filter(|i| a[*i] != b[*i]).collect()
}

#[test]
fn long_copies_have_a_wrong_word_in_one_direction() {
    let _turn = setup(0);
    let n = (1 << 18) + 1;
    let data: Vec<u32> = (0..n as u32).collect();
    let copied = |words: usize, peer: bool| {
        let a = Buffer::from_slice(&data[..words]);
        ok(hipSetDevice(peer as c_int));
        let b = Buffer::new(4 * words);
        ok(hipSetDevice(0));
        ok(match peer {
            true => unsafe { hipMemcpyPeerAsync(b.ptr, 1, a.ptr, 0, a.bytes, null_mut()) },
            false => unsafe { hipMemcpyDtoD(b.ptr, a.ptr, a.bytes) },
        });
        b.to_vec::<u32>()
    };
    for (faults, peer) in [
        (c"copy:h2d", false),
        (c"copy:d2h", false),
        (c"copy:d2d", false),
        (c"copy:peer", true),
    ] {
        let spoiled = differs(faults, || copied(n, peer));
        assert_eq!(places(&spoiled, &data), [n / 2], "{faults:?}");
        wrong(faults);
        assert_eq!(copied(n - 1, peer), data[..n - 1], "short copies are right");
        wrong(c"");
    }
    wrong(c"copy:peer");
    assert_eq!(copied(n, false), data);
    wrong(c"copy:d2d");
    assert_eq!(copied(n, true), data);
    wrong(c"");
}

#[test]
fn a_word_of_memory_has_a_stuck_bit() {
    let _turn = setup(0);
    let buffer = Buffer::new(16);
    // Allocations of the other tests are gone: this one is the first, wherever the heap begins.
    let zeros = || {
        ok(unsafe { hipMemset(buffer.ptr, 0, 16) });
        buffer.to_vec::<u32>()
    };
    let spoiled = differs(c"vram:264", zeros);
    assert_eq!(spoiled, [0, 0, 1, 0]);
    wrong(c"vram:264");
    ok(hipDeviceSynchronize());
    wrong(c"");
    guards_intact();
}

/// Runs an ignored test of this file with faults; its output and the signal that ended it.
fn child(test: &str, faults: &str) -> (String, Option<i32>) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--include-ignored", "--nocapture"])
        .env("HIP_SIM_WRONG", faults)
        .env("HIP_SIM_ARCH", "gfx1036")
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (log, output.status.signal())
}

#[test]
fn a_launch_or_a_product_ends_the_process() {
    let (log, signal) = child("launches_twice", "abort:2");
    assert_eq!(signal, Some(SIGABRT), "{log}");
    assert!(
        log.contains("launched 1") && !log.contains("launched 2"),
        "{log}"
    );
    assert!(log.contains("Memory access fault"), "{log}");
    let (log, signal) = child("launches_twice", "abort:3");
    assert!(signal.is_none() && log.contains("launched 2"), "{log}");
    let (log, signal) = child("multiplies", "blas-abort");
    assert_eq!(signal, Some(SIGABRT), "{log}");
    assert!(log.contains("for GPU arch : gfx1036"), "{log}");
    assert_eq!(child("multiplies", "").1, None);
}

#[test]
#[ignore = "helper process of the test above"]
fn launches_twice() {
    if std::env::var_os("HIP_SIM_WRONG").is_none() {
        return;
    }
    let module = Module::new(FILL);
    let x = Buffer::from_slice(&[0i32; 4]);
    for i in 1..3 {
        module.launch("fill_ones", 1, 4, 0, &mut [x.arg()]);
        eprintln!("launched {i}");
    }
}

#[test]
#[ignore = "helper process of the test above"]
fn multiplies() {
    if std::env::var_os("HIP_SIM_WRONG").is_some() {
        assert_eq!(ones(false), [2.0; 4]);
    }
}
