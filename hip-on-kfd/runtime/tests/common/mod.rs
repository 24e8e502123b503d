//! HIP's functions with the types of Rust, on GPUs of the mock.
#![allow(dead_code)] // each test uses its part

use candle_kfd::mock::{Mock, MockLaunch, Setup};
use candle_kfd::Kfd;
use hip_on_kfd_runtime::hip::*;
use std::ffi::{c_int, c_uint, c_void, CStr, CString};
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Kernels of code-object's tests: `scale`, `scramble`, `nothing`.
pub const OBJECT: &[u8] = include_bytes!("../../../../code-object/tests/fixtures/gfx1100.elf");

pub const HOST_TO_DEVICE: c_int = 1;
pub const DEVICE_TO_HOST: c_int = 2;
pub const DEVICE_TO_DEVICE: c_int = 3;
pub const NON_BLOCKING: c_uint = 1;
pub const RELAXED: c_int = 2;

/// The process's GPUs, two of one arch; the first call starts HIP's runtime on them.
pub fn mock() -> &'static Arc<Mock> {
    mock_with(|setup| setup)
}

/// The same, set up otherwise.
pub fn mock_with(change: impl FnOnce(Setup) -> Setup) -> &'static Arc<Mock> {
    static MOCK: OnceLock<Arc<Mock>> = OnceLock::new();
    MOCK.get_or_init(|| {
        let mock = Mock::with(change(Setup::of(&["gfx1100", "gfx1100"])));
        mock.kernel("nothing", |_| Ok(()));
        mock.kernel("scramble", add_one);
        mock.kernel("scale", scale);
        let kfd = Kfd::with(mock.clone()).expect("a driver");
        assert!(hip_on_kfd_runtime::start_with(&kfd));
        mock
    })
}

/// Adds the second argument to every number at the first, a number for each thread.
fn add_one(launch: &MockLaunch) -> Result<(), candle_kfd::mock::Fault> {
    let (numbers, by) = (launch.u64(0), launch.u32(8));
    for thread in 0..u64::from(launch.threads[0]) {
        let at = numbers + thread * 4;
        let sum = launch.memory.load32(at)?.wrapping_add(by);
        launch.memory.store32(at, sum)?;
    }
    Ok(())
}

/// What the kernel's source says, for blocks of 64 threads; what of it depends on its gaps between arguments.
fn scale(launch: &MockLaunch) -> Result<(), candle_kfd::mock::Fault> {
    let (out, input) = (launch.u64(0), launch.u64(8));
    let sizes: Vec<u32> = (0..6).map(|i| launch.u32(16 + i * 4)).collect();
    let (rank, step) = (launch.u32(40), launch.u32(44) & 0xff);
    let by = f64::from_bits(launch.u64(48));
    for lane in 0..64u64 {
        let from = input + (63 - lane) * u64::from(step) * 4;
        let value = f64::from(f32::from_bits(launch.memory.load32(from)?));
        let sum = value * by + f64::from(sizes[lane as usize % 6]) + f64::from(rank);
        launch
            .memory
            .store32(out + lane * 4, (sum as f32).to_bits())?;
    }
    Ok(())
}

/// The status's name.
pub fn name(status: c_int) -> &'static str {
    // SAFETY: names are constants.
    let name = unsafe { CStr::from_ptr(hipGetErrorName(status)) };
    name.to_str().expect("ASCII")
}

/// Panics unless a call succeeded.
#[track_caller]
pub fn ok(status: c_int) {
    assert_eq!(name(status), "hipSuccess");
}

/// Panics unless a call failed so.
#[track_caller]
pub fn fails(status: c_int, with: &str) {
    assert_eq!(name(status), with);
}

/// A handle or address that a call gives.
#[track_caller]
pub fn made(make: impl FnOnce(*mut *mut c_void) -> c_int) -> *mut c_void {
    let mut handle = null_mut();
    ok(make(&mut handle));
    handle
}

pub fn malloc(bytes: usize) -> *mut c_void {
    // SAFETY: the result is written.
    made(|out| unsafe { hipMalloc(out, bytes) })
}

pub fn pinned(bytes: usize) -> *mut c_void {
    // SAFETY: the result is written.
    made(|out| unsafe { hipHostMalloc(out, bytes, 0) })
}

pub fn stream() -> *mut c_void {
    // SAFETY: the result is written.
    made(|out| unsafe { hipStreamCreateWithFlags(out, NON_BLOCKING) })
}

pub fn event(flags: c_uint) -> *mut c_void {
    // SAFETY: the result is written.
    made(|out| unsafe { hipEventCreateWithFlags(out, flags) })
}

pub fn upload(to: *mut c_void, from: &[u8], stream: *mut c_void) {
    let source = from.as_ptr().cast();
    // SAFETY: the tests allocate as much.
    ok(unsafe { hipMemcpyAsync(to, source, from.len(), HOST_TO_DEVICE, stream) });
}

pub fn download(from: *const c_void, bytes: usize, stream: *mut c_void) -> Vec<u8> {
    let mut to = vec![0xAA; bytes];
    let target = to.as_mut_ptr().cast();
    // SAFETY: the tests allocate as much.
    ok(unsafe { hipMemcpyAsync(target, from, bytes, DEVICE_TO_HOST, stream) });
    ok(hipStreamSynchronize(stream));
    // What hardware would let pass, or hang from without a word.
    assert_eq!(mock().complaints(), [""; 0]);
    to
}

pub fn words(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| u32::from_ne_bytes(word.try_into().expect("4 bytes")))
        .collect()
}

/// Loads the object for the thread's device.
pub fn module() -> *mut c_void {
    // SAFETY: the object is whole.
    made(|out| unsafe { hipModuleLoadData(out, OBJECT.as_ptr().cast()) })
}

pub fn function(module: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("no zero");
    // SAFETY: the result is written, the name a C string.
    made(|out| unsafe { hipModuleGetFunction(out, module, name.as_ptr()) })
}

/// Launches a block of `threads`.
pub fn launch(
    function: *mut c_void,
    threads: u32,
    stream: *mut c_void,
    params: &mut [*mut c_void],
) -> c_int {
    let params = match params.is_empty() {
        true => null_mut(),
        false => params.as_mut_ptr(),
    };
    // SAFETY: the tests pass what the kernel takes.
    unsafe {
        hipModuleLaunchKernel(
            function,
            1,
            1,
            1,
            threads,
            1,
            1,
            0,
            stream,
            params,
            null_mut(),
        )
    }
}

/// Enqueues `numbers[..threads] += by`.
pub fn add(
    function: *mut c_void,
    mut numbers: *mut c_void,
    threads: u32,
    mut by: u32,
    stream: *mut c_void,
) {
    let mut params = [
        (&raw mut numbers).cast::<c_void>(),
        (&raw mut by).cast::<c_void>(),
    ];
    ok(launch(function, threads, stream, &mut params));
}
