//! Streams: work in order, on a compute queue and the queue of copies.
//!
//! A compute queue keeps the order of its own packets, and so does the queue of copies; where a stream goes from one to
//! the other, or waits for an event, the second queue waits for a [`Point`] in the first. All that a queue waits for was
//! enqueued before, so that queues which streams share cannot wait for each other in a circle.

use crate::device::Device;
use crate::graph::Capture;
use crate::lane::Transfer;
use crate::point::Point;
use crate::runtime::Runtime;
use crate::sync::lock;
use crate::work::Work;
use hip_abi::error::{HipError, HipResult};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard};

/// The end of a stream's work.
#[derive(Default)]
enum Tail {
    /// Everything is done.
    #[default]
    Idle,
    /// The last packet of the compute queue, with no point behind it.
    Enqueued,
    /// A point in the compute queue.
    Computed(Point),
    /// A point in the queue of copies.
    Copied(Point),
}

/// What a stream is at.
#[derive(Default)]
struct State {
    tail: Tail,
    /// What the next work waits for besides.
    waits: Vec<Point>,
    capture: Option<Arc<Capture>>,
}

impl State {
    /// What the next packet waits for that its queue does not order by itself: events, and the end of what the stream has
    /// on the queue of copies.
    fn take_waits(&mut self) -> Vec<Point> {
        let mut waits = std::mem::take(&mut self.waits);
        if let Tail::Copied(point) = &self.tail {
            waits.push(point.clone());
        }
        waits.retain(|point| !point.is_passed());
        waits
    }
}

/// Work in order on a device.
pub(crate) struct Stream {
    pub device: &'static Device,
    /// Whether it and the default stream wait for each other.
    is_blocking: bool,
    lane: usize,
    state: Mutex<State>,
}

