//! A GPU with a stream of its own: where memory lives and work is enqueued.

use crate::blas::Blas;
use crate::config::Config;
use crate::error_word::{self, ErrorWord};
use crate::gpu::{lock, Gpu};
use crate::launch::Kernel;
use crate::memory::{self, Buffer, MemoryStats, Pool};
use crate::miopen::MiOpen;
use crate::pinned::Staging;
use crate::sys::hip;
use crate::{DeviceProperties, Error, Event, Result, Stream};
use candle_rocm_kernels::{CkInstance, Family};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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
    blas: Mutex<Option<Blas>>,
    miopen: Mutex<MiOpen>,
    uploads: Mutex<Staging>,
    downloads: Mutex<Staging>,
    error_word: ErrorWord,
    pool: Pool,
    random: Mutex<RandomState>,
    launches: AtomicU64,
    config: Config,
    stream: Stream,
    gpu: &'static Gpu,
}

#[derive(Clone, Copy, Debug)]
struct RandomState {
    seed: u64,
    next: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.gpu.defer(self.stream.wait_idle());
        lock(&self.miopen).give_back(&self.pool, &self.stream);
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

    /// A device with a stream and an allocator of its own, and the given settings.
    ///
    /// # Errors
    /// Those of [`Device::count`], and [`Error::InvalidOrdinal`].
    pub fn with_config(ordinal: usize, config: Config) -> Result<Self> {
        let gpu = Gpu::get(ordinal)?;
        gpu.enter()?;
        Self::on(gpu, Stream::new(gpu)?, config)
    }

    /// A device on a stream that the caller made, for working together with other users of HIP.
    ///
    /// # Safety
    /// `stream` is a `hipStream_t` of this ordinal, or null for its default stream, and outlives every
    /// clone of the device and every buffer made from it.
    ///
    /// # Errors
    /// Those of [`Device::new`].
    pub unsafe fn from_raw_stream(ordinal: usize, stream: *mut c_void) -> Result<Self> {
        let gpu = Gpu::get(ordinal)?;
        let config = Config::from_env()?;
        gpu.enter()?;
        // SAFETY: as the caller promises.
        Self::on(gpu, unsafe { Stream::borrowed(gpu, stream) }, config)
    }

    fn on(gpu: &'static Gpu, stream: Stream, config: Config) -> Result<Self> {
        Ok(Device {
            inner: Arc::new(Inner {
                blas: Mutex::new(None),
                miopen: Mutex::new(MiOpen::new(config.miopen)),
                uploads: Mutex::default(),
                downloads: Mutex::default(),
                error_word: ErrorWord::new(gpu, &stream)?,
                pool: Pool::new(gpu, config.allocation),
                random: Mutex::new(RandomState {
                    seed: DEFAULT_SEED,
                    next: 0,
                }),
                launches: AtomicU64::new(0),
                config,
                stream,
                gpu,
            }),
        })
    }

    /// Number of the GPU among the visible ones.
    pub fn ordinal(&self) -> usize {
        self.inner.gpu.ordinal
    }

    /// What the GPU is and has.
    pub fn properties(&self) -> &DeviceProperties {
        &self.inner.gpu.properties
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

    /// Uninitialised memory. Zero bytes is legal and allocates nothing.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device is full even after the cache was emptied.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.enter()?;
        Buffer::new(self, bytes)
    }

    /// Memory filled with zero bytes.
    ///
    /// # Errors
    /// Those of [`Device::alloc`].
    pub fn alloc_zeroed(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.alloc(bytes)?;
        if bytes > 0 {
            // SAFETY: the buffer has `bytes` bytes.
            let status = unsafe {
                (self.gpu().hip.hipMemsetAsync)(buffer.as_ptr(), 0, bytes, self.stream().as_raw())
            };
            self.gpu().check("hipMemsetAsync", status)?;
        }
        Ok(buffer)
    }

    /// A buffer with the given contents. The slice may be reused when this returns; the device may still
    /// be copying.
    ///
    /// # Errors
    /// Those of [`Device::alloc`].
    pub fn upload(&self, bytes: &[u8]) -> Result<Buffer> {
        let buffer = self.alloc(bytes.len())?;
        self.upload_into(bytes, &buffer, 0)?;
        Ok(buffer)
    }

    /// Overwrites part of a buffer of this device.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::DeviceMismatch`].
    pub fn upload_into(&self, bytes: &[u8], buffer: &Buffer, byte_offset: usize) -> Result<()> {
        self.enter()?;
        self.check_owner("upload", buffer)?;
        buffer.check_range("upload", byte_offset, bytes.len())?;
        self.check_not_capturing(
            "upload",
            "it would repeat an upload with stale bytes; upload before",
        )?;
        let dst = buffer.as_ptr().wrapping_byte_add(byte_offset);
        // SAFETY: the range was checked.
        unsafe { lock(&self.inner.uploads).upload(self.stream(), bytes, dst) }
    }

    /// Waits for the stream and fills `bytes` from a buffer of this device.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::DeviceMismatch`], and those of [`Device::synchronize`].
    pub fn download(&self, buffer: &Buffer, byte_offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.enter()?;
        self.check_owner("download", buffer)?;
        buffer.check_range("download", byte_offset, bytes.len())?;
        self.check_not_capturing("download", "there is no result yet; download afterwards")?;
        let word = self.inner.error_word.fetch(self.stream())?;
        let src = buffer.as_ptr().wrapping_byte_add(byte_offset);
        if bytes.is_empty() {
            self.stream().wait_idle()?;
        } else {
            // SAFETY: the range was checked.
            unsafe { lock(&self.inner.downloads).download(self.stream(), src, bytes)? };
        }
        word.map_or(Ok(()), |word| word.finish())
    }

