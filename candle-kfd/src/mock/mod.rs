//! A driver and its GPUs in this process: everything that this crate does runs on it, without a card.
//!
//! [`Mock`] is as strict as the kernel: arguments are checked as Linux' `amdkfd` checks them and refused with its
//! numbers, a GPU reaches only memory that it was given, and what it was not given is a fault that stops it. Its GPUs
//! execute queues; kernels are closures by name ([`Mock::kernel`]). Tests make it refuse, lose and spoil things.
//!
//! ```
//! use candle_kfd::{driver::Driver, mock::Mock};
//!
//! let mock = Mock::new(&["gfx1100"]);
//! assert!(mock.root().join("sys/class/kfd/kfd/topology/nodes/1/properties").exists());
//! assert!(mock.left().is_nothing());
//! ```

mod clock;
mod events;
mod injected;
mod model;
mod object;
mod pages;
mod processor;
mod requests;
mod setup;
mod space;
mod state;
mod sysfs;
mod user;

use crate::driver::{Driver, Errno, MappedFile};
use crate::uapi::{HwExceptionData, MemoryExceptionData, Request};
pub use object::{object, MockKernel};
pub use processor::{MockLaunch, View};
pub use setup::{GpuSetup, Setup};
pub use space::{Fault, Reason};
use state::{Shared, State};
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// Opening a render node, where [`Mock::fail`] wants the name of a request.
pub const OPEN_RENDER: &str = "open";
/// Mapping memory or doorbells, where [`Mock::fail`] wants the name of a request.
pub const MAP: &str = "mmap";

/// A driver with GPUs of its own.
#[derive(Debug)]
pub struct Mock {
    shared: Arc<Shared>,
    folder: sysfs::Folder,
}

/// What a process has not given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Allocations.
    pub allocations: usize,
    /// Mappings of memory to GPUs.
    pub mappings: usize,
    /// Events.
    pub events: usize,
    /// Queues.
    pub queues: usize,
}

impl Left {
    /// Whether everything was given back.
    pub fn is_nothing(&self) -> bool {
        *self == Left::default()
    }
}

impl Mock {
    /// Has GPUs of these archs, such as `gfx1100`.
    ///
    /// # Panics
    /// If a name is none of an arch, or temporary files cannot be written.
    pub fn new(archs: &[&str]) -> Arc<Self> {
        Self::with(Setup::of(archs))
    }

    /// Has GPUs as they are set up.
    ///
    /// # Panics
    /// As of [`Mock::new`].
    pub fn with(setup: Setup) -> Arc<Self> {
        Self::try_with(setup).expect("a mock needs names of archs, and room for temporary files")
    }

    /// Has GPUs as they are set up.
    ///
    /// # Errors
    /// If a name is none of an arch, or temporary files cannot be written.
    pub fn try_with(setup: Setup) -> std::io::Result<Arc<Self>> {
        let folder = sysfs::Folder::new()?;
        let described = setup.described()?;
        sysfs::write(&folder, &described, setup.linked)?;
        let shared = Shared::new(setup, described)
            .map_err(|Errno(number)| std::io::Error::from_raw_os_error(number))?;
        Ok(Arc::new(Mock {
            shared: Arc::new(shared),
            folder,
        }))
    }

    /// Refuses the `nth` call from now on, 0 being the next, of a request (`AMDKFD_IOC_…`, [`OPEN_RENDER`] or [`MAP`])
    /// with a number of `errno.h`.
    pub fn fail(&self, request: &'static str, nth: usize, errno: i32) {
        self.state().refusals.push((request, nth, errno));
    }

    /// How often a request was made so far, refused ones included.
    pub fn calls(&self, request: &str) -> usize {
        self.state().calls.get(request).copied().unwrap_or(0)
    }

    /// What was not given back so far.
    pub fn left(&self) -> Left {
        self.state().left()
    }

    /// Runs a closure where a kernel of this name is launched: once for all blocks. A fault that it returns is one of
    /// the GPU's. Kernels without a closure are illegal instructions.
    pub fn kernel(
        &self,
        name: &str,
        body: impl Fn(&MockLaunch) -> Result<(), Fault> + Send + Sync + 'static,
    ) {
        self.shared.kernels.insert(name, body);
    }

    /// What queues did that hardware would let pass, or hang from without a word; tests that are not about it want none.
    pub fn complaints(&self) -> Vec<String> {
        self.state().complaints.clone()
    }

    /// Memory as a GPU reaches it.
    pub fn memory(&self, gpu: usize) -> View {
        View::new(Arc::clone(&self.shared), gpu)
    }

    /// The engines of a GPU's copy queues, by the queues' numbers.
    pub fn engines(&self, gpu: usize) -> Vec<u32> {
        let state = self.state();
        let own = (state.queues.values()).filter(|queue| queue.settings.gpu == gpu);
        let mut engines: Vec<_> = own
            .filter_map(|queue| Some((queue.settings.id, queue.settings.engine?)))
            .collect();
        engines.sort_unstable();
        engines.into_iter().map(|(_, engine)| engine).collect()
    }

    /// Loses the next interrupts, so that nobody wakes from them.
    pub fn lose_interrupts(&self, count: usize) {
        self.state().events.lose = count;
    }

    /// Takes no doorbell any more, or does again.
    pub fn ignore_doorbells(&self, ignored: bool) {
        self.shared.injected.set_deaf(ignored);
    }

