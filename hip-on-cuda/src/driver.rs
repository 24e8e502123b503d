//! The CUDA driver's function table.

use crate::table::table;
use std::ffi::{c_char, c_int, c_uint, c_void};

#[allow(non_camel_case_types)]
pub(crate) type CUcontext = *mut c_void;

table! {
    /// Functions of the CUDA driver.
    Driver {
        fn cuInit(flags: c_uint);
        fn cuDriverGetVersion(version: *mut c_int);
        fn cuDeviceGetCount(count: *mut c_int);
        fn cuDeviceGet(device: *mut c_int, ordinal: c_int);
        fn cuDeviceGetName(name: *mut c_char, room: c_int, device: c_int);
        fn cuDeviceTotalMem(bytes: *mut usize, device: c_int) = "cuDeviceTotalMem_v2";
        fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int);
        fn cuDeviceGetPCIBusId(id: *mut c_char, room: c_int, device: c_int);
        fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int);
        fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, device: c_int, peer: c_int);
        fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
        fn cuCtxDisablePeerAccess(peer: CUcontext);
        fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: c_int);
        fn cuCtxSetCurrent(context: CUcontext);
        fn cuCtxSynchronize();
        fn cuMemGetInfo(free: *mut usize, total: *mut usize) = "cuMemGetInfo_v2";
        fn cuMemAlloc(pointer: *mut *mut c_void, bytes: usize) = "cuMemAlloc_v2";
        fn cuMemFree(pointer: *mut c_void) = "cuMemFree_v2";
        fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
        fn cuMemFreeHost(pointer: *mut c_void);
        fn cuMemHostRegister(pointer: *mut c_void, bytes: usize, flags: c_uint) = "cuMemHostRegister_v2";
        fn cuMemHostUnregister(pointer: *mut c_void);
        fn cuMemHostGetDevicePointer(device: *mut *mut c_void, host: *mut c_void, flags: c_uint) = "cuMemHostGetDevicePointer_v2";
        fn cuMemcpyAsync(to: *mut c_void, from: *const c_void, bytes: usize, stream: *mut c_void);
        fn cuMemcpyHtoDAsync(to: *mut c_void, from: *const c_void, bytes: usize, stream: *mut c_void) = "cuMemcpyHtoDAsync_v2";
        fn cuMemcpyDtoHAsync(to: *mut c_void, from: *const c_void, bytes: usize, stream: *mut c_void) = "cuMemcpyDtoHAsync_v2";
        fn cuMemcpyDtoDAsync(to: *mut c_void, from: *const c_void, bytes: usize, stream: *mut c_void) = "cuMemcpyDtoDAsync_v2";
        fn cuMemcpyPeerAsync(
            to: *mut c_void, to_context: CUcontext, from: *const c_void, from_context: CUcontext, bytes: usize, stream: *mut c_void,
        );
        fn cuMemsetD8Async(pointer: *mut c_void, value: u8, count: usize, stream: *mut c_void);
        fn cuStreamCreate(stream: *mut *mut c_void, flags: c_uint);
        fn cuStreamDestroy(stream: *mut c_void) = "cuStreamDestroy_v2";
        fn cuStreamSynchronize(stream: *mut c_void);
        fn cuStreamQuery(stream: *mut c_void);
        fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint);
        fn cuEventCreate(event: *mut *mut c_void, flags: c_uint);
        fn cuEventDestroy(event: *mut c_void) = "cuEventDestroy_v2";
        fn cuEventRecord(event: *mut c_void, stream: *mut c_void);
        fn cuEventQuery(event: *mut c_void);
        fn cuEventSynchronize(event: *mut c_void);
        fn cuEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, stop: *mut c_void);
        fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_void);
        fn cuModuleUnload(module: *mut c_void);
        fn cuModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char);
        fn cuFuncSetAttribute(function: *mut c_void, attribute: c_int, value: c_int);
        fn cuLaunchKernel(
            function: *mut c_void,
            grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
            shared_bytes: c_uint, stream: *mut c_void, params: *mut *mut c_void, extra: *mut *mut c_void,
        );
        fn cuStreamBeginCapture(stream: *mut c_void, mode: c_int) = "cuStreamBeginCapture_v2";
        fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void);
        fn cuGraphInstantiate(exec: *mut *mut c_void, graph: *mut c_void, flags: u64) = "cuGraphInstantiateWithFlags";
        fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void);
        fn cuGraphDestroy(graph: *mut c_void);
        fn cuGraphExecDestroy(exec: *mut c_void);
    }
}
