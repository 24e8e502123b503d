//! Running kernels: modules, launches, and the blocks of a launch on the CPU's cores.

pub(crate) mod abi;
mod block;
mod crash;
mod crew;
mod fault;
mod matrix;
mod module;

pub use abi::Dim3;
pub(crate) use block::split_mix;
pub(crate) use fault::describe;
pub(crate) use module::{Function, Module};

use crate::arch::Arch;
use crate::error::{HipError, HipResult};
use crate::inject::Failure;
use crate::sim::{Counters, Sim};
use crew::Crew;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Threads in a block, at most.
pub(crate) const MAX_BLOCK: u32 = 1024;
/// Blocks in a grid, at most, per dimension.
pub(crate) const MAX_GRID: Dim3 = Dim3 {
    x: i32::MAX as u32,
    y: 65536,
    z: 65536,
};
/// Launches of fewer device threads run on the calling thread: waking others would take longer.
const PARALLEL_THREADS: u64 = 8192;

/// A launch with its own copy of the arguments: what a stream runs and a graph keeps.
pub(crate) struct Launch {
    pub function: Arc<Function>,
    pub grid: Dim3,
    pub block: Dim3,
    pub shared_bytes: usize,
    args: Args,
}

/// Argument values at their natural alignment, as HIP packs them.
pub(crate) struct Args {
    bytes: Vec<u128>,
    offsets: Vec<usize>,
}

impl Args {
    /// Copies from one pointer per argument.
    ///
    /// # Safety
    /// `params` is null or has one pointer per argument of the kernel, each to a value of its type.
    pub unsafe fn from_params(
        function: &Function,
        params: *const *const c_void,
    ) -> HipResult<Args> {
        let mut args = Args::layout(function).0;
        if params.is_null() && !args.offsets.is_empty() {
            return Err(HipError::InvalidValue);
        }
        for (i, (size, _)) in function.args().enumerate() {
            // SAFETY: the caller's promise.
            let source = unsafe { *params.add(i) };
            if source.is_null() {
                return Err(HipError::InvalidValue);
            }
            // SAFETY: the caller's promise; the buffer was laid out for this kernel.
            unsafe { std::ptr::copy_nonoverlapping(source.cast::<u8>(), args.slot(i), size) };
        }
        Ok(args)
    }

    /// Copies from one buffer that is packed as HIP packs arguments; refuses a buffer that is too small.
    ///
    /// # Safety
    /// `buffer` has `bytes` readable bytes.
    pub unsafe fn from_buffer(
        function: &Function,
        buffer: *const c_void,
        bytes: usize,
    ) -> HipResult<Args> {
        let (mut args, needed) = Args::layout(function);
        if bytes < needed || (buffer.is_null() && needed > 0) {
            return Err(HipError::InvalidValue);
        }
        // SAFETY: both sides have `needed` bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(
                buffer.cast::<u8>(),
                args.bytes.as_mut_ptr().cast(),
                needed,
            )
        };
        Ok(args)
    }

    fn layout(function: &Function) -> (Args, usize) {
        let mut end = 0usize;
        let offsets = function
            .args()
            .map(|(size, align)| {
                let at = end.next_multiple_of(align);
                end = at + size;
                at
            })
            .collect();
        (
            Args {
                bytes: vec![0; end.div_ceil(16)],
                offsets,
            },
            end,
        )
    }

    fn slot(&mut self, index: usize) -> *mut u8 {
        // SAFETY: offsets lie inside the buffer.
        unsafe {
            self.bytes
                .as_mut_ptr()
                .cast::<u8>()
                .add(self.offsets[index])
        }
    }

    fn addresses(&self) -> Vec<*const c_void> {
        let base = self.bytes.as_ptr().cast::<u8>();
        // SAFETY: offsets lie inside the buffer.
        self.offsets
            .iter()
            .map(|at| unsafe { base.add(*at).cast() })
            .collect()
    }
}

impl Launch {
    /// Checks the configuration as the real runtime does.
    pub fn new(
        function: Arc<Function>,
        grid: Dim3,
        block: Dim3,
        shared_bytes: usize,
        arch: &Arch,
        args: Args,
    ) -> HipResult<Launch> {
        let bound = match function.info().max_threads {
            0 => MAX_BLOCK,
            bound => bound.min(MAX_BLOCK),
        };
        let beyond = |n: u32, per: u32| n as u64 * per as u64 > u32::MAX as u64;
        if grid.count() == 0
            || block.count() == 0
            || block.count() > bound as u64
            || grid.x > MAX_GRID.x
            || grid.y > MAX_GRID.y
            || grid.z > MAX_GRID.z
            || beyond(grid.x, block.x)
        {
            return Err(HipError::InvalidConfiguration);
        }
        if shared_bytes > arch.shared_bytes() {
            return Err(HipError::InvalidValue);
        }
        Ok(Launch {
            function,
            grid,
            block,
            shared_bytes,
            args,
        })
    }

