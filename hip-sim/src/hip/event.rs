//! Events: points in time, since work is done when its call returns.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref
)]

use super::graph::{forbid_while_capturing, Capture};
use super::stream::{hipStream_t, stream};
use super::{api, put};
use crate::error::{hipError_t, HipError, HipResult};
use crate::sim::{Counters, Sim};
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Handle of an event.
#[allow(non_camel_case_types)]
pub type hipEvent_t = *mut c_void;

const BLOCKING_SYNC: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;
const RELEASE: c_uint = 0xC000_0000;

#[derive(Default)]
enum State {
    #[default]
    New,
    Recorded(Instant),
    /// Recorded in a stream that was being captured.
    Captured(Arc<Capture>),
}

pub(crate) struct Event {
    flags: c_uint,
    state: Mutex<State>,
}

impl Event {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The capture under way in which the event was recorded.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        match &*self.state() {
            State::Captured(capture) if capture.is_active() => Some(capture.clone()),
            _ => None,
        }
    }

    fn instant(&self) -> HipResult<Instant> {
        match &*self.state() {
            State::Recorded(instant) if self.flags & DISABLE_TIMING == 0 => Ok(*instant),
            _ => Err(HipError::InvalidHandle),
        }
    }
}

fn event(sim: &Sim, handle: hipEvent_t) -> HipResult<Arc<Event>> {
    sim.events.get(handle).ok_or(HipError::InvalidHandle)
}

fn create(out: *mut hipEvent_t, flags: c_uint) -> hipError_t {
    api(|sim| {
        let known = BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS | RELEASE;
        if out.is_null() || flags & !known != 0 || flags & RELEASE == RELEASE {
            return Err(HipError::InvalidValue);
        }
        let handle = sim.events.insert(Arc::new(Event {
            flags,
            state: Mutex::default(),
        }));
        // SAFETY: the caller's pointer.
        unsafe { put(out, handle) }
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipEventCreate(out: *mut hipEvent_t) -> hipError_t {
    create(out, 0)
}

#[no_mangle]
pub unsafe extern "C" fn hipEventCreateWithFlags(
    out: *mut hipEvent_t,
    flags: c_uint,
) -> hipError_t {
    create(out, flags)
}

#[no_mangle]
pub extern "C" fn hipEventDestroy(handle: hipEvent_t) -> hipError_t {
    api(|sim| {
        sim.events
            .remove(handle)
            .map(|_| ())
            .ok_or(HipError::InvalidHandle)
    })
}

#[no_mangle]
pub extern "C" fn hipEventRecord(handle: hipEvent_t, on: hipStream_t) -> hipError_t {
    api(|sim| {
        let event = event(sim, handle)?;
        let stream = stream(sim, on)?;
        let capture = stream.capture().clone();
        *event.state() = match capture {
            Some(capture) => State::Captured(capture),
            None => State::Recorded(Instant::now()),
        };
        Ok(())
    })
}

#[no_mangle]
pub extern "C" fn hipEventQuery(handle: hipEvent_t) -> hipError_t {
    api(|sim| match event(sim, handle)?.capture() {
        Some(_) => Err(HipError::CapturedEvent),
        None => Ok(()),
    })
}

#[no_mangle]
pub extern "C" fn hipEventSynchronize(handle: hipEvent_t) -> hipError_t {
    api(|sim| {
        if event(sim, handle)?.capture().is_some() {
            return Err(HipError::CapturedEvent);
        }
        forbid_while_capturing(sim)?;
        Counters::count(&sim.counters.synchronizations);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn hipEventElapsedTime(
    milliseconds: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    api(|sim| {
        let (start, stop) = (event(sim, start)?.instant()?, event(sim, stop)?.instant()?);
        let elapsed = match stop.checked_duration_since(start) {
            Some(forward) => forward.as_secs_f32() * 1e3,
            None => -start.duration_since(stop).as_secs_f32() * 1e3,
        };
        // SAFETY: the caller's pointer.
        unsafe { put(milliseconds, elapsed) }
    })
}