impl Stream {
    pub fn new(device: &'static Device, is_blocking: bool) -> Self {
        Stream {
            lane: device.next_lane(),
            device,
            is_blocking,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The capture that the stream takes part in.
    pub fn capture(&self) -> Option<Arc<Capture>> {
        self.state().capture.clone()
    }

    /// Makes the stream take part in a capture, or in none.
    pub fn set_capture(&self, capture: Option<Arc<Capture>>) {
        self.state().capture = capture;
    }

    /// Enqueues work, or records it if the stream is being captured.
    ///
    /// # Safety
    /// As of [`Work::run`], for each time that what is recorded runs.
    pub unsafe fn submit(&self, runtime: &'static Runtime, work: Work) -> HipResult {
        if let Some(capture) = self.capture() {
            // Who records it hears of what is wrong with it, not who launches the graph.
            work.check(runtime, self)?;
            return capture.record(work);
        }
        self.join(runtime)?;
        // SAFETY: the caller's promise.
        unsafe { work.run(runtime, self) }
    }

    /// Makes the next work wait for what the default stream orders: it and blocking streams wait for each other.
    pub fn join(&self, runtime: &'static Runtime) -> HipResult {
        self.device.gate()?;
        if !self.is_blocking {
            return Ok(());
        }
        let default = self.device.default_stream();
        let others = RefCell::new(Vec::new());
        if std::ptr::eq(&*default, self) {
            runtime.streams.for_each(|other| {
                if other.is_blocking && std::ptr::eq(other.device, self.device) {
                    others.borrow_mut().push(other.end());
                }
            });
        } else {
            others.borrow_mut().push(default.end());
        }
        for end in others.into_inner() {
            if let Some(point) = end? {
                self.wait_for(point);
            }
        }
        Ok(())
    }

    /// Makes the next work wait for a point of a device. If this stream's cannot, the host does.
    pub fn wait_across(&self, device: &'static Device, point: Point) -> HipResult {
        match point.show(&self.device.gpu) {
            Ok(()) => self.wait_for(point),
            Err(_) => device.wait(&point)?,
        }
        Ok(())
    }

    /// Makes the next work wait for a point that the device sees.
    pub fn wait_for(&self, point: Point) {
        let mut state = self.state();
        state.waits.push(point);
        state.waits.retain(|point| !point.is_passed());
    }

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// As of `ComputeLane::launch`.
    pub unsafe fn launch(&self, launch: &candle_kfd::Launch<'_>) -> HipResult {
        let device = self.device;
        let lane = device.lane(self.lane)?;
        let mut state = self.state();
        let waits = state.take_waits();
        let enqueued = (|| {
            if !waits.is_empty() {
                lane.point(&device.pool, waits)?;
            }
            // SAFETY: the caller's promise.
            unsafe { lane.launch(launch) }
        })();
        enqueued.map_err(|error| device.failed(error))?;
        state.tail = Tail::Enqueued;
        Ok(())
    }

    /// Enqueues a transfer; gives the point behind it.
    ///
    /// # Safety
    /// As of `CopyLane::run`.
    pub unsafe fn transfer(&self, transfer: Transfer) -> HipResult<Point> {
        let device = self.device;
        let copies = device.copies()?;
        let mut state = self.state();
        // Behind other copies, too: engines may begin one before the last is done.
        let mut waits = state.take_waits();
        match &state.tail {
            Tail::Idle | Tail::Copied(_) => {}
            Tail::Enqueued => {
                let end = device.lane(self.lane)?.point(&device.pool, Vec::new());
                waits.push(end.map_err(|error| device.failed(error))?);
            }
            Tail::Computed(point) if point.is_passed() => {}
            Tail::Computed(point) => waits.push(point.clone()),
        }
        // SAFETY: the caller's promise.
        let point = unsafe { copies.run(&device.pool, waits, transfer) };
        let point = point.map_err(|error| device.failed(error))?;
        state.tail = Tail::Copied(point.clone());
        Ok(point)
    }

    /// A point behind all work so far; none if it is done.
    pub fn end(&self) -> HipResult<Option<Point>> {
        let mut state = self.state();
        match (&state.tail, state.waits.is_empty()) {
            (Tail::Idle, true) => Ok(None),
            (Tail::Computed(point) | Tail::Copied(point), true) => Ok(Some(point.clone())),
            _ => self.new_end(&mut state).map(Some),
        }
    }

    /// A point behind all work so far at which the compute queue notes the time.
    pub fn timed_end(&self) -> HipResult<Point> {
        self.new_end(&mut self.state())
    }

    fn new_end(&self, state: &mut State) -> HipResult<Point> {
        let device = self.device;
        let lane = device.lane(self.lane)?;
        let end = lane.point(&device.pool, state.take_waits());
        let end = end.map_err(|error| device.failed(error))?;
        state.tail = Tail::Computed(end.clone());
        Ok(end)
    }

    /// Fails, and spoils the capture, if the stream is being captured: it cannot be waited for.
    fn waitable(&self) -> HipResult {
        match self.capture() {
            Some(capture) => {
                capture.spoil();
                Err(HipError::StreamCaptureUnsupported)
            }
            None => self.device.gate(),
        }
    }

    /// Waits until all work so far is done.
    pub fn synchronize(&self) -> HipResult {
        self.waitable()?;
        let Some(end) = self.end()? else {
            return Ok(());
        };
        self.device.wait(&end)?;
        let mut state = self.state();
        let is_last = match &state.tail {
            Tail::Computed(point) | Tail::Copied(point) => Arc::ptr_eq(point, &end),
            _ => false,
        };
        if is_last && state.waits.is_empty() {
            state.tail = Tail::Idle;
        }
        Ok(())
    }

    /// Whether all work so far is done.
    pub fn is_idle(&self) -> HipResult<bool> {
        self.waitable()?;
        let end = self.end()?;
        let is_idle = end.is_none_or(|end| end.is_passed());
        if !is_idle {
            // A lost device never is.
            self.device.check()?;
        }
        Ok(is_idle)
    }
}
