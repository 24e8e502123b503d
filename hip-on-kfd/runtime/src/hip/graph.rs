//! Stream captures and graphs.

use super::stream::{hipStream_t, stream};
use crate::device::Device;
use crate::graph::Capture;
use crate::runtime::Runtime;
use crate::status::{call, put};
use crate::sync::lock;
use hip_abi::error::{hipError_t, HipError};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// Handle of a graph.
#[allow(non_camel_case_types)]
pub type hipGraph_t = *mut c_void;
/// Handle of a graph that can be launched.
#[allow(non_camel_case_types)]
pub type hipGraphExec_t = *mut c_void;

/// `hipStreamCaptureModeRelaxed`.
const RELAXED: c_int = 2;

/// Takes a capture off the list of those under way, and its streams out of it.
pub(crate) fn forget(runtime: &Runtime, capture: &Arc<Capture>) {
    lock(&runtime.captures).retain(|(_, other)| !Arc::ptr_eq(other, capture));
    runtime.streams.for_each(|stream| {
        if stream
            .capture()
            .is_some_and(|own| Arc::ptr_eq(&own, capture))
        {
            stream.set_capture(None);
        }
    });
}

pub extern "C" fn hipStreamBeginCapture(handle: hipStream_t, mode: c_int) -> hipError_t {
    call(|runtime| {
        if !(0..=RELAXED).contains(&mode) {
            return Err(HipError::InvalidValue);
        }
        if mode != RELAXED {
            eprintln!("hip-on-kfd: captures have the mode hipStreamCaptureModeRelaxed only");
            return Err(HipError::NotSupported);
        }
        if handle.is_null() {
            return Err(HipError::StreamCaptureUnsupported);
        }
        let stream = stream(runtime, handle)?;
        stream.device.gate()?;
        if stream.capture().is_some() {
            return Err(HipError::IllegalState);
        }
        let capture = Arc::new(Capture::new(handle as usize));
        lock(&runtime.captures).push((stream.device.ordinal, capture.clone()));
        stream.set_capture(Some(capture));
        Ok(())
    })
}

pub unsafe extern "C" fn hipStreamEndCapture(
    handle: hipStream_t,
    graph: *mut hipGraph_t,
) -> hipError_t {
    call(|runtime| {
        let stream = stream(runtime, handle)?;
        if graph.is_null() {
            return Err(HipError::InvalidValue);
        }
        let capture = stream.capture().ok_or(HipError::IllegalState)?;
        if capture.origin != handle as usize {
            return Err(HipError::StreamCaptureUnmatched);
        }
        forget(runtime, &capture);
        let ended = capture.end();
        let made = match &ended {
            Ok(_) => Ok(()),
            Err(error) => Err(*error),
        };
        let handle = match ended {
            Ok(ended) => runtime.graphs.insert(Arc::new(ended)),
            Err(_) => std::ptr::null_mut(),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(graph, handle)? };
        made
    })
}

pub unsafe extern "C" fn hipGraphInstantiate(
    exec: *mut hipGraphExec_t,
    graph: hipGraph_t,
    _error_node: *mut *mut c_void,
    _log: *mut c_char,
    _log_bytes: usize,
) -> hipError_t {
    call(|runtime| {
        let graph = runtime.graphs.get(graph).ok_or(HipError::InvalidValue)?;
        if exec.is_null() {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: the caller's pointer.
        unsafe { put(exec, runtime.execs.insert(graph)) }
    })
}

pub extern "C" fn hipGraphLaunch(exec: hipGraphExec_t, handle: hipStream_t) -> hipError_t {
    call(|runtime| {
        let exec = runtime.execs.get(exec).ok_or(HipError::InvalidValue)?;
        let stream = stream(runtime, handle)?;
        // SAFETY: whoever recorded the work promised that it may be done as often as the graph is launched.
        exec.works
            .iter()
            .try_for_each(|work| unsafe { stream.submit(runtime, work.clone()) })
    })
}

pub extern "C" fn hipGraphDestroy(graph: hipGraph_t) -> hipError_t {
    call(|runtime| {
        let removed = runtime.graphs.remove(graph);
        removed.map(drop).ok_or(HipError::InvalidValue)
    })
}

pub extern "C" fn hipGraphExecDestroy(exec: hipGraphExec_t) -> hipError_t {
    call(|runtime| {
        let removed = runtime.execs.remove(exec).ok_or(HipError::InvalidValue)?;
        // Its kernels may be running, and be held by it alone.
        match runtime.devices.iter().try_for_each(Device::idle) {
            Ok(()) => drop(removed),
            Err(_) => std::mem::forget(removed),
        }
        Ok(())
    })
}
