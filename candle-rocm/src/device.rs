//! A GPU with a stream of its own: where memory lives and work is enqueued.

use crate::caches::HoldsCache;
use crate::config::Config;
use crate::error_word::ErrorWord;
use crate::gpu::Gpu;
use crate::launch_count::LaunchCount;
use crate::pinned::Staging;
use crate::pool::{memory_info, MemoryStats, Pool};
use crate::shared::Shared;
use crate::slots::{Kept, Slots};
use crate::sync::lock;
use crate::{DeviceProperties, Error, Event, Result, Stream};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, Weak};

/// Seed of a device that was given none.
const DEFAULT_SEED: u64 = 299_792_458;

/// A handle to a GPU, one of its streams, and an allocator. Cheap to clone; may be shared by threads, whose
/// work the stream carries out in the order in which it was enqueued.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

// Fields drop in this order: what uses the stream goes before it.
struct Inner {
    slots: Slots,
    uploads: Mutex<Staging>,
    downloads: Mutex<Staging>,
    error_word: ErrorWord,
    pool: Pool,
    random: Mutex<RandomState>,
    launches: LaunchCount,
    config: Config,
    stream: Stream,
    shared: &'static Shared,
}

#[derive(Clone, Copy, Debug)]
struct RandomState {
    seed: u64,
    next: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.gpu.defer(self.stream.wait_idle());
        self.slots.give_back(&self.pool, &self.stream);
    }
}

impl HoldsCache for Inner {
    fn empty_cache(&self) {
        self.shared.gpu.defer(self.pool.empty_cache(&self.stream));
    }
}

impl Device {
    /// Number of GPUs that HIP shows to this process; at least 1.
    ///
    /// # Errors
    /// [`Error::Load`] without ROCm, [`Error::NoDevice`] without a usable GPU; both say what to do.
    pub fn count() -> Result<usize> {
        Gpu::count()
    }

    /// A device with a stream and an allocator of its own, and the settings of the environment.
    ///
    /// # Errors
    /// Those of [`Device::count`] and [`Config::from_env`], and [`Error::InvalidOrdinal`].
    pub fn new(ordinal: usize) -> Result<Self> {
        Self::with_config(ordinal, Config::from_env()?)
    }

    pub(crate) fn on(shared: &'static Shared, stream: Stream, config: Config) -> Result<Self> {
        let gpu = &shared.gpu;
        let inner = Arc::new(Inner {
            slots: Slots::default(),
            uploads: Mutex::default(),
            downloads: Mutex::default(),
            error_word: ErrorWord::new(gpu, &stream)?,
            pool: Pool::new(gpu, config.allocation),
            random: Mutex::new(RandomState {
                seed: DEFAULT_SEED,
                next: 0,
            }),
            launches: LaunchCount::default(),
            config,
            stream,
            shared,
        });
        let cache: Weak<Inner> = Arc::downgrade(&inner);
        gpu.caches.register(cache);
        Ok(Device { inner })
    }

    /// Number of the GPU among the visible ones.
    pub fn ordinal(&self) -> usize {
        self.gpu().ordinal
    }

    /// What the GPU is and has.
    pub fn properties(&self) -> &DeviceProperties {
        &self.gpu().properties
    }

    /// The settings that it was made with.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The stream that carries out this device's work.
    pub fn stream(&self) -> &Stream {
        &self.inner.stream
    }

    /// Whether both are clones of one device. Two devices on the same GPU have different streams.
    pub fn same_device(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Waits for all work enqueued so far.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] if an indexing kernel met a bad index, and HIP's errors, including
    /// those of earlier asynchronous work.
    pub fn synchronize(&self) -> Result<()> {
        self.enter()?;
        self.check_not_capturing("synchronize", "nothing runs that could be waited for")?;
        let word = self.inner.error_word.fetch(self.stream())?;
        self.stream().wait_idle()?;
        word.map_or(Ok(()), |word| word.finish())
    }

    /// Kernels, products, convolutions and graphs enqueued on this device so far. A graph counts as one each time that
    /// it is launched, and nothing while it is captured.
    pub fn launches(&self) -> u64 {
        self.inner.launches.get()
    }

    /// To be called for each of what [`Device::launches`] counts.
    pub(crate) fn count_launch(&self) {
        self.inner.launches.add();
    }

    pub(crate) fn launch_count(&self) -> &LaunchCount {
        &self.inner.launches
    }

    /// What this device's allocator holds and has done.
    pub fn memory_stats(&self) -> MemoryStats {
        self.pool().stats()
    }

    /// Free and total bytes of the GPU, all processes counted.
    ///
    /// # Errors
    /// HIP's.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.enter()?;
        memory_info(self.gpu())
    }

    /// Waits for the stream and gives all cached memory back to the GPU.
    ///
    /// # Errors
    /// HIP's.
    pub fn trim(&self) -> Result<()> {
        self.enter()?;
        self.pool().trim(self.stream())
    }

    /// Restarts the random numbers of this device.
    pub fn set_seed(&self, seed: u64) {
        *lock(&self.inner.random) = RandomState { seed, next: 0 };
    }

    /// The seed last set.
    pub fn seed(&self) -> u64 {
        lock(&self.inner.random).seed
    }

    /// Seed and first counter for `count` counters of a counter-based generator. No other call gets
    /// the same counters until the seed is set again.
    pub fn reserve_random(&self, count: u64) -> (u64, u64) {
        let mut random = lock(&self.inner.random);
        let first = random.next;
        random.next = first.wrapping_add(count);
        (random.seed, first)
    }

    pub(crate) fn error_state(&self) -> &ErrorWord {
        &self.inner.error_word
    }

    pub(crate) fn enter(&self) -> Result<()> {
        self.gpu().enter()
    }

    pub(crate) fn gpu(&self) -> &'static Gpu {
        &self.inner.shared.gpu
    }

    pub(crate) fn shared(&self) -> &'static Shared {
        self.inner.shared
    }

    /// What is kept of a type for the device.
    pub(crate) fn slot<T: Kept + Default>(&self) -> &T {
        self.inner.slots.get()
    }

    pub(crate) fn uploads(&self) -> &Mutex<Staging> {
        &self.inner.uploads
    }

    pub(crate) fn downloads(&self) -> &Mutex<Staging> {
        &self.inner.downloads
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Distinguishes devices in comparisons.
    pub(crate) fn identity(&self) -> *const c_void {
        Arc::as_ptr(&self.inner).cast()
    }

    pub(crate) fn check_not_capturing(&self, op: &'static str, reason: &str) -> Result<()> {
        if !self.pool().is_capturing() {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            op,
            reason: format!("a graph is being captured: {reason}"),
        })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Device({}, {}, stream {:?})",
            self.ordinal(),
            self.properties().full_arch,
            self.stream().as_raw()
        )
    }
}

impl Event {
    /// An event that can be waited for and timed.
    ///
    /// # Errors
    /// HIP's.
    pub fn new(device: &Device) -> Result<Self> {
        device.enter()?;
        Self::timed(device.gpu())
    }
}