    /// Executes so many more packets of all queues; those that come then are never done.
    pub fn stall_after(&self, packets: usize) {
        *lock(&self.shared.injected.packets) = Some(packets);
    }

    /// Has kernels done after the one behind them, where that does not wait for them: what depends on an order that it
    /// did not ask for goes wrong.
    pub fn swap_kernels(&self, swap: bool) {
        self.shared.injected.swapping.store(swap, Ordering::SeqCst);
    }

    /// Copies a byte wrongly: that at an offset (modulo the copy's length) of the `nth` packet of SDMA that copies from
    /// now on, 0 being the next.
    pub fn spoil_copy(&self, nth: usize, offset: u64) {
        *lock(&self.shared.injected.copies) = Some((nth, offset));
    }

    /// Resets a GPU: its queues execute nothing any more, and its memory is lost.
    pub fn reset(&self, gpu: usize) {
        self.shared.injected.lost[gpu].store(true, Ordering::SeqCst);
        let whole_gpu = HwExceptionData {
            memory_lost: 1,
            ..HwExceptionData::default()
        };
        self.hardware_exception(gpu, whole_gpu);
    }

    /// Tells of an exception of a GPU, whose number is filled in.
    pub fn hardware_exception(&self, gpu: usize, told: HwExceptionData) {
        let mut state = self.state();
        let gpu_id = state.gpus[gpu].described.gpu_id;
        state
            .events
            .hardware_exception(HwExceptionData { gpu_id, ..told });
        drop(state);
        self.shared.woken.notify_all();
    }

    /// Tells of an access of a GPU that failed, whose number is filled in; queues go on.
    pub fn memory_fault(&self, gpu: usize, told: MemoryExceptionData) {
        let mut state = self.state();
        let gpu_id = state.gpus[gpu].described.gpu_id;
        state
            .events
            .memory_fault(MemoryExceptionData { gpu_id, ..told });
        drop(state);
        self.shared.woken.notify_all();
    }

    /// Lets the next request that maps memory to GPUs fail once it has done so for some of them.
    pub fn map_partially(&self, gpus: u32) {
        self.state().map_partially = Some(gpus);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.shared.state)
    }

    /// Counts a call, and refuses it if that was asked for.
    fn admit(&self, request: &'static str) -> Result<(), Errno> {
        self.state().admit(request)
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        let queues = std::mem::take(&mut self.state().queues);
        queues.into_values().for_each(processor::Queue::end);
    }
}

/// Locks; a thread that panicked meanwhile has left nothing half done that matters to a test.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What tells one open file from others, whatever its descriptor.
fn identity(descriptor: RawFd) -> Result<(u64, u64), Errno> {
    // SAFETY: zeros are a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is to be written; a descriptor that is not open is an error.
    if unsafe { libc::fstat(descriptor, &mut stat) } != 0 {
        return Err(Errno(libc::EBADF));
    }
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}

impl Driver for Mock {
    unsafe fn ioctl(&self, number: u32, argument: &mut [u8]) -> Result<(), Errno> {
        requests::dispatch(&self.shared, number, argument)
    }

    fn open_render(&self, minor: u32) -> Result<File, Errno> {
        self.admit(OPEN_RENDER)?;
        let mut state = self.state();
        let index = (0..state.gpus.len()).find(|&index| sysfs::render_minor(index) == minor);
        let index = index.ok_or(Errno(libc::ENOENT))?;
        let file = pages::memfd("candle-kfd-render")?;
        let identity = identity(file.as_raw_fd())?;
        state.renders.insert(identity, index);
        Ok(File::from(file))
    }

    unsafe fn map(
        &self,
        file: MappedFile<'_>,
        offset: u64,
        address: usize,
        bytes: usize,
    ) -> Result<(), Errno> {
        self.admit(MAP)?;
        if !address.is_multiple_of(pages::PAGE as usize) || bytes == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let (pages, offset) = match file {
            MappedFile::Kfd => self.state().map_kfd(offset, bytes as u64)?,
            MappedFile::Render(render) => {
                let identity = identity(render.as_raw_fd())?;
                self.state().map_render(identity, offset, bytes as u64)?
            }
        };
        // SAFETY: the caller's promise.
        unsafe { pages.map(offset, address, bytes) }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }
}

/// Names of all requests that [`Mock::fail`] knows.
pub const REQUESTS: &[&str] = &[
    OPEN_RENDER,
    MAP,
    crate::uapi::GetVersion::NAME,
    crate::uapi::CreateQueue::NAME,
    crate::uapi::DestroyQueue::NAME,
    crate::uapi::SetMemoryPolicy::NAME,
    crate::uapi::GetClockCounters::NAME,
    crate::uapi::UpdateQueue::NAME,
    crate::uapi::CreateEvent::NAME,
    crate::uapi::DestroyEvent::NAME,
    crate::uapi::SetEvent::NAME,
    crate::uapi::ResetEvent::NAME,
    crate::uapi::WaitEvents::NAME,
    crate::uapi::SetScratchBackingVa::NAME,
    crate::uapi::SetTrapHandler::NAME,
    crate::uapi::GetProcessAperturesNew::NAME,
    crate::uapi::AcquireVm::NAME,
    crate::uapi::AllocMemoryOfGpu::NAME,
    crate::uapi::FreeMemoryOfGpu::NAME,
    crate::uapi::MapMemoryToGpu::NAME,
    crate::uapi::UnmapMemoryFromGpu::NAME,
    crate::uapi::GetAvailableMemory::NAME,
    crate::uapi::RuntimeEnable::NAME,
];
