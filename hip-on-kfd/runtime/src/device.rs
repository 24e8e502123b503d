//! A GPU with its queues.

use crate::clock::nanoseconds;
use crate::lane::{ComputeLane, CopyLane};
use crate::point::{Point, Pool};
use crate::staging::Staging;
use crate::status::{lost_gpu, told};
use crate::stream::Stream;
use crate::sync::lock;
use crate::wait::{wait, Patience};
use candle_kfd::{Clocks, Gpu};
use hip_abi::error::{HipError, HipResult};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Compute queues of a GPU at most, which its streams share: each takes up to 190 MB of host memory, to which its waves
/// are saved.
const LANES: usize = 2;

/// A GPU of the process.
pub(crate) struct Device {
    pub ordinal: usize,
    pub gpu: Arc<Gpu>,
    pub pool: Arc<Pool>,
    pub staging: Staging,
    /// When it was opened.
    begin: Clocks,
    /// Devices whose memory this one may use.
    pub peers: Mutex<BTreeSet<usize>>,
    lanes: [Slot<ComputeLane>; LANES],
    copies: Slot<CopyLane>,
    streams: AtomicUsize,
    default_stream: OnceLock<Arc<Stream>>,
    /// Why the device is of no use any more.
    lost: OnceLock<HipError>,
}

/// A queue that the first use opens.
struct Slot<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot(Mutex::default())
    }
}

impl<T> Slot<T> {
    fn get(&self, open: impl FnOnce() -> candle_kfd::Result<T>) -> candle_kfd::Result<Arc<T>> {
        let mut slot = lock(&self.0);
        if let Some(opened) = &*slot {
            return Ok(opened.clone());
        }
        let opened = Arc::new(open()?);
        *slot = Some(opened.clone());
        Ok(opened)
    }

    fn opened(&self) -> Option<Arc<T>> {
        lock(&self.0).clone()
    }
}

impl Device {
    pub fn new(ordinal: usize, gpu: Arc<Gpu>) -> candle_kfd::Result<Self> {
        Ok(Device {
            ordinal,
            begin: gpu.clocks()?,
            pool: Pool::new(&gpu),
            staging: Staging::default(),
            peers: Mutex::default(),
            lanes: Default::default(),
            copies: Slot::default(),
            streams: AtomicUsize::new(0),
            default_stream: OnceLock::new(),
            lost: OnceLock::new(),
            gpu,
        })
    }

    /// The compute queue of a stream that chose this number.
    pub fn lane(&self, number: usize) -> HipResult<Arc<ComputeLane>> {
        let opened = self.lanes[number % LANES].get(|| ComputeLane::new(&self.gpu));
        opened.map_err(|error| self.failed(error))
    }

    /// The queue of copies.
    pub fn copies(&self) -> HipResult<Arc<CopyLane>> {
        let opened = self.copies.get(|| CopyLane::new(&self.gpu));
        opened.map_err(|error| self.failed(error))
    }

    /// A number for a new stream.
    pub fn next_lane(&self) -> usize {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// The stream that callers name by null.
    pub fn default_stream(&'static self) -> Arc<Stream> {
        self.default_stream
            .get_or_init(|| Arc::new(Stream::new(self, true)))
            .clone()
    }

    /// The status of an error, remembered if the device is lost with it.
    pub fn failed(&self, error: candle_kfd::Error) -> HipError {
        if let Some(status) = self.lost.get() {
            return *status;
        }
        // It may be another's, to which memory was to be shown.
        let is_lost = lost_gpu(&error) == Some(&self.gpu.node().pci_id);
        let status = told(error);
        match is_lost {
            true => *self.lost.get_or_init(|| status),
            false => status,
        }
    }

    /// Fails if the device is lost, or is found to be.
    pub fn check(&self) -> HipResult {
        if let Some(status) = self.lost.get() {
            return Err(*status);
        }
        self.gpu
            .check_faults()
            .map_err(|error| self.failed(error))?;
        let opened = self.lanes.iter().filter_map(Slot::opened);
        for lane in opened {
            lane.check().map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    /// Fails if the device is known to be lost.
    pub fn gate(&self) -> HipResult {
        self.lost.get().map_or(Ok(()), |status| Err(*status))
    }

    /// Waits until the GPU has passed a point.
    pub fn wait(&self, point: &Point) -> HipResult {
        let passed = wait(point, Patience::from_env(), || self.check());
        passed.map_err(|status| match status {
            HipError::LaunchFailure => *self.lost.get_or_init(|| status),
            status => status,
        })
    }

    /// Whether it can use the memory of another, once that is mapped for it.
    pub fn is_linked(&self, other: &Device) -> bool {
        let index = other.gpu.node().index;
        let mut links = self.gpu.node().links.iter();
        links.any(|link| link.node == index && link.peer_dma)
    }

    /// GPUs of the devices that may use the memory of this one.
    pub fn users(&self, devices: &[Device]) -> Vec<Arc<Gpu>> {
        let users = devices
            .iter()
            .filter(|other| other.gate().is_ok() && lock(&other.peers).contains(&self.ordinal));
        users.map(|user| user.gpu.clone()).collect()
    }

    /// Nanoseconds of so many ticks of the GPU's clock.
    pub fn nanoseconds(&self, ticks: i64) -> HipResult<f64> {
        let now = self.gpu.clocks().map_err(|error| self.failed(error))?;
        nanoseconds(&self.begin, &now, ticks).ok_or(HipError::Unknown)
    }

    /// Waits for all that was enqueued on the device.
    pub fn idle(&self) -> HipResult {
        self.gate()?;
        for lane in self.lanes.iter().filter_map(Slot::opened) {
            let end = lane.point(&self.pool, Vec::new());
            self.wait(&end.map_err(|error| self.failed(error))?)?;
        }
        if let Some(copies) = self.copies.opened() {
            if let Some(end) = copies.end() {
                self.wait(&end)?;
            }
        }
        Ok(())
    }
}