    /// Runs the kernel and waits for it.
    pub fn run(&self, sim: &'static Sim) -> HipResult {
        sim.config.failures.check(Failure::Launch)?;
        Counters::count(&sim.counters.launches);
        let module = &self.function.module;
        self.function.name.clone_into(
            &mut sim.devices[module.device]
                .last_kernel
                .lock()
                .unwrap_or_else(|e| e.into_inner()),
        );
        self.reach_peers(sim)?;
        let args = self.args.addresses();
        let wrong = &sim.config.wrong;
        wrong.launch();
        if let Some(delay) = wrong.kernel_delay(&self.function.name) {
            std::thread::sleep(Duration::from_millis(delay));
        }
        let left_out = wrong.leaves_out_a_block(&self.function.name);
        let blocks = self.grid.count() - u64::from(left_out);
        let (grid, crew) = (
            Grid::new(blocks, sim.config.seed),
            Crew::new(&self.function.name),
        );
        let launch = block::Launch {
            entry: self.function.info().entry,
            args: &args,
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            wave: module.wave(),
            seed: sim.config.seed,
            crew: &crew,
            spin_limit: sim.config.spin_limit,
            failed: &grid.failed,
        };
        let context = fault::Context {
            kernel: self.function.name.clone(),
            device: module.device,
            found: AtomicU32::new(0),
        };
        crash::install();
        let work = || fault::within(&context, || grid.run(sim, &launch));
        let is_small = blocks <= 1 || blocks.saturating_mul(self.block.count()) < PARALLEL_THREADS;
        let helpers = if is_small { 0 } else { crew::cores() - 1 };
        crew.run(helpers, sim.config.hang_limit, &work);
        match grid.failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            None => Ok(()),
            Some(why) => {
                sim.reports
                    .add(format!("kernel {}: {why}", self.function.name));
                Err(HipError::LaunchFailure)
            }
        }
    }
}

impl Launch {
    /// Looks for addresses of other devices' memory among the arguments. Those that the device may not access are a
    /// fault; the slowest of the others' links makes the launch wait.
    fn reach_peers(&self, sim: &Sim) -> HipResult {
        let device = self.function.module.device;
        let mut reached = 0u64;
        for word in &self.args.bytes {
            for address in [*word as usize, (*word >> 64) as usize] {
                let Some(peer) = (sim.memory.device_of(address)).filter(|peer| *peer != device)
                else {
                    continue;
                };
                if sim.closed_peer(device, address).is_some() && sim.memory.find(address).is_some()
                {
                    let place = describe(&sim.memory, address);
                    sim.reports.add(format!(
                        "kernel {}: an argument is {address:#x}, {place} on device {peer}, to which device {device} \
                         has no access; hipDeviceEnablePeerAccess gives it",
                        self.function.name
                    ));
                    return Err(HipError::IllegalAddress);
                }
                reached |= 1 << peer;
            }
        }
        (0..sim.devices.len())
            .filter(|peer| reached >> peer & 1 != 0)
            .for_each(|peer| sim.config.peers.delay(device, peer));
        Ok(())
    }
}

/// Hands out the blocks of a launch to workers.
struct Grid {
    blocks: u64,
    /// Blocks taken at once.
    chunk: u64,
    /// With a seed, the order of blocks is rotated by this.
    rotation: u64,
    next: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl Grid {
    fn new(blocks: u64, seed: Option<u64>) -> Grid {
        Grid {
            blocks,
            chunk: (blocks / (crew::cores() as u64 * 16)).clamp(1, 256),
            rotation: seed.map_or(0, |mut s| split_mix(&mut s) % blocks.max(1)),
            next: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    fn run(&self, sim: &'static Sim, launch: &block::Launch) {
        loop {
            let first = self.next.fetch_add(self.chunk, Ordering::Relaxed);
            if first >= self.blocks || self.failed.load(Ordering::Relaxed) {
                return;
            }
            let end = (first + self.chunk).min(self.blocks);
            let result = (first..end).try_for_each(|i| {
                let index = (i + self.rotation) % self.blocks;
                block::run_block(&sim.memory, launch, index)?;
                launch.crew.ended.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
            if let Err(block::Divergence(why)) = result {
                self.failed.store(true, Ordering::Relaxed);
                self.failure
                    .lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .get_or_insert(why);
            }
        }
    }
}

/// The OS threads that run matrix products and convolutions.
pub(crate) fn workers() -> &'static rayon::ThreadPool {
    static POOL: OnceLock<rayon::ThreadPool> = OnceLock::new();
    POOL.get_or_init(|| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(crew::cores())
            .thread_name(|i| format!("hip-sim-blas-{i}"))
            .build()
            .expect("hip-sim: cannot start worker threads")
    })
}
