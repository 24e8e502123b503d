//! Modules, functions and launches.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

use super::graph::NodeKind;
use super::stream::{hipStream_t, stream};
use super::{api, current_device, put};
use crate::error::{hipError_t, HipError, HipResult};
use crate::exec::{Args, Dim3, Function, Launch, Module, MAX_BLOCK};
use std::ffi::{c_char, c_int, c_uint, c_void, CStr};
use std::sync::Arc;

/// Handle of a module.
#[allow(non_camel_case_types)]
pub type hipModule_t = *mut c_void;
/// Handle of a kernel.
#[allow(non_camel_case_types)]
pub type hipFunction_t = *mut c_void;

const BUFFER_POINTER: usize = 1;
const BUFFER_SIZE: usize = 2;
const BUFFER_END: usize = 3;

#[no_mangle]
pub unsafe extern "C" fn hipModuleLoadData(
    module: *mut hipModule_t,
    image: *const c_void,
) -> hipError_t {
    api(|sim| {
        if module.is_null() {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: the caller passes a whole code object.
        let loaded = unsafe { Module::load(sim, current_device(), image)? };
        // SAFETY: the caller's pointer.
        unsafe { put(module, sim.modules.insert(Arc::new(loaded))) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipModuleLoadDataEx(
    module: *mut hipModule_t,
    image: *const c_void,
    _options: c_uint,
    _names: *mut c_int,
    _values: *mut *mut c_void,
) -> hipError_t {
    // SAFETY: passed on to the caller.
    unsafe { hipModuleLoadData(module, image) }
}

#[no_mangle]
pub extern "C" fn hipModuleUnload(module: hipModule_t) -> hipError_t {
    api(|sim| {
        let module = sim.modules.remove(module).ok_or(HipError::InvalidHandle)?;
        sim.functions.remove_if(|f| Arc::ptr_eq(&f.module, &module));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipModuleGetFunction(
    function: *mut hipFunction_t,
    module: hipModule_t,
    name: *const c_char,
) -> hipError_t {
    api(|sim| {
        let module = sim.modules.get(module).ok_or(HipError::InvalidHandle)?;
        if function.is_null() || name.is_null() {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: not null; the caller passes a C string.
        let found = module.function(unsafe { CStr::from_ptr(name) })?;
        // SAFETY: the caller's pointer.
        unsafe { put(function, sim.functions.insert(Arc::new(found))) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipModuleGetGlobal(
    pointer: *mut *mut c_void,
    bytes: *mut usize,
    module: hipModule_t,
    name: *const c_char,
) -> hipError_t {
    api(|sim| {
        let module = sim.modules.get(module).ok_or(HipError::InvalidHandle)?;
        if name.is_null() {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: not null; the caller passes a C string.
        let extent = module.variable(sim, unsafe { CStr::from_ptr(name) })?;
        // SAFETY: the caller's pointers; either may be null.
        unsafe {
            if !pointer.is_null() {
                put(pointer, extent.start as *mut c_void)?;
            }
            if !bytes.is_null() {
                put(bytes, extent.len)?;
            }
        }
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipFuncGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    function: hipFunction_t,
) -> hipError_t {
    api(|sim| {
        let function = sim.functions.get(function).ok_or(HipError::InvalidHandle)?;
        let answer = match attribute {
            0 => match function.info().max_threads {
                0 => MAX_BLOCK as c_int,
                bound => bound as c_int,
            },
            1..=4 => 0, // static shared, constant and local bytes, registers: not known here
            8 => sim.devices[function.module.device].arch.shared_bytes() as c_int,
            _ => return Err(HipError::InvalidValue),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, answer) }
    })
}

/// Arguments from the `extra` list: pairs of a key and a value up to an end mark.
///
/// # Safety
/// `extra` is such a list, and its buffer has the size that it says.
unsafe fn buffer_args(function: &Function, extra: *const *mut c_void) -> HipResult<Args> {
    let (mut buffer, mut bytes) = (std::ptr::null::<c_void>(), 0);
    let mut at = extra;
    loop {
        // SAFETY: the list goes on until its end mark.
        let (key, value) = unsafe { (*at as usize, at.add(1)) };
        match key {
            // SAFETY: these keys have a value.
            BUFFER_POINTER => buffer = unsafe { *value },
            // SAFETY: the value of this key points to a size.
            BUFFER_SIZE => bytes = unsafe { *(*value).cast::<usize>() },
            BUFFER_END => break,
            _ => return Err(HipError::InvalidValue),
        }
        // SAFETY: key and value were read.
        at = unsafe { at.add(2) };
    }
    // SAFETY: the caller's promise.
    unsafe { Args::from_buffer(function, buffer, bytes) }
}

#[no_mangle]
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
    api(|sim| {
        let function = sim.functions.get(function).ok_or(HipError::InvalidHandle)?;
        let stream = stream(sim, handle)?;
        if function.module.device != stream.device || (!params.is_null() && !extra.is_null()) {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: the caller passes the kernel's arguments in one of the two forms.
        let args = unsafe {
            match extra.is_null() {
                true => Args::from_params(&function, params.cast_const().cast())?,
                false => buffer_args(&function, extra)?,
            }
        };
        let grid = Dim3 {
            x: grid_x,
            y: grid_y,
            z: grid_z,
        };
        let block = Dim3 {
            x: block_x,
            y: block_y,
            z: block_z,
        };
        let arch = &sim.devices[stream.device].arch;
        let launch = Launch::new(function, grid, block, shared_bytes as usize, arch, args)?;
        stream.submit(sim, NodeKind::Kernel, move |sim| launch.run(sim))
    })
}
