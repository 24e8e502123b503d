//! The shared library as programs see it: installed under ROCm's names, loaded at run time, and reached by the client.

use hip_sim::client::{Client, Failure};
use hip_sim::install::{find_library, install};
use libloading::Library;
use std::ffi::{c_char, c_int, c_void, CStr};
use std::process::Command;

#[test]
fn installed_names_are_one_library_with_one_state() {
    let library = find_library(&std::env::current_exe().unwrap()).unwrap();
    let root = tempfile::tempdir().unwrap();
    install(&library, root.path()).unwrap();
    install(&library, root.path()).unwrap();
    std::env::set_var("ROCM_PATH", root.path());
    assert!(Client::find().is_none(), "nothing is loaded yet");
    let load = |name: &str| unsafe { Library::new(root.path().join("lib").join(name)).unwrap() };
    let (hip, blas, rtc, rccl) = (
        load("libamdhip64.so.7"),
        load("librocblas.so.5"),
        load("libhiprtc.so.7"),
        load("librccl.so.1"),
    );
    type Malloc = unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int;
    type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
    type Text = unsafe extern "C" fn(c_int) -> *const c_char;
    unsafe {
        let malloc = hip.get::<Malloc>(b"hipMalloc").unwrap();
        let create = blas.get::<Create>(b"rocblas_create_handle").unwrap();
        let name = hip.get::<Text>(b"hipGetErrorName").unwrap();
        let text = rtc.get::<Text>(b"hiprtcGetErrorString").unwrap();
        type InitAll = unsafe extern "C" fn(*mut *mut c_void, c_int, *const c_int) -> c_int;
        let init_all = rccl.get::<InitAll>(b"ncclCommInitAll").unwrap();
        let mut pointer = std::ptr::null_mut();
        let sim = Client::find().unwrap();
        sim.reset_counters();
        sim.inject(Failure::Malloc, 2);
        assert_eq!(
            (malloc(&mut pointer, 100), malloc(&mut pointer, 100)),
            (0, 2)
        );
        let counters = sim.counters();
        assert_eq!((counters.mallocs, counters.live_bytes), (1, 100));
        assert!(sim.guards_intact() && sim.take_reports().is_empty());
        assert!(sim.set_memory_limit(0, 1 << 20));
        assert_eq!(malloc(&mut pointer, 2 << 20), 2);
        // State of one library shows in the other.
        sim.inject(Failure::Lost, 1);
        assert_eq!(create(&mut pointer), 6);
        sim.inject(Failure::Lost, 0);
        assert_eq!(create(&mut pointer), 0);
        sim.inject(Failure::RcclInit, 1);
        assert_eq!(init_all(&mut pointer, 1, std::ptr::null()), 2);
        assert_eq!(init_all(&mut pointer, 1, std::ptr::null()), 0);
        assert!(sim.peers(c"none") && !sim.peers(c"0-7"));
        assert_eq!(CStr::from_ptr(name(209)), c"hipErrorNoBinaryForGpu");
        assert_eq!(CStr::from_ptr(text(6)), c"HIPRTC_ERROR_COMPILATION");
    }
}

#[test]
fn run_sets_the_environment_of_a_command() {
    let output = Command::new(env!("CARGO_BIN_EXE_hip-sim"))
        .args([
            "run",
            "--arch",
            "gfx1201",
            "--check",
            "--",
            "sh",
            "-c",
            "echo $HIP_SIM_ARCH $HIP_SIM_CHECK; test -e $ROCM_PATH/lib/libhiprtc.so",
        ])
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), b"gfx1201 1\n".as_slice())
    );
}

#[test]
fn no_device_is_what_the_real_runtime_says() {
    // The other devices of this process are fixed, so another process looks.
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--exact", "counts_no_devices", "--include-ignored"])
        .env("HIP_SIM_DEVICES", "0")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
#[ignore = "helper process of the test above"]
fn counts_no_devices() {
    if std::env::var("HIP_SIM_DEVICES").as_deref() != Ok("0") {
        return;
    }
    let (mut count, mut handle) = (1, std::ptr::null_mut());
    assert_eq!(unsafe { hip_sim::hip::hipGetDeviceCount(&mut count) }, 100);
    assert_eq!((hip_sim::hip::hipInit(0), count), (100, 0));
    assert_eq!(
        unsafe { hip_sim::rocblas::rocblas_create_handle(&mut handle) },
        6
    );
    assert_eq!(unsafe { hip_sim::miopen::miopenCreate(&mut handle) }, 7);
}