    /// Copies between buffers of any devices. Ranges within one buffer must not overlap. Both devices'
    /// streams see the copy in order; the host does not wait.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn copy(
        &self,
        src: &Buffer,
        src_offset: usize,
        dst: &Buffer,
        dst_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        src.check_range("copy", src_offset, bytes)?;
        dst.check_range("copy", dst_offset, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        let from = src.as_ptr().wrapping_byte_add(src_offset);
        let to = dst.as_ptr().wrapping_byte_add(dst_offset);
        let (reader, writer) = (src.device(), dst.device());
        if reader.same_device(writer) {
            return writer.enqueue_copy(reader, from, to, bytes);
        }
        // The copy runs on the writer's stream, between everything that was enqueued on the reader's
        // before and everything that will be after.
        reader.enter()?;
        let ready = Event::untimed(reader.gpu())?;
        ready.record(reader.stream())?;
        writer.stream().wait(&ready)?;
        writer.enqueue_copy(reader, from, to, bytes)?;
        let done = Event::untimed(writer.gpu())?;
        done.record(writer.stream())?;
        reader.stream().wait(&done)
    }

    fn enqueue_copy(
        &self,
        reader: &Device,
        from: *mut c_void,
        to: *mut c_void,
        bytes: usize,
    ) -> Result<()> {
        self.enter()?;
        let gpu = self.gpu();
        let stream = self.stream().as_raw();
        // SAFETY: the caller checked both ranges.
        unsafe {
            if reader.ordinal() == self.ordinal() {
                let kind = hip::MEMCPY_DEVICE_TO_DEVICE;
                let status = (gpu.hip.hipMemcpyAsync)(to, from, bytes, kind, stream);
                gpu.check("hipMemcpyAsync (device to device)", status)
            } else {
                let (here, there) = (self.ordinal() as c_int, reader.ordinal() as c_int);
                let status = (gpu.hip.hipMemcpyPeerAsync)(to, here, from, there, bytes, stream);
                gpu.check("hipMemcpyPeerAsync", status)
            }
        }
    }

    /// Kernels, products, convolutions and graphs enqueued on this device so far. A graph counts as one each time that it is
    /// launched, and nothing while it is captured.
    pub fn launches(&self) -> u64 {
        self.inner.launches.load(Ordering::Relaxed)
    }

    /// To be called for each of what [`Device::launches`] counts.
    pub(crate) fn count_launch(&self) {
        self.inner.launches.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes back what was counted since `launches`.
    pub(crate) fn restore_launches(&self, launches: u64) {
        self.inner.launches.store(launches, Ordering::Relaxed);
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
        memory::memory_info(self.gpu())
    }

    /// Waits for the stream and gives all cached memory back to the GPU.
    ///
    /// # Errors
    /// HIP's.
    pub fn trim(&self) -> Result<()> {
        self.enter()?;
        self.pool().trim(self.stream())
    }

    /// A kernel of this product. The first use of a family loads it, or compiles it if this machine
    /// has not done so before.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn kernel(&self, family: Family, name: &str) -> Result<Kernel> {
        self.enter()?;
        let function = self.gpu().modules.family(self.gpu(), family, name)?;
        Ok(Kernel::new(self, function))
    }

    /// A kernel of the caller's HIP source, an `extern "C" __global__` function. The source may include
    /// `"device.h"`. It is compiled once per machine; keep the kernel to save looking it up.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's messages.
    pub fn custom_kernel(&self, source: &str, name: &str) -> Result<Kernel> {
        self.enter()?;
        let function = self.gpu().modules.custom(self.gpu(), source, name)?;
        Ok(Kernel::new(self, function))
    }

    /// The kernel of Composable Kernel's attention for what `instance` says; there is one if the build made it for this arch.
    pub(crate) fn ck_kernel(&self, instance: CkInstance) -> Result<Kernel> {
        self.enter()?;
        let function = self.gpu().modules.ck(self.gpu(), instance)?;
        Ok(Kernel::new(self, function))
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

    /// The word in which indexing kernels report an index that is out of range; hand it to them with
    /// [`Args::ptr`](crate::Args::ptr). See [`IndexOp`](crate::IndexOp) for its layout and codes.
    pub fn error_word(&self) -> Buffer {
        Buffer::unowned(self, self.inner.error_word.ptr(), error_word::BYTES)
    }

    /// Tells this crate that the calling thread changed HIP's current device by other means.
    pub fn forget_current() {
        Gpu::unbind_thread();
    }

    pub(crate) fn error_state(&self) -> &ErrorWord {
        &self.inner.error_word
    }

    pub(crate) fn enter(&self) -> Result<()> {
        self.inner.gpu.enter()
    }

    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.inner.gpu
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    pub(crate) fn blas(&self) -> &Mutex<Option<Blas>> {
        &self.inner.blas
    }

    pub(crate) fn miopen(&self) -> &Mutex<MiOpen> {
        &self.inner.miopen
    }

    /// Distinguishes devices in comparisons.
    pub(crate) fn identity(&self) -> *const c_void {
        Arc::as_ptr(&self.inner).cast()
    }

    fn check_not_capturing(&self, op: &'static str, reason: &str) -> Result<()> {
        if !self.pool().is_capturing() {
            return Ok(());
        }
        Err(Error::InvalidArgument {
            op,
            reason: format!("a graph is being captured: {reason}"),
        })
    }

    fn check_owner(&self, op: &'static str, buffer: &Buffer) -> Result<()> {
        if self.same_device(buffer.device()) {
            Ok(())
        } else {
            Err(Error::DeviceMismatch { op })
        }
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
