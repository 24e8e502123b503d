//! Events.

use crate::device::Device;
use crate::graph::Capture;
use crate::point::Point;
use crate::stream::Stream;
use crate::sync::lock;
use hip_abi::error::{HipError, HipResult};
use std::sync::{Arc, Mutex};

enum State {
    /// Never recorded.
    New,
    /// Where it was recorded; no point where everything was done.
    At(&'static Device, Option<Point>),
    /// In a stream that was being captured.
    Captured(Arc<Capture>),
}

/// A mark in a stream.
pub(crate) struct Event {
    is_timed: bool,
    state: Mutex<State>,
}

impl Event {
    pub fn new(is_timed: bool) -> Self {
        Event {
            is_timed,
            state: Mutex::new(State::New),
        }
    }

    /// Places the mark behind all work of a stream so far.
    pub fn record(&self, stream: &Stream) -> HipResult {
        let state = match stream.capture() {
            Some(capture) => State::Captured(capture),
            None if self.is_timed => State::At(stream.device, Some(stream.timed_end()?)),
            None => State::At(stream.device, stream.end()?),
        };
        *lock(&self.state) = state;
        Ok(())
    }

    /// The capture under way in which it was recorded.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        match &*lock(&self.state) {
            State::Captured(capture) if capture.is_under_way() => Some(capture.clone()),
            _ => None,
        }
    }

    /// The point to wait for, with its device; none if there is nothing to wait for.
    ///
    /// # Errors
    /// [`HipError::CapturedEvent`] for one in a capture under way.
    pub fn point(&self) -> HipResult<Option<(&'static Device, Point)>> {
        match &*lock(&self.state) {
            State::Captured(capture) if capture.is_under_way() => Err(HipError::CapturedEvent),
            State::At(device, Some(point)) => Ok(Some((device, point.clone()))),
            _ => Ok(None),
        }
    }

    /// The device, and the point at which it notes the time.
    fn timed(&self) -> HipResult<(&'static Device, Point)> {
        match &*lock(&self.state) {
            State::At(device, Some(point)) if self.is_timed => Ok((device, point.clone())),
            _ => Err(HipError::InvalidHandle),
        }
    }

    /// Milliseconds from one mark to another of the same device, both passed.
    ///
    /// # Errors
    /// [`HipError::NotReady`] if one is not passed, [`HipError::InvalidHandle`] if one was not recorded, or without a time,
    /// or on another device.
    pub fn milliseconds(from: &Event, to: &Event) -> HipResult<f32> {
        // Whether both have one comes before whether they have it yet.
        let ((device, from), (other, to)) = (from.timed()?, to.timed()?);
        if !std::ptr::eq(device, other) {
            return Err(HipError::InvalidHandle);
        }
        if !(from.is_passed() && to.is_passed()) {
            return Err(HipError::NotReady);
        }
        let [from, to] = [from, to].map(|point| point.signal().times().1);
        let ticks = to.wrapping_sub(from) as i64;
        Ok((device.nanoseconds(ticks)? / 1e6) as f32)
    }
}
