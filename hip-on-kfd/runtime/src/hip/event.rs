//! Events.

use super::stream::{hipStream_t, stream};
use crate::event::Event;
use crate::runtime::Runtime;
use crate::status::{call, put};
use hip_abi::error::{hipError_t, HipError, HipResult};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

/// Handle of an event.
#[allow(non_camel_case_types)]
pub type hipEvent_t = *mut c_void;

/// `hipEventBlockingSync`: every wait may sleep here.
const BLOCKING_SYNC: c_uint = 1;
/// `hipEventDisableTiming`.
const DISABLE_TIMING: c_uint = 2;
/// `hipEventInterprocess`, for events without a time.
const INTERPROCESS: c_uint = 4;
/// `hipEventDisableSystemFence`, `hipEventReleaseToDevice` and `hipEventReleaseToSystem`, one of them at most: how far what
/// is before an event is seen. Here everybody sees it.
const FENCES: c_uint = 0xe000_0000;

fn event(runtime: &Runtime, handle: hipEvent_t) -> HipResult<Arc<Event>> {
    runtime.events.get(handle).ok_or(HipError::InvalidHandle)
}

pub unsafe extern "C" fn hipEventCreateWithFlags(
    out: *mut hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    call(|runtime| {
        let known = BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS | FENCES;
        let is_shared = flags & INTERPROCESS != 0;
        if out.is_null()
            || flags & !known != 0
            || (flags & FENCES).count_ones() > 1
            || (is_shared && flags & DISABLE_TIMING == 0)
        {
            return Err(HipError::InvalidValue);
        }
        if is_shared {
            eprintln!(
                "hip-on-kfd: events are a process's own; make them without hipEventInterprocess"
            );
            return Err(HipError::NotSupported);
        }
        let event = Event::new(flags & DISABLE_TIMING == 0);
        // SAFETY: the caller's pointer.
        unsafe { put(out, runtime.events.insert(Arc::new(event))) }
    })
}

pub extern "C" fn hipEventDestroy(handle: hipEvent_t) -> hipError_t {
    call(|runtime| {
        let removed = runtime.events.remove(handle);
        removed.map(drop).ok_or(HipError::InvalidHandle)
    })
}

pub extern "C" fn hipEventRecord(handle: hipEvent_t, on: hipStream_t) -> hipError_t {
    call(|runtime| {
        let stream = stream(runtime, on)?;
        let event = event(runtime, handle)?;
        if stream.capture().is_none() {
            stream.join(runtime)?;
        }
        event.record(&stream)
    })
}

pub extern "C" fn hipEventQuery(handle: hipEvent_t) -> hipError_t {
    call(|runtime| match event(runtime, handle)?.point()? {
        Some((device, point)) if !point.is_passed() => {
            // A lost device passes no point.
            device.check()?;
            Err(HipError::NotReady)
        }
        _ => Ok(()),
    })
}

pub extern "C" fn hipEventSynchronize(handle: hipEvent_t) -> hipError_t {
    call(|runtime| match event(runtime, handle)?.point()? {
        Some((device, point)) => device.wait(&point),
        None => Ok(()),
    })
}

pub unsafe extern "C" fn hipEventElapsedTime(
    milliseconds: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    call(|runtime| {
        let (start, stop) = (event(runtime, start)?, event(runtime, stop)?);
        let elapsed = Event::milliseconds(&start, &stop)?;
        // SAFETY: the caller's pointer.
        unsafe { put(milliseconds, elapsed) }
    })
}
