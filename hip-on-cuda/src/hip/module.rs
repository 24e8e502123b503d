//! Modules and launches.

use super::forward;
use crate::cuda::call;
use hip_abi::error::hipError_t;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Dynamic shared memory above which a function needs leave.
const SHARED_DEFAULT: c_uint = 48 << 10;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;

forward! {
    fn hipModuleLoadData(module: *mut *mut c_void, image: *const c_void) = cuModuleLoadData(module, image);
    fn hipModuleUnload(module: *mut c_void) = cuModuleUnload(module);
    fn hipModuleGetFunction(function: *mut *mut c_void, module: *mut c_void, name: *const c_char) = cuModuleGetFunction(function, module, name);
}

#[no_mangle]
pub unsafe extern "C" fn hipModuleLaunchKernel(
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
    // SAFETY: function and stream are alive; the caller's parameters are those of the function.
    call(|driver| unsafe {
        if shared_bytes > SHARED_DEFAULT {
            let bytes = shared_bytes as c_int;
            let status = (driver.cuFuncSetAttribute)(function, MAX_DYNAMIC_SHARED, bytes);
            if status != 0 {
                return status;
            }
        }
        (driver.cuLaunchKernel)(
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
