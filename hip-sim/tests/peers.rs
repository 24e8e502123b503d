//! Devices that reach each other's memory: whether they may, and links that fail, are slow or give wrong data.

mod common;

use common::*;
use hip_sim::control::{hip_sim_inject, hip_sim_peers, hip_sim_wrong};
use hip_sim::hip::*;
use hip_sim::rocblas::*;
use std::ffi::{c_int, CStr};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

const INVALID_VALUE: c_int = 1;
const INVALID_DEVICE: c_int = 101;
const ILLEGAL_ADDRESS: c_int = 700;
const ALREADY_ENABLED: c_int = 704;
const NOT_ENABLED: c_int = 705;

/// Three devices with these links, of which device 0 is the thread's.
fn setup(links: &CStr) -> MutexGuard<'static, ()> {
    let turn = common::turn();
    std::env::set_var("HIP_SIM_ARCH", "gfx942,gfx1100,gfx942");
    std::env::set_var("HIP_SIM_MEMORY", "64M");
    ok(hipSetDevice(0));
    assert_eq!(unsafe { hip_sim_peers(links.as_ptr()) }, 0);
    take_reports();
    turn
}

fn can_access(device: c_int, peer: c_int) -> bool {
    let mut can = -1;
    ok(unsafe { hipDeviceCanAccessPeer(&mut can, device, peer) });
    can == 1
}

fn attribute(kind: c_int, device: c_int, peer: c_int) -> c_int {
    let mut value = -1;
    ok(unsafe { hipDeviceGetP2PAttribute(&mut value, kind, device, peer) });
    value
}

/// A buffer on another device than the thread's.
fn on<T: Copy>(device: c_int, data: &[T]) -> Buffer {
    ok(hipSetDevice(device));
    let buffer = Buffer::from_slice(data);
    ok(hipSetDevice(0));
    buffer
}

fn copy_to_peer(dst: &Buffer, device: c_int, src: &Buffer) -> c_int {
    unsafe { hipMemcpyPeerAsync(dst.ptr, device, src.ptr, 0, src.bytes, null_mut()) }
}

