//! Streams: each call's work is done before the call returns, in the order of the calls.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

use super::event::{hipEvent_t, Event};
use super::graph::{forbid_while_capturing, Capture, NodeKind};
use super::{api, current_device, put};
use crate::error::{hipError_t, HipError, HipResult};
use crate::sim::{Counters, Sim};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

/// Handle of a stream; null is the device's default stream.
#[allow(non_camel_case_types)]
pub type hipStream_t = *mut c_void;

const NON_BLOCKING: c_uint = 1;
/// `hipStreamLegacy` and `hipStreamPerThread`: names of the default stream.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

pub(crate) struct Stream {
    pub device: usize,
    pub flags: c_uint,
    priority: c_int,
    /// The capture that this stream is part of.
    capture: Mutex<Option<Arc<Capture>>>,
    /// Held while work of the stream runs, so that host threads that share it take turns.
    busy: Mutex<()>,
}

impl Stream {
    pub fn new(device: usize, flags: c_uint, priority: c_int) -> Stream {
        Stream {
            device,
            flags,
            priority,
            capture: Mutex::default(),
            busy: Mutex::default(),
        }
    }

    pub fn capture(&self) -> MutexGuard<'_, Option<Arc<Capture>>> {
        self.capture.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Keeps work of other host threads off the stream.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.busy.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether the stream waits for the default stream, as all do that were not created non-blocking.
    pub fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Runs work now, or records it if the stream is being captured.
    pub fn submit<F>(&self, sim: &'static Sim, kind: NodeKind, work: F) -> HipResult
    where
        F: Fn(&'static Sim) -> HipResult + Send + Sync + 'static,
    {
        let capture = self.capture().clone();
        match capture {
            Some(capture) => capture.record(kind, Arc::new(work)),
            None => {
                let _turn = self.turn();
                let result = work(sim);
                sim.memory.stick(&sim.config.wrong.stuck_words());
                result
            }
        }
    }
}

/// The stream behind a handle. The default stream may not be used while a blocking stream is captured.
pub(crate) fn stream(sim: &'static Sim, handle: hipStream_t) -> HipResult<Arc<Stream>> {
    if !matches!(handle as usize, 0 | LEGACY | PER_THREAD) {
        return sim.streams.get(handle).ok_or(HipError::InvalidHandle);
    }
    let captures = sim.captures.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(capture) = captures.iter().find(|c| c.makes_default_stream_illegal()) {
        capture.invalidate();
        return Err(HipError::StreamCaptureImplicit);
    }
    Ok(sim.devices[current_device()].default_stream.clone())
}

fn create(out: *mut hipStream_t, flags: c_uint, priority: c_int) -> hipError_t {
    api(|sim| {
        if out.is_null() || flags & !NON_BLOCKING != 0 {
            return Err(HipError::InvalidValue);
        }
        let handle = sim
            .streams
            .insert(Arc::new(Stream::new(current_device(), flags, priority)));
        // SAFETY: the caller's pointer.
        unsafe { put(out, handle) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamCreate(out: *mut hipStream_t) -> hipError_t {
    create(out, 0, 0)
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamCreateWithFlags(
    out: *mut hipStream_t,
    flags: c_uint,
) -> hipError_t {
    create(out, flags, 0)
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamCreateWithPriority(
    out: *mut hipStream_t,
    flags: c_uint,
    priority: c_int,
) -> hipError_t {
    create(out, flags, priority.clamp(-1, 1))
}

#[no_mangle]
pub extern "C" fn hipStreamDestroy(handle: hipStream_t) -> hipError_t {
    api(|sim| {
        let stream = sim.streams.get(handle).ok_or(HipError::InvalidHandle)?;
        if let Some(capture) = stream.capture().take() {
            capture.invalidate();
            super::graph::forget(sim, &capture);
        }
        sim.streams
            .remove(handle)
            .map(|_| ())
            .ok_or(HipError::InvalidHandle)
    })
}

/// Fails, and spoils the capture, if the stream is being captured: it cannot be waited for.
fn waitable(sim: &'static Sim, handle: hipStream_t) -> HipResult<Arc<Stream>> {
    let stream = stream(sim, handle)?;
    if let Some(capture) = stream.capture().as_ref() {
        capture.invalidate();
        return Err(HipError::StreamCaptureUnsupported);
    }
    Ok(stream)
}

#[no_mangle]
pub extern "C" fn hipStreamSynchronize(handle: hipStream_t) -> hipError_t {
    api(|sim| {
        let stream = waitable(sim, handle)?;
        forbid_while_capturing(sim)?;
        Counters::count(&sim.counters.synchronizations);
        let _turn = stream.turn();
        sim.check_guards(stream.device)
    })
}

#[no_mangle]
pub extern "C" fn hipStreamQuery(handle: hipStream_t) -> hipError_t {
    api(|sim| {
        let stream = waitable(sim, handle)?;
        let ready = stream.busy.try_lock().is_ok();
        match ready {
            true => Ok(()),
            false => Err(HipError::NotReady),
        }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamGetFlags(handle: hipStream_t, flags: *mut c_uint) -> hipError_t {
    // SAFETY: the caller's pointer.
    api(|sim| unsafe { put(flags, stream(sim, handle)?.flags) })
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamGetPriority(
    handle: hipStream_t,
    priority: *mut c_int,
) -> hipError_t {
    // SAFETY: the caller's pointer.
    api(|sim| unsafe { put(priority, stream(sim, handle)?.priority) })
}

#[no_mangle]
pub unsafe extern "C" fn hipStreamGetDevice(handle: hipStream_t, device: *mut c_int) -> hipError_t {
    // SAFETY: the caller's pointer.
    api(|sim| unsafe { put(device, stream(sim, handle)?.device as c_int) })
}

#[no_mangle]
pub extern "C" fn hipStreamWaitEvent(
    handle: hipStream_t,
    event: hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    api(|sim| {
        let event: Arc<Event> = sim.events.get(event).ok_or(HipError::InvalidHandle)?;
        let stream = stream(sim, handle)?;
        if flags != 0 {
            return Err(HipError::InvalidValue);
        }
        let Some(captured) = event.capture() else {
            return Ok(());
        };
        // Waiting for an event of a captured stream makes this stream part of the capture.
        let mut capture = stream.capture();
        match capture.as_ref() {
            None => {
                captured.join();
                *capture = Some(captured);
                Ok(())
            }
            Some(own) if Arc::ptr_eq(own, &captured) => Ok(()),
            Some(own) => {
                own.invalidate();
                captured.invalidate();
                Err(HipError::StreamCaptureMerge)
            }
        }
    })
}
