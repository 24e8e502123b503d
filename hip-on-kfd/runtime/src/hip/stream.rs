//! Streams.

use crate::device::Device;
use crate::runtime::Runtime;
use crate::status::{call, put};
use crate::stream::Stream;
use hip_abi::error::{hipError_t, HipError, HipResult};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// Handle of a stream; null is the device's default stream.
#[allow(non_camel_case_types)]
pub type hipStream_t = *mut c_void;

/// `hipStreamNonBlocking`.
const NON_BLOCKING: c_uint = 1;

/// `hipStreamLegacy` and `hipStreamPerThread`: names of the default stream, which all threads share here.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// The stream behind a handle.
pub(crate) fn stream(runtime: &'static Runtime, handle: hipStream_t) -> HipResult<Arc<Stream>> {
    if matches!(handle as usize, 0 | LEGACY | PER_THREAD) {
        return Ok(runtime.current()?.default_stream());
    }
    runtime.streams.get(handle).ok_or(HipError::InvalidHandle)
}

/// Fails, and spoils the captures, if streams of a device are being captured.
pub(crate) fn none_captured(runtime: &Runtime, device: &Device) -> HipResult {
    let captures = crate::sync::lock(&runtime.captures);
    let mut found = Ok(());
    for (_, capture) in captures
        .iter()
        .filter(|(ordinal, _)| *ordinal == device.ordinal)
    {
        capture.spoil();
        found = Err(HipError::StreamCaptureUnsupported);
    }
    found
}

pub unsafe extern "C" fn hipStreamCreateWithFlags(
    out: *mut hipStream_t,
    flags: c_uint,
) -> hipError_t {
    call(|runtime| {
        if out.is_null() || flags & !NON_BLOCKING != 0 {
            return Err(HipError::InvalidValue);
        }
        let device = runtime.current()?;
        device.gate()?;
        let stream = Stream::new(device, flags & NON_BLOCKING == 0);
        // SAFETY: the caller's pointer.
        unsafe { put(out, runtime.streams.insert(Arc::new(stream))) }
    })
}

/// What was enqueued is done all the same.
pub extern "C" fn hipStreamDestroy(handle: hipStream_t) -> hipError_t {
    call(|runtime| {
        let stream = runtime
            .streams
            .remove(handle)
            .ok_or(HipError::InvalidHandle)?;
        if let Some(capture) = stream.capture() {
            capture.spoil();
            crate::hip::graph::forget(runtime, &capture);
        }
        Ok(())
    })
}

pub extern "C" fn hipStreamSynchronize(handle: hipStream_t) -> hipError_t {
    call(|runtime| {
        let stream = stream(runtime, handle)?;
        stream.join(runtime)?;
        stream.synchronize()
    })
}

pub extern "C" fn hipStreamQuery(handle: hipStream_t) -> hipError_t {
    call(|runtime| {
        let stream = stream(runtime, handle)?;
        stream.join(runtime)?;
        match stream.is_idle()? {
            true => Ok(()),
            false => Err(HipError::NotReady),
        }
    })
}

pub extern "C" fn hipStreamWaitEvent(
    handle: hipStream_t,
    event: super::hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    call(|runtime| {
        let event = runtime.events.get(event).ok_or(HipError::InvalidHandle)?;
        let stream = stream(runtime, handle)?;
        if flags != 0 {
            return Err(HipError::InvalidValue);
        }
        let own = stream.capture();
        let Some(captured) = event.capture() else {
            // A graph that is recorded waits for nothing that was before it.
            return match (own, event.point()?) {
                (None, Some((device, point))) => stream.wait_across(device, point),
                _ => Ok(()),
            };
        };
        match own {
            None => stream.set_capture(Some(captured)),
            Some(own) if Arc::ptr_eq(&own, &captured) => {}
            Some(own) => {
                own.spoil();
                captured.spoil();
                return Err(HipError::StreamCaptureMerge);
            }
        }
        Ok(())
    })
}
