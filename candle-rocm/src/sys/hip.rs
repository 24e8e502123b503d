//! libamdhip64: devices, memory, streams, events, modules, graphs.

use super::loader::{library, Sonames};
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `hipError_t`.
pub type HipError = c_int;
/// `hipStream_t`.
pub type HipStream = *mut c_void;
/// `hipEvent_t`.
pub type HipEvent = *mut c_void;
/// `hipModule_t`.
pub type HipModule = *mut c_void;
/// `hipFunction_t`.
pub type HipFunction = *mut c_void;
/// `hipGraph_t`.
pub type HipGraph = *mut c_void;
/// `hipGraphExec_t`.
pub type HipGraphExec = *mut c_void;

/// `hipSuccess`.
pub const SUCCESS: HipError = 0;
/// `hipErrorOutOfMemory`.
pub const ERROR_OUT_OF_MEMORY: HipError = 2;
/// `hipErrorNotInitialized`.
pub const ERROR_NOT_INITIALIZED: HipError = 3;
/// `hipErrorInsufficientDriver`.
pub const ERROR_INSUFFICIENT_DRIVER: HipError = 35;
/// `hipErrorNoDevice`.
pub const ERROR_NO_DEVICE: HipError = 100;
/// `hipErrorNotReady`.
pub const ERROR_NOT_READY: HipError = 600;

/// `hipErrorPeerAccessAlreadyEnabled`.
pub const ERROR_PEER_ACCESS_ALREADY_ENABLED: HipError = 704;

/// `hipMemcpyHostToDevice`.
pub const MEMCPY_HOST_TO_DEVICE: c_int = 1;
/// `hipMemcpyDeviceToHost`.
pub const MEMCPY_DEVICE_TO_HOST: c_int = 2;
/// `hipMemcpyDeviceToDevice`.
pub const MEMCPY_DEVICE_TO_DEVICE: c_int = 3;

/// `hipStreamNonBlocking`: no implicit waiting for the legacy default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// `hipStreamCaptureModeRelaxed`: calls that do not concern the stream stay legal.
pub const STREAM_CAPTURE_MODE_RELAXED: c_int = 2;
/// `hipEventDefault`.
pub const EVENT_DEFAULT: c_uint = 0;
/// `hipEventDisableTiming`.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// `hipHostMallocDefault`.
pub const HOST_MALLOC_DEFAULT: c_uint = 0;
/// `hipDeviceMallocFinegrained`: other devices see what kernels write while these run.
pub const DEVICE_MALLOC_FINE_GRAINED: c_uint = 1;
/// `hipDeviceMallocUncached`: the same, past the caches.
pub const DEVICE_MALLOC_UNCACHED: c_uint = 3;

/// `hipDeviceProp_tR0600`, the layout of ROCm 6 and 7: room for it and the fields that are read.
#[repr(C, align(16))]
pub struct DeviceProp {
    bytes: [u8; DeviceProp::ROOM],
}

#[allow(missing_docs)] // offsets of the C struct's fields of the same names
impl DeviceProp {
    /// `sizeof(hipDeviceProp_tR0600)`.
    pub const SIZE: usize = 1472;
    /// Bytes handed to HIP: more than the struct, should a later release append fields.
    const ROOM: usize = 4096;

    pub const NAME: usize = 0;
    pub const TOTAL_GLOBAL_MEM: usize = 288;
    pub const SHARED_MEM_PER_BLOCK: usize = 296;
    pub const WARP_SIZE: usize = 308;
    pub const MAX_THREADS_PER_BLOCK: usize = 320;
    pub const CLOCK_RATE: usize = 348;
    pub const MULTI_PROCESSOR_COUNT: usize = 388;
    pub const INTEGRATED: usize = 396;
    pub const PCI_BUS_ID: usize = 584;
    pub const PCI_DEVICE_ID: usize = 588;
    pub const PCI_DOMAIN_ID: usize = 592;
    pub const MEMORY_CLOCK_RATE: usize = 608;
    pub const MEMORY_BUS_WIDTH: usize = 612;
    pub const L2_CACHE_SIZE: usize = 616;
    pub const GCN_ARCH_NAME: usize = 1160;
    /// Bytes of each of the two strings.
    const STRING: usize = 256;

    /// Zeroed room for the struct.
    pub fn zeroed() -> Self {
        DeviceProp {
            bytes: [0; Self::ROOM],
        }
    }

    /// The `int` at an offset.
    pub fn int(&self, offset: usize) -> i32 {
        let mut raw = [0; 4];
        raw.copy_from_slice(&self.bytes[offset..offset + 4]);
        i32::from_ne_bytes(raw)
    }

