//! The C ABI of hipBLASLt: products of 8-bit floats with scales. Functions have the names and signatures of AMD's
//! library; what it has beside them is not there.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

mod objects;
mod product;

use crate::hip::current_device;
use crate::hip::graph::NodeKind;
use crate::hip::stream::{hipStream_t, stream};
use crate::sim::{sim, Counters};
pub use objects::*;
use product::Product;
use std::ffi::{c_int, c_void};

/// `hipblasStatus_t`.
pub type Status = c_int;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_INITIALIZED: Status = 1;
pub(crate) const INVALID_VALUE: Status = 3;
pub(crate) const EXECUTION_FAILED: Status = 5;
pub(crate) const NOT_SUPPORTED: Status = 7;

/// Bytes of workspace that the solution takes, so that callers give one.
const WORKSPACE_BYTES: usize = 4096;

/// `hipblasLtMatmulAlgo_t`.
#[repr(C)]
pub struct Algorithm {
    data: [u8; 16],
    max_workspace_bytes: usize,
}

/// `hipblasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub struct HeuristicResult {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// What the one algorithm is known by.
const ALGORITHM: [u8; 16] = *b"hip-sim's only 1";

#[no_mangle]
pub unsafe extern "C" fn hipblasLtMatmulAlgoGetHeuristic(
    handle: *mut c_void,
    desc: *mut c_void,
    a: *mut c_void,
    b: *mut c_void,
    c: *mut c_void,
    d: *mut c_void,
    preference: *mut c_void,
    wanted: c_int,
    results: *mut HeuristicResult,
    found: *mut c_int,
) -> Status {
    if !is_handle(handle) {
        return NOT_INITIALIZED;
    }
    let Some(limit) = workspace_limit(preference) else {
        return INVALID_VALUE;
    };
    if wanted < 1 || results.is_null() || found.is_null() {
        return INVALID_VALUE;
    }
    let arch = sim().devices[current_device()].arch.name();
    let is_there = match Product::new(arch, desc, [a, b, c, d]) {
        Ok(_) => limit >= WORKSPACE_BYTES as u64,
        Err(NOT_SUPPORTED) => false,
        Err(status) => return status,
    };
    // SAFETY: not null; the caller's pointers, the results with room for as many as are wanted.
    unsafe {
        found.write(is_there.into());
        if is_there {
            results.write(HeuristicResult {
                algorithm: Algorithm {
                    data: ALGORITHM,
                    max_workspace_bytes: WORKSPACE_BYTES,
                },
                workspace_bytes: WORKSPACE_BYTES,
                state: SUCCESS,
                waves: 1.0,
                reserved: [0; 4],
            });
        }
    }
    match is_there {
        true => SUCCESS,
        false => NOT_SUPPORTED,
    }
}

#[no_mangle]
pub unsafe extern "C" fn hipblasLtMatmul(
    handle: *mut c_void,
    desc: *mut c_void,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: *mut c_void,
    b: *const c_void,
    b_layout: *mut c_void,
    beta: *const c_void,
    _c: *const c_void,
    c_layout: *mut c_void,
    d: *mut c_void,
    d_layout: *mut c_void,
    algorithm: *const Algorithm,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream_of: hipStream_t,
) -> Status {
    if !is_handle(handle) {
        return NOT_INITIALIZED;
    }
    if alpha.is_null() || beta.is_null() || a.is_null() || b.is_null() || d.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's pointers, to numbers of the scale type.
    let (alpha, beta) = unsafe { (*alpha.cast::<f32>(), *beta.cast::<f32>()) };
    // SAFETY: the caller's pointer.
    let is_known = !algorithm.is_null() && unsafe { (*algorithm).data } == ALGORITHM;
    let sim = sim();
    let has_room =
        workspace_bytes >= WORKSPACE_BYTES && sim.memory.holds(workspace as usize, workspace_bytes);
    if !is_known || !has_room || beta != 0.0 {
        return INVALID_VALUE;
    }
    let result = sim.gate().and_then(|()| stream(sim, stream_of));
    let Ok(stream) = result else {
        return EXECUTION_FAILED;
    };
    let arch = sim.devices[stream.device].arch.name();
    let layouts = [a_layout, b_layout, c_layout, d_layout];
    let product = match Product::new(arch, desc, layouts) {
        Ok(product) => product,
        Err(status) => return status,
    };
    sim.config.wrong.hipblaslt();
    let (a, b, d, device) = (a as usize, b as usize, d as usize, stream.device);
    let submitted = stream.submit(sim, NodeKind::Gemm, move |sim| {
        Counters::count(&sim.counters.gemms);
        product.run(sim, device, [a, b, d], alpha)
    });
    match submitted {
        Ok(()) => SUCCESS,
        Err(_) => EXECUTION_FAILED,
    }
}