const COPY: &str = r#"
    extern "C" __global__ void copy(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
    extern "C" __global__ void indirect(float* const* table, int from, int to) {
        table[to][threadIdx.x] = table[from][threadIdx.x];
    }
    extern "C" __global__ void nontemporal(const float* x, float* y) {
        y[threadIdx.x] = __builtin_nontemporal_load(x + threadIdx.x);
    }"#;

#[test]
fn access_is_asked_for_enabled_and_taken_back() {
    let _turn = setup(c"all");
    assert!(can_access(0, 1) && can_access(2, 0) && !can_access(1, 1));
    assert_eq!((attribute(1, 0, 1), attribute(2, 0, 1)), (1, 1));
    let mut value = 0;
    unsafe {
        assert_eq!(
            hipDeviceGetP2PAttribute(&mut value, 1, 0, 0),
            INVALID_DEVICE
        );
        assert_eq!(hipDeviceGetP2PAttribute(&mut value, 9, 0, 1), INVALID_VALUE);
        assert_eq!(hipDeviceCanAccessPeer(&mut value, 0, 3), INVALID_DEVICE);
    }
    assert_eq!(hipDeviceEnablePeerAccess(1, 1), INVALID_VALUE);
    assert_eq!(hipDeviceEnablePeerAccess(0, 0), INVALID_DEVICE);
    assert_eq!(hipDeviceEnablePeerAccess(3, 0), INVALID_DEVICE);
    assert_eq!(hipDeviceEnablePeerAccess(1, 0), 0);
    assert_eq!(hipDeviceEnablePeerAccess(1, 0), ALREADY_ENABLED);
    assert_eq!(hipDeviceDisablePeerAccess(1), 0);
    assert_eq!(hipDeviceDisablePeerAccess(1), NOT_ENABLED);
}

#[test]
fn a_kernel_that_is_given_memory_without_access_is_not_run() {
    let _turn = setup(c"all");
    let (module, theirs) = (Module::new(COPY), on(1, &[3f32; 32]));
    let own = Buffer::from_slice(&[0f32; 32]);
    let mut args = [theirs.arg(), own.arg()];
    assert_eq!(
        module.try_launch("copy", 1, 32, 0, &mut args),
        ILLEGAL_ADDRESS
    );
    let reports = take_reports();
    assert!(
        reports.len() == 1
            && reports[0].contains("kernel copy")
            && reports[0].contains("on device 1, to which device 0 has no access"),
        "{reports:?}"
    );
    ok(hipDeviceEnablePeerAccess(1, 0));
    module.launch("copy", 1, 32, 0, &mut args);
    assert_eq!(own.to_vec::<f32>(), [3f32; 32]);
    // The other device has not got access by that.
    ok(hipSetDevice(1));
    let module = Module::new(COPY);
    let status = module.try_launch("copy", 1, 32, 0, &mut [own.arg(), theirs.arg()]);
    ok(hipSetDevice(0));
    assert_eq!((status, take_reports().len()), (ILLEGAL_ADDRESS, 1));
}

#[test]
fn a_product_of_memory_without_access_is_a_fault() {
    let _turn = setup(c"all");
    let (a, own) = (on(2, &[1f32; 16]), Buffer::from_slice(&[2f32; 16]));
    let mut handle = null_mut();
    let product = |handle| unsafe {
        let (p, one) = (own.ptr, &1f32);
        rocblas_sgemm(
            handle,
            111,
            111,
            4,
            4,
            4,
            one,
            a.ptr.cast(),
            4,
            p.cast(),
            4,
            &0f32,
            p.cast(),
            4,
        )
    };
    unsafe { assert_eq!(rocblas_create_handle(&mut handle), 0) };
    assert_ne!(product(handle), 0);
    assert!(take_reports()[0].contains("matrix A lies on device 2"));
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    ok(hipDeviceEnablePeerAccess(2, 0));
    assert_eq!(product(handle), 0);
    rocblas_destroy_handle(handle);
}

#[test]
fn links_are_as_they_were_asked_for() {
    let _turn = setup(c"0>1, 1-2, no-atomics");
    assert!(can_access(0, 1) && !can_access(1, 0) && can_access(2, 1) && !can_access(0, 2));
    assert_eq!((attribute(1, 0, 1), attribute(2, 0, 1)), (1, 0));
    assert_eq!(hipDeviceEnablePeerAccess(2, 0), INVALID_DEVICE);
    ok(hipDeviceEnablePeerAccess(1, 0));
    // Copies go through the host where there is no access.
    let (own, theirs) = (Buffer::from_slice(&[7u8; 16]), on(2, &[0u8; 16]));
    ok(copy_to_peer(&theirs, 2, &own));
    assert_eq!(theirs.to_vec::<u8>(), [7; 16]);
    assert_eq!(unsafe { hip_sim_peers(c"0-3".as_ptr()) }, 1);
    assert_eq!(unsafe { hip_sim_peers(c"none".as_ptr()) }, 0);
    assert!(!can_access(0, 1) && !can_access(1, 2));
}

#[test]
fn enabling_and_copies_fail_when_injected() {
    let _turn = setup(c"all");
    let inject = |kind: &CStr, nth| assert_eq!(unsafe { hip_sim_inject(kind.as_ptr(), nth) }, 0);
    inject(c"peer-enable", 1);
    assert_eq!(hipDeviceEnablePeerAccess(1, 0), 999);
    ok(hipDeviceEnablePeerAccess(1, 0));
    let (own, theirs) = (Buffer::from_slice(&[7u8; 16]), on(1, &[0u8; 16]));
    inject(c"peer-copy", 2);
    assert_eq!(own.to_vec::<u8>(), [7; 16], "copies to the host are others");
    let copies: Vec<c_int> = (0..3).map(|_| copy_to_peer(&theirs, 1, &own)).collect();
    assert_eq!(copies, [0, 999, 0]);
}

#[test]
fn a_slow_link_makes_copies_and_kernels_wait() {
    let _turn = setup(c"slow:0-1:50");
    ok(hipDeviceEnablePeerAccess(1, 0));
    ok(hipDeviceEnablePeerAccess(2, 0));
    let own = Buffer::from_slice(&[1f32; 32]);
    let (slow, fast) = (on(1, &[1f32; 32]), on(2, &[1f32; 32]));
    let module = Module::new(COPY);
    let took = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    assert!(took(&|| ok(copy_to_peer(&slow, 1, &own))) >= Duration::from_millis(50));
    let copy = |from: &Buffer| module.launch("copy", 1, 32, 0, &mut [from.arg(), own.arg()]);
    assert!(took(&|| copy(&slow)) >= Duration::from_millis(50));
    // No upper bound holds on a busy machine, but the best of some does not take the delay.
    let best = (0..20).map(|_| took(&|| copy(&fast))).min();
    assert!(best < Some(Duration::from_millis(50)));
}

#[test]
fn a_bad_link_gives_wrong_data() {
    let _turn = setup(c"all");
    ok(hipDeviceEnablePeerAccess(1, 0));
    ok(hipDeviceEnablePeerAccess(2, 0));
    let own = Buffer::from_slice(&[1f32; 32]);
    let (bad, good) = (on(1, &[1f32; 32]), on(2, &[1f32; 32]));
    let module = Module::new(COPY);
    assert_eq!(unsafe { hip_sim_wrong(c"link:0-1".as_ptr()) }, 0);
    let loaded = |from: &Buffer| {
        module.launch("nontemporal", 1, 32, 0, &mut [from.arg(), own.arg()]);
        own.to_vec::<f32>()
    };
    let (right, wrong) = (loaded(&good), loaded(&bad));
    assert!(
        right == [1f32; 32] && wrong.iter().all(|x| *x != 1.0),
        "{wrong:?}"
    );
    let own = Buffer::from_slice(&[1f32; 32]);
    ok(copy_to_peer(&good, 2, &own));
    ok(copy_to_peer(&bad, 1, &own));
    assert_eq!(unsafe { hip_sim_wrong(c"".as_ptr()) }, 0);
    assert_eq!(good.to_vec::<f32>(), [1f32; 32]);
    assert_ne!(bad.to_vec::<f32>(), [1f32; 32]);
}

#[test]
fn host_memory_is_pinned_with_flags_and_registered() {
    let _turn = setup(c"all");
    let (mut host, mut device) = (null_mut(), null_mut());
    unsafe {
        // Portable, mapped, coherent; then both coherent and not.
        ok(hipHostMalloc(&mut host, 64, 0x4000_0003));
        assert_eq!(hipHostMalloc(&mut device, 64, 0xC000_0000), INVALID_VALUE);
        assert_eq!(hipHostMalloc(&mut device, 64, 0x100), INVALID_VALUE);
        ok(hipHostGetDevicePointer(&mut device, host, 0));
        assert_eq!(device, host);
        let mut pages = vec![0f32; 32];
        let pages = pages.as_mut_ptr().cast();
        assert_eq!(
            hipHostGetDevicePointer(&mut device, pages, 0),
            INVALID_VALUE
        );
        ok(hipHostRegister(pages, 128, 3));
        ok(hipHostGetDevicePointer(&mut device, pages, 0));
        let x = Buffer::from_slice(&[5f32; 32]);
        Module::new(COPY).launch("copy", 1, 32, 0, &mut [x.arg(), Arg::Pointer(device)]);
        assert_eq!(
            std::slice::from_raw_parts(pages.cast::<f32>(), 32),
            [5f32; 32]
        );
        ok(hipHostUnregister(pages));
        ok(hipHostFree(host));
    }
}

#[test]
fn device_memory_of_every_kind_is_memory() {
    let _turn = setup(c"all");
    let mut pointer = null_mut();
    for (flags, bytes) in [(0, 100), (1, 100), (2, 8), (3, 100), (4, 100)] {
        ok(unsafe { hipExtMallocWithFlags(&mut pointer, bytes, flags) });
        ok(hipFree(pointer));
    }
    for (flags, bytes) in [(2, 16), (5, 100)] {
        let status = unsafe { hipExtMallocWithFlags(&mut pointer, bytes, flags) };
        assert_eq!(status, INVALID_VALUE);
    }
}

/// Runs a helper below in a process of its own.
fn run(helper: &str, variable: &str, value: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", helper, "--include-ignored"])
        .env(variable, value)
        .output()
        .unwrap();
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{log}");
}

#[test]
fn checks_find_accesses_that_no_argument_tells() {
    run("accesses_under_checks", "HIP_SIM_CHECK", "1");
}

#[test]
#[ignore = "helper process of the test above"]
fn accesses_under_checks() {
    if std::env::var_os("HIP_SIM_CHECK").is_none() {
        return;
    }
    let _turn = setup(c"all");
    let (own, theirs) = (Buffer::from_slice(&[1f32; 32]), on(1, &[2f32; 32]));
    let table = Buffer::from_slice(&[own.ptr as usize, theirs.ptr as usize]);
    let module = Module::new(COPY);
    let indirect = |from, to| {
        module.launch(
            "indirect",
            1,
            1,
            0,
            &mut [table.arg(), Arg::I32(from), Arg::I32(to)],
        );
        let reports = take_reports();
        (reports.len(), reports.first().cloned().unwrap_or_default())
    };
    let (count, report) = indirect(1, 0);
    assert!(
        count == 1 && report.contains("kernel indirect") && report.contains("reads 4 bytes"),
        "{report}"
    );
    assert!(
        report.contains("of 128 bytes on device 1, to which device 0 has no access"),
        "{report}"
    );
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    let (count, report) = indirect(0, 1);
    assert!(count == 1 && report.contains("writes 4 bytes"), "{report}");
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    ok(hipDeviceEnablePeerAccess(1, 0));
    assert_eq!(indirect(1, 0), (0, String::new()));
    // What the kernel wrote there is known to be written, and the end of the allocation is still its end.
    let fresh = on(1, &[0f32; 0]);
    assert!(fresh.ptr.is_null());
    ok(hipSetDevice(1));
    let fresh = Buffer::new(4);
    ok(hipSetDevice(0));
    module.launch("copy", 1, 1, 0, &mut [own.arg(), fresh.arg()]);
    fresh.to_vec::<f32>();
    assert_eq!(take_reports(), Vec::<String>::new());
    module.launch("copy", 1, 2, 0, &mut [own.arg(), fresh.arg()]);
    assert!(take_reports()[0].contains("writes 4 bytes out of bounds"));
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
    ok(hipDeviceDisablePeerAccess(1));
    assert_eq!(indirect(1, 0).0, 1);
    assert_eq!(hipDeviceSynchronize(), ILLEGAL_ADDRESS);
}

#[test]
fn plain_loads_over_a_bad_link_are_wrong_too() {
    run("loads_over_a_bad_link", "HIP_SIM_WRONG", "link:0-1");
}

#[test]
#[ignore = "helper process of the test above"]
fn loads_over_a_bad_link() {
    if std::env::var_os("HIP_SIM_WRONG").is_none() {
        return;
    }
    let _turn = setup(c"all");
    ok(hipDeviceEnablePeerAccess(1, 0));
    ok(hipDeviceEnablePeerAccess(2, 0));
    let own = Buffer::from_slice(&[0f32; 32]);
    let (bad, good) = (on(1, &[1f32; 32]), on(2, &[1f32; 32]));
    let module = Module::new(COPY);
    let loaded = |from: &Buffer| {
        module.launch("copy", 1, 32, 0, &mut [from.arg(), own.arg()]);
        own.to_vec::<f32>()
    };
    assert_eq!(loaded(&good), [1f32; 32]);
    assert!(loaded(&bad).iter().all(|x| *x != 1.0));
    // Stores arrive, and count as written.
    module.launch("copy", 1, 32, 0, &mut [good.arg(), bad.arg()]);
    bad.to_vec::<f32>();
    assert_eq!(take_reports(), Vec::<String>::new());
}