    /// The `size_t` at an offset.
    pub fn size(&self, offset: usize) -> usize {
        let mut raw = [0; 8];
        raw.copy_from_slice(&self.bytes[offset..offset + 8]);
        usize::from_ne_bytes(raw)
    }

    /// The zero-terminated string at an offset.
    pub fn string(&self, offset: usize) -> String {
        let raw = &self.bytes[offset..offset + Self::STRING];
        let end = raw.iter().position(|&b| b == 0).unwrap_or(raw.len());
        String::from_utf8_lossy(&raw[..end]).into_owned()
    }
}

library! {
    /// Functions of the HIP runtime.
    Hip = Sonames {
        stem: "libamdhip64",
        package: "package hip-runtime-amd; on Debian libamdhip64-6 or newer",
        is_on_runtime: false,
    };
    required {
        fn hipInit(flags: c_uint) -> HipError;
        fn hipRuntimeGetVersion(version: *mut c_int) -> HipError;
        fn hipGetErrorName(error: HipError) -> *const c_char;
        fn hipGetErrorString(error: HipError) -> *const c_char;
        fn hipGetLastError() -> HipError;
        fn hipGetDeviceCount(count: *mut c_int) -> HipError;
        fn hipSetDevice(device: c_int) -> HipError;
        fn hipGetDevicePropertiesR0600(properties: *mut DeviceProp, device: c_int) -> HipError;
        fn hipMalloc(ptr: *mut *mut c_void, bytes: usize) -> HipError;
        fn hipFree(ptr: *mut c_void) -> HipError;
        fn hipHostMalloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> HipError;
        fn hipHostFree(ptr: *mut c_void) -> HipError;
        fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> HipError;
        fn hipMemcpyAsync(dst: *mut c_void, src: *const c_void, bytes: usize, kind: c_int, stream: HipStream) -> HipError;
        fn hipMemcpyPeerAsync(dst: *mut c_void, dst_device: c_int, src: *const c_void, src_device: c_int, bytes: usize, stream: HipStream) -> HipError;
        fn hipMemsetAsync(dst: *mut c_void, value: c_int, bytes: usize, stream: HipStream) -> HipError;
        fn hipStreamCreateWithFlags(stream: *mut HipStream, flags: c_uint) -> HipError;
        fn hipStreamDestroy(stream: HipStream) -> HipError;
        fn hipStreamSynchronize(stream: HipStream) -> HipError;
        fn hipStreamQuery(stream: HipStream) -> HipError;
        fn hipStreamWaitEvent(stream: HipStream, event: HipEvent, flags: c_uint) -> HipError;
        fn hipEventCreateWithFlags(event: *mut HipEvent, flags: c_uint) -> HipError;
        fn hipEventDestroy(event: HipEvent) -> HipError;
        fn hipEventRecord(event: HipEvent, stream: HipStream) -> HipError;
        fn hipEventQuery(event: HipEvent) -> HipError;
        fn hipEventSynchronize(event: HipEvent) -> HipError;
        fn hipEventElapsedTime(milliseconds: *mut f32, start: HipEvent, stop: HipEvent) -> HipError;
        fn hipModuleLoadData(module: *mut HipModule, image: *const c_void) -> HipError;
        fn hipModuleUnload(module: HipModule) -> HipError;
        fn hipModuleGetFunction(function: *mut HipFunction, module: HipModule, name: *const c_char) -> HipError;
        fn hipModuleLaunchKernel(
            function: HipFunction,
            grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint,
            shared_bytes: c_uint, stream: HipStream,
            params: *mut *mut c_void, extra: *mut *mut c_void,
        ) -> HipError;
    }
    optional {
        fn hipDriverGetVersion(version: *mut c_int) -> HipError;
        fn hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> HipError;
        fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> HipError;
        fn hipExtMallocWithFlags(ptr: *mut *mut c_void, bytes: usize, flags: c_uint) -> HipError;
        fn hipStreamBeginCapture(stream: HipStream, mode: c_int) -> HipError;
        fn hipStreamEndCapture(stream: HipStream, graph: *mut HipGraph) -> HipError;
        fn hipGraphInstantiate(exec: *mut HipGraphExec, graph: HipGraph, error_node: *mut *mut c_void, log: *mut c_char, log_bytes: usize) -> HipError;
        fn hipGraphLaunch(exec: HipGraphExec, stream: HipStream) -> HipError;
        fn hipGraphDestroy(graph: HipGraph) -> HipError;
        fn hipGraphExecDestroy(exec: HipGraphExec) -> HipError;
    }
}
