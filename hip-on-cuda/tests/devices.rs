//! Several NVIDIA GPUs: memory that they reach, and RCCL over NCCL. `cargo test -p hip-on-cuda --test devices --
//! --ignored` on a machine with two GPUs or more.
#![allow(non_snake_case)]

use hip_on_cuda::hip::*;
use hip_on_cuda::hiprtc::*;
use hip_on_cuda::rccl::*;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::ptr::{null, null_mut};

const HOST_TO_DEVICE: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const FLOAT32: c_int = 7;

/// Panics unless a status is success.
#[track_caller]
fn ok(status: c_int) {
    assert_eq!(status, 0, "status {status}");
}

fn count() -> c_int {
    let mut count = 0;
    ok(unsafe { hipGetDeviceCount(&mut count) });
    assert!(count >= 2, "{count} GPUs are too few for this test");
    count
}

/// A stream and memory for numbers on a device, which is the thread's from then on.
struct Place {
    stream: *mut c_void,
    memory: *mut c_void,
    bytes: usize,
}

impl Place {
    fn new(device: c_int, numbers: &[f32]) -> Place {
        let (mut stream, mut memory, bytes) = (null_mut(), null_mut(), size_of_val(numbers));
        unsafe {
            ok(hipSetDevice(device));
            ok(hipStreamCreateWithFlags(&mut stream, 1));
            ok(hipExtMallocWithFlags(&mut memory, bytes, 3));
            ok(hipMemcpyAsync(
                memory,
                numbers.as_ptr().cast(),
                bytes,
                HOST_TO_DEVICE,
                stream,
            ));
            ok(hipStreamSynchronize(stream));
        }
        Place {
            stream,
            memory,
            bytes,
        }
    }

    fn numbers(&self) -> Vec<f32> {
        let mut numbers = vec![0f32; self.bytes / 4];
        let to = numbers.as_mut_ptr().cast();
        unsafe {
            ok(hipMemcpyAsync(
                to,
                self.memory,
                self.bytes,
                DEVICE_TO_HOST,
                self.stream,
            ));
            ok(hipStreamSynchronize(self.stream));
        }
        numbers
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        unsafe {
            ok(hipFree(self.memory));
            ok(hipStreamDestroy(self.stream));
        }
    }
}

/// A kernel, compiled for a device and loaded on it.
fn kernel(source: &CStr, name: &CStr) -> *mut c_void {
    let (mut program, mut module, mut function, mut bytes) =
        (null_mut(), null_mut(), null_mut(), 0);
    let options: [*const c_char; 1] = [c"-O3".as_ptr()];
    unsafe {
        ok(hiprtcCreateProgram(
            &mut program,
            source.as_ptr(),
            null(),
            0,
            null(),
            null(),
        ));
        ok(hiprtcCompileProgram(program, 1, options.as_ptr()));
        ok(hiprtcGetCodeSize(program, &mut bytes));
        let mut code = vec![0u8; bytes];
        ok(hiprtcGetCode(program, code.as_mut_ptr().cast()));
        ok(hiprtcDestroyProgram(&mut program));
        ok(hipModuleLoadData(&mut module, code.as_ptr().cast()));
        ok(hipModuleGetFunction(&mut function, module, name.as_ptr()));
    }
    function
}

