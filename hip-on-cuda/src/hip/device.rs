//! Devices, versions, and the thread's last error.

use super::forward;
use crate::cuda::{self, call, remember, set_device, with, INVALID_DEVICE};
use hip_abi::error::hipError_t;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `sizeof(hipDeviceProp_tR0600)`.
const PROPERTIES_BYTES: usize = 1472;
const WAVE: i32 = 32;

/// `CUdevice_attribute` by where the value stands in HIP's struct.
const ATTRIBUTES: &[(usize, c_int)] = &[
    (304, 12), // regsPerBlock
    (320, 1),  // maxThreadsPerBlock
    (324, 2),  // maxThreadsDim
    (328, 3),
    (332, 4),
    (336, 5), // maxGridSize
    (340, 6),
    (344, 7),
    (348, 13), // clockRate
    (388, 16), // multiProcessorCount
    (396, 18), // integrated
    (400, 19), // canMapHostMemory
    (576, 31), // concurrentKernels
    (584, 33), // pciBusID
    (588, 34), // pciDeviceID
    (592, 50), // pciDomainID
    (604, 41), // unifiedAddressing
    (608, 36), // memoryClockRate
    (612, 37), // memoryBusWidth
    (616, 38), // l2CacheSize
    (624, 39), // maxThreadsPerMultiProcessor
];

forward! {
    fn hipRuntimeGetVersion(version: *mut c_int) = cuDriverGetVersion(version);
    fn hipGetDeviceCount(count: *mut c_int) = cuDeviceGetCount(count);
    fn hipDeviceSynchronize() = cuCtxSynchronize();
}

#[no_mangle]
pub extern "C" fn hipInit(_flags: c_uint) -> hipError_t {
    call(|_| 0)
}

#[no_mangle]
pub extern "C" fn hipGetLastError() -> hipError_t {
    cuda::take_last_error()
}

#[no_mangle]
pub extern "C" fn hipSetDevice(ordinal: c_int) -> hipError_t {
    set_device(ordinal)
}

#[no_mangle]
pub unsafe extern "C" fn hipGetDevice(ordinal: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer.
    unsafe { *ordinal = cuda::device() };
    0
}

#[no_mangle]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(
    properties: *mut c_void,
    ordinal: c_int,
) -> hipError_t {
    let mut image = [0u8; PROPERTIES_BYTES];
    let status = with(|cuda| {
        let Some(context) = cuda.context(ordinal) else {
            return INVALID_DEVICE;
        };
        let driver = &cuda.driver;
        let [major, minor] = cuda.capability(context);
        let mut bytes = 0usize;
        // SAFETY: the image has 256 bytes of name; `bytes` receives a size.
        let status = unsafe {
            (driver.cuDeviceGetName)(image.as_mut_ptr().cast(), 256, context.device)
                | (driver.cuDeviceTotalMem)(&mut bytes, context.device)
        };
        image[288..296].copy_from_slice(&bytes.to_ne_bytes());
        let mut set = |offset: usize, value: i32| {
            image[offset..offset + 4].copy_from_slice(&value.to_ne_bytes())
        };
        set(308, WAVE);
        set(360, major);
        set(364, minor);
        for &(offset, attribute) in ATTRIBUTES {
            let mut value = 0;
            // SAFETY: `value` receives the number. What a driver does not know stays zero.
            unsafe { (driver.cuDeviceGetAttribute)(&mut value, attribute, context.device) };
            set(offset, value);
        }
        // sharedMemPerBlock, and what a block may opt in to: as AMD GPUs have, which candle-rocm knows.
        for offset in [296, 640, 696, 1416] {
            image[offset..offset + 8].copy_from_slice(&(64usize << 10).to_ne_bytes());
        }
        let arch = format!("sm_{major}{minor}");
        image[1160..1160 + arch.len()].copy_from_slice(arch.as_bytes());
        status
    });
    if status == 0 {
        // SAFETY: the caller's struct has this size.
        unsafe { properties.cast::<[u8; PROPERTIES_BYTES]>().write(image) };
    }
    remember(status)
}

#[no_mangle]
pub unsafe extern "C" fn hipDeviceGetPCIBusId(
    id: *mut c_char,
    room: c_int,
    ordinal: c_int,
) -> hipError_t {
    with(|cuda| match cuda.context(ordinal) {
        // SAFETY: the caller's buffer has the room that it says.
        Some(context) => unsafe { (cuda.driver.cuDeviceGetPCIBusId)(id, room, context.device) },
        None => INVALID_DEVICE,
    })
}
