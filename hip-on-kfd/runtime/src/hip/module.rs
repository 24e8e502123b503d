//! Modules and launches.

use super::stream::{hipStream_t, stream};
use crate::image;
use crate::module::{Call, Module};
use crate::status::{call, put};
use crate::work::Work;
use code_object::TargetId;
use hip_abi::error::{hipError_t, HipError};
use std::ffi::{c_char, c_uint, c_void, CStr};
use std::sync::Arc;

/// Handle of a module.
#[allow(non_camel_case_types)]
pub type hipModule_t = *mut c_void;
/// Handle of a kernel.
#[allow(non_camel_case_types)]
pub type hipFunction_t = *mut c_void;

pub unsafe extern "C" fn hipModuleLoadData(
    module: *mut hipModule_t,
    image: *const c_void,
) -> hipError_t {
    call(|runtime| {
        if module.is_null() {
            return Err(HipError::InvalidValue);
        }
        let device = runtime.current()?;
        device.gate()?;
        let target = TargetId::parse(&device.gpu.node().arch).ok_or(HipError::InvalidDevice)?;
        // SAFETY: the caller passes a whole code object, or a whole bundle of them.
        let object = unsafe { image::object(image.cast(), &target)? };
        let loaded = Module::load(device, &object)?;
        // SAFETY: the caller's pointer.
        unsafe { put(module, runtime.modules.insert(Arc::new(loaded))) }
    })
}

pub extern "C" fn hipModuleUnload(module: hipModule_t) -> hipError_t {
    call(|runtime| {
        let module = runtime
            .modules
            .remove(module)
            .ok_or(HipError::InvalidHandle)?;
        runtime
            .functions
            .remove_if(|function| Arc::ptr_eq(&function.module, &module));
        // Its code may be running.
        let idle = module.device.idle();
        if idle.is_err() {
            std::mem::forget(module);
        }
        idle
    })
}

pub unsafe extern "C" fn hipModuleGetFunction(
    function: *mut hipFunction_t,
    module: hipModule_t,
    name: *const c_char,
) -> hipError_t {
    call(|runtime| {
        let module = runtime.modules.get(module).ok_or(HipError::InvalidHandle)?;
        if function.is_null() || name.is_null() {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: not null; the caller passes a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_str().map_err(|_| HipError::NotFound)?;
        let found = module.function(name)?;
        // SAFETY: the caller's pointer.
        unsafe { put(function, runtime.functions.insert(Arc::new(found))) }
    })
}

pub unsafe extern "C" fn hipModuleLaunchKernel(
    function: hipFunction_t,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    handle: hipStream_t,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> hipError_t {
    call(|runtime| {
        let function = runtime
            .functions
            .get(function)
            .ok_or(HipError::InvalidHandle)?;
        let stream = stream(runtime, handle)?;
        if !std::ptr::eq(function.module.device, stream.device) {
            return Err(HipError::InvalidValue);
        }
        if shared_bytes > stream.device.gpu.generation().lds_bytes {
            return Err(HipError::InvalidValue);
        }
        if !extra.is_null() {
            eprintln!(
                "hip-on-kfd: hipModuleLaunchKernel takes arguments by `params`, not by `extra`"
            );
            return Err(HipError::NotSupported);
        }
        // SAFETY: the caller passes a pointer to each argument of the kernel.
        let arguments = unsafe { function.pack(params.cast_const().cast())? };
        let call = Call {
            function,
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared_bytes,
            arguments,
        };
        // SAFETY: what the kernel does with its arguments is the caller's promise, for each time that a graph with this
        // launch runs.
        unsafe { stream.submit(runtime, Work::Kernel(call)) }
    })
}