#[test]
#[ignore = "needs two NVIDIA GPUs"]
fn devices_reach_each_other() {
    let count = count();
    let (mut can, mut room) = (-1, [0 as c_char; 32]);
    unsafe {
        ok(hipDeviceCanAccessPeer(&mut can, 1, 1));
        assert_eq!((can, hipDeviceCanAccessPeer(&mut can, 0, count)), (0, 101));
        ok(hipDeviceCanAccessPeer(&mut can, 0, 1));
        ok(hipDeviceGetPCIBusId(room.as_mut_ptr(), 32, 1));
        assert!(CStr::from_ptr(room.as_ptr()).to_bytes().len() >= 12);
    }
    let numbers: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let (theirs, own) = (Place::new(1, &numbers), Place::new(0, &[0.0; 256]));
    // Copies work with and without access.
    unsafe {
        ok(hipMemcpyPeerAsync(
            own.memory,
            0,
            theirs.memory,
            1,
            own.bytes,
            own.stream,
        ));
    }
    assert_eq!(own.numbers(), numbers);
    if can == 0 {
        return;
    }
    let mut supported = 0;
    unsafe { ok(hipDeviceGetP2PAttribute(&mut supported, 1, 0, 1)) };
    assert_eq!(supported, 1);
    assert_eq!(hipDeviceEnablePeerAccess(0, 0), 101);
    assert_eq!(
        (
            hipDeviceEnablePeerAccess(1, 0),
            hipDeviceEnablePeerAccess(1, 0)
        ),
        (0, 704)
    );
    let double = kernel(
        c"extern \"C\" __global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }",
        c"twice",
    );
    let (mut x, mut y) = (theirs.memory, own.memory);
    let mut arguments = [(&raw mut x).cast(), (&raw mut y).cast()];
    let no_extra: *mut *mut c_void = null_mut();
    let ones: [c_uint; 3] = [1; 3];
    unsafe {
        let arguments = arguments.as_mut_ptr();
        let [a, b, c] = ones;
        ok(hipModuleLaunchKernel(
            double, a, b, c, 256, 1, 1, 0, own.stream, arguments, no_extra,
        ));
    }
    let doubled: Vec<f32> = numbers.iter().map(|x| 2.0 * x).collect();
    assert_eq!(own.numbers(), doubled);
    assert_eq!(
        (hipDeviceDisablePeerAccess(1), hipDeviceDisablePeerAccess(1)),
        (0, 705)
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn host_memory_is_registered() {
    let mut numbers = vec![1f32; 4096];
    let (host, mut device) = (numbers.as_mut_ptr().cast(), null_mut());
    unsafe {
        ok(hipSetDevice(0));
        ok(hipHostRegister(host, 4 * 4096, 0));
        ok(hipHostGetDevicePointer(&mut device, host, 0));
        assert!(!device.is_null());
        ok(hipHostUnregister(host));
        ok(hipHostMalloc(&mut device, 64, 0x4000_0003));
        ok(hipHostFree(device));
    }
}

#[test]
#[ignore = "needs NCCL"]
fn nccl_says_its_version() {
    let mut version = 0;
    unsafe {
        ok(ncclGetVersion(&mut version));
        assert!(!CStr::from_ptr(ncclGetErrorString(5)).is_empty());
    }
    assert!(version > 21_000, "{version}");
}

#[test]
#[ignore = "needs two NVIDIA GPUs and NCCL"]
fn ranks_meet_over_nccl() {
    const N: usize = 1 << 16;
    let size = count() as usize;
    let mut comms = vec![null_mut(); size];
    unsafe { ok(ncclCommInitAll(comms.as_mut_ptr(), size as c_int, null())) };
    let work = |rank: usize, comm: ncclComm_t| unsafe {
        let place = Place::new(rank as c_int, &vec![rank as f32 + 1.0; N]);
        let (p, stream) = (place.memory, place.stream);
        let (mut ranks, mut own, mut error) = (0, 0, -1);
        ok(ncclCommCount(comm, &mut ranks));
        ok(ncclCommUserRank(comm, &mut own));
        assert_eq!((ranks as usize, own as usize), (size, rank));
        ok(ncclAllReduce(p, p, N, FLOAT32, 0, comm, stream));
        let sum = (size * (size + 1) / 2) as f32;
        assert_eq!(place.numbers(), vec![sum; N]);
        let received = Place::new(rank as c_int, &[0.0; N]);
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        ok(ncclGroupStart());
        ok(ncclSend(p, N, FLOAT32, next as c_int, comm, stream));
        ok(ncclRecv(
            received.memory,
            N,
            FLOAT32,
            before as c_int,
            comm,
            stream,
        ));
        ok(ncclGroupEnd());
        ok(hipStreamSynchronize(stream));
        assert_eq!(received.numbers(), vec![sum; N]);
        ok(ncclCommGetAsyncError(comm, &mut error));
        assert_eq!(error, 0);
        // The device is still the thread's.
        let mut device = -1;
        ok(hipGetDevice(&mut device));
        assert_eq!(device, rank as c_int);
        ok(ncclCommDestroy(comm));
    };
    std::thread::scope(|scope| {
        for (rank, comm) in comms.into_iter().enumerate() {
            let comm = comm as usize;
            scope.spawn(move || work(rank, comm as ncclComm_t));
        }
    });
}
