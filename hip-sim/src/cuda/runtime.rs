//! HIP's runtime functions over the CUDA driver. HIP took over CUDA's handles, flags and error numbers; what differs is translated here.
#![allow(non_snake_case, clippy::too_many_arguments)]

use super::{remember, Cuda, BOUND, INVALID_DEVICE, INVALID_VALUE, LAST_ERROR};
use crate::error::hipError_t;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `sizeof(hipDeviceProp_tR0600)`.
const PROPERTIES_BYTES: usize = 1472;
const WAVE: i32 = 32;
/// Flags of an event that CUDA has, too: blocking, without timing, between processes.
const EVENT_FLAGS: c_uint = 7;
/// Host memory that every context may use.
const PORTABLE: c_uint = 1;
/// Dynamic shared memory above which a function needs leave.
const SHARED_DEFAULT: c_uint = 48 << 10;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;

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

// SAFETY: as the functions of HIP of these names ask: pointers are writable, handles alive, memory as large as said.
impl Cuda {
    pub unsafe fn hipInit(&self, _flags: c_uint) -> hipError_t {
        self.call(|_| 0)
    }

    pub unsafe fn hipRuntimeGetVersion(&self, version: *mut c_int) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuDriverGetVersion)(version) })
    }

    pub unsafe fn hipGetLastError(&self) -> hipError_t {
        LAST_ERROR.replace(0)
    }

    pub unsafe fn hipGetDeviceCount(&self, count: *mut c_int) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuDeviceGetCount)(count) })
    }

    pub unsafe fn hipSetDevice(&self, ordinal: c_int) -> hipError_t {
        remember(self.bind(ordinal))
    }

    pub unsafe fn hipGetDevice(&self, ordinal: *mut c_int) -> hipError_t {
        // SAFETY: the caller's pointer.
        unsafe { *ordinal = BOUND.get().max(0) };
        0
    }

    pub unsafe fn hipGetDevicePropertiesR0600(
        &self,
        properties: *mut c_void,
        ordinal: c_int,
    ) -> hipError_t {
        let context = usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.contexts.get(i));
        let Some(context) = context else {
            return remember(INVALID_DEVICE);
        };
        let mut image = [0u8; PROPERTIES_BYTES];
        let [major, minor] = self.capability(context);
        let status = self.call(|cuda| {
            let mut bytes = 0usize;
            // SAFETY: the image has 256 bytes of name; `bytes` receives a size.
            let status = unsafe {
                (cuda.cuDeviceGetName)(image.as_mut_ptr().cast(), 256, context.device)
                    | (cuda.cuDeviceTotalMem)(&mut bytes, context.device)
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
                unsafe { (cuda.cuDeviceGetAttribute)(&mut value, attribute, context.device) };
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
        // SAFETY: the caller's struct has this size.
        unsafe { properties.cast::<[u8; PROPERTIES_BYTES]>().write(image) };
        status
    }

    pub unsafe fn hipDeviceSynchronize(&self) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuCtxSynchronize)() })
    }

    pub unsafe fn hipMalloc(&self, pointer: *mut *mut c_void, bytes: usize) -> hipError_t {
        if bytes == 0 {
            // SAFETY: the caller's pointer.
            unsafe { *pointer = std::ptr::null_mut() };
            return 0;
        }
        self.call(|cuda| unsafe { (cuda.cuMemAlloc)(pointer, bytes) })
    }

    pub unsafe fn hipFree(&self, pointer: *mut c_void) -> hipError_t {
        if pointer.is_null() {
            return 0;
        }
        self.call(|cuda| unsafe { (cuda.cuMemFree)(pointer) })
    }

    pub unsafe fn hipHostMalloc(
        &self,
        pointer: *mut *mut c_void,
        bytes: usize,
        _flags: c_uint,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuMemHostAlloc)(pointer, bytes, PORTABLE) })
    }

    pub unsafe fn hipHostFree(&self, pointer: *mut c_void) -> hipError_t {
        if pointer.is_null() {
            return 0;
        }
        self.call(|cuda| unsafe { (cuda.cuMemFreeHost)(pointer) })
    }

    pub unsafe fn hipMemGetInfo(&self, free: *mut usize, total: *mut usize) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuMemGetInfo)(free, total) })
    }

    pub unsafe fn hipMemcpyAsync(
        &self,
        to: *mut c_void,
        from: *const c_void,
        bytes: usize,
        kind: c_int,
        stream: *mut c_void,
    ) -> hipError_t {
        if bytes == 0 {
            return 0;
        }
        self.call(|cuda| unsafe {
            match kind {
                1 => (cuda.cuMemcpyHtoDAsync)(to, from, bytes, stream),
                2 => (cuda.cuMemcpyDtoHAsync)(to, from, bytes, stream),
                3 => (cuda.cuMemcpyDtoDAsync)(to, from, bytes, stream),
                0 | 4 => (cuda.cuMemcpyAsync)(to, from, bytes, stream),
                _ => INVALID_VALUE,
            }
        })
    }

    pub unsafe fn hipMemcpyPeerAsync(
        &self,
        to: *mut c_void,
        to_device: c_int,
        from: *const c_void,
        from_device: c_int,
        bytes: usize,
        stream: *mut c_void,
    ) -> hipError_t {
        let context = |ordinal| {
            usize::try_from(ordinal)
                .ok()
                .and_then(|i: usize| self.contexts.get(i))
        };
        let (Some(to_context), Some(from_context)) = (context(to_device), context(from_device))
        else {
            return remember(INVALID_DEVICE);
        };
        self.call(|cuda| unsafe {
            (cuda.cuMemcpyPeerAsync)(to, to_context.raw, from, from_context.raw, bytes, stream)
        })
    }

    pub unsafe fn hipMemsetAsync(
        &self,
        pointer: *mut c_void,
        value: c_int,
        bytes: usize,
        stream: *mut c_void,
    ) -> hipError_t {
        if bytes == 0 {
            return 0;
        }
        self.call(|cuda| unsafe { (cuda.cuMemsetD8Async)(pointer, value as u8, bytes, stream) })
    }

    pub unsafe fn hipStreamCreateWithFlags(
        &self,
        stream: *mut *mut c_void,
        flags: c_uint,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuStreamCreate)(stream, flags) })
    }

    pub unsafe fn hipStreamDestroy(&self, stream: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuStreamDestroy)(stream) })
    }

    pub unsafe fn hipStreamSynchronize(&self, stream: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuStreamSynchronize)(stream) })
    }

    pub unsafe fn hipStreamQuery(&self, stream: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuStreamQuery)(stream) })
    }

    pub unsafe fn hipStreamWaitEvent(
        &self,
        stream: *mut c_void,
        event: *mut c_void,
        flags: c_uint,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuStreamWaitEvent)(stream, event, flags) })
    }

    pub unsafe fn hipEventCreateWithFlags(
        &self,
        event: *mut *mut c_void,
        flags: c_uint,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuEventCreate)(event, flags & EVENT_FLAGS) })
    }

    pub unsafe fn hipEventDestroy(&self, event: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuEventDestroy)(event) })
    }

    pub unsafe fn hipEventRecord(&self, event: *mut c_void, stream: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuEventRecord)(event, stream) })
    }

    pub unsafe fn hipEventQuery(&self, event: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuEventQuery)(event) })
    }

    pub unsafe fn hipEventSynchronize(&self, event: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuEventSynchronize)(event) })
    }

    pub unsafe fn hipEventElapsedTime(
        &self,
        milliseconds: *mut f32,
        start: *mut c_void,
        stop: *mut c_void,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuEventElapsedTime)(milliseconds, start, stop) })
    }

    pub unsafe fn hipModuleLoadData(
        &self,
        module: *mut *mut c_void,
        image: *const c_void,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuModuleLoadData)(module, image) })
    }

    pub unsafe fn hipModuleUnload(&self, module: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuModuleUnload)(module) })
    }

    pub unsafe fn hipModuleGetFunction(
        &self,
        function: *mut *mut c_void,
        module: *mut c_void,
        name: *const c_char,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuModuleGetFunction)(function, module, name) })
    }

    pub unsafe fn hipModuleLaunchKernel(
        &self,
        function: *mut c_void,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: *mut c_void,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> hipError_t {
        self.call(|cuda| unsafe {
            if shared_bytes > SHARED_DEFAULT {
                let status =
                    (cuda.cuFuncSetAttribute)(function, MAX_DYNAMIC_SHARED, shared_bytes as c_int);
                if status != 0 {
                    return status;
                }
            }
            (cuda.cuLaunchKernel)(
                function,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                shared_bytes,
                stream,
                params,
                extra,
            )
        })
    }

    pub unsafe fn hipStreamBeginCapture(&self, stream: *mut c_void, mode: c_int) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuStreamBeginCapture)(stream, mode) })
    }

    pub unsafe fn hipStreamEndCapture(
        &self,
        stream: *mut c_void,
        graph: *mut *mut c_void,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuStreamEndCapture)(stream, graph) })
    }

    pub unsafe fn hipGraphInstantiate(
        &self,
        exec: *mut *mut c_void,
        graph: *mut c_void,
        _error_node: *mut *mut c_void,
        _log: *mut c_char,
        _log_bytes: usize,
    ) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuGraphInstantiate)(exec, graph, 0) })
    }

    pub unsafe fn hipGraphLaunch(&self, exec: *mut c_void, stream: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuGraphLaunch)(exec, stream) })
    }

    pub unsafe fn hipGraphDestroy(&self, graph: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuGraphDestroy)(graph) })
    }

    pub unsafe fn hipGraphExecDestroy(&self, exec: *mut c_void) -> hipError_t {
        self.call(|cuda| unsafe { (cuda.cuGraphExecDestroy)(exec) })
    }
}
