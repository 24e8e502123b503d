//! Streams and events.

use super::forward;
use std::ffi::{c_uint, c_void};

/// Flags of an event that CUDA has, too: blocking, without timing, between processes.
const EVENT_FLAGS: c_uint = 7;

forward! {
    fn hipStreamCreateWithFlags(stream: *mut *mut c_void, flags: c_uint) = cuStreamCreate(stream, flags);
    fn hipStreamDestroy(stream: *mut c_void) = cuStreamDestroy(stream);
    fn hipStreamSynchronize(stream: *mut c_void) = cuStreamSynchronize(stream);
    fn hipStreamQuery(stream: *mut c_void) = cuStreamQuery(stream);
    fn hipStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) = cuStreamWaitEvent(stream, event, flags);
    fn hipEventCreateWithFlags(event: *mut *mut c_void, flags: c_uint) = cuEventCreate(event, flags & EVENT_FLAGS);
    fn hipEventDestroy(event: *mut c_void) = cuEventDestroy(event);
    fn hipEventRecord(event: *mut c_void, stream: *mut c_void) = cuEventRecord(event, stream);
    fn hipEventQuery(event: *mut c_void) = cuEventQuery(event);
    fn hipEventSynchronize(event: *mut c_void) = cuEventSynchronize(event);
    fn hipEventElapsedTime(milliseconds: *mut f32, start: *mut c_void, stop: *mut c_void) = cuEventElapsedTime(milliseconds, start, stop);
}
