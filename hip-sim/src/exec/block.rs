//! One block: its threads run one after another on this OS thread, each until it ends or meets a barrier or a wave
//! operation.
//!
//! Threads run on coroutines. A coroutine runs thread after thread; only when one of them has to wait does the next
//! thread get another coroutine. A kernel without barriers costs one switch per wave. A thread that sleeps lets the
//! others of its block go on; when only sleepers are left, the OS thread sleeps a little before it tries them again.

use super::abi::{Block, Dim3, Entry, Thread};
use super::crew::{resident_blocks, Crew};
use super::matrix::{self, Operands};
use crate::memory::{Memory, MAX_SHARED_BYTES};
use corosensei::stack::{DefaultStack, Stack, StackPointer};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Stack of a device thread; only touched pages cost memory.
const STACK_BYTES: usize = 256 << 10;
/// Widest wave.
const MAX_WAVE: usize = 64;
/// Rounds in which all threads of a block sleep again before the OS thread sleeps, too: for a part of the time that it
/// has waited so far, so that those who wait long leave the cores to those who compute.
const EAGER_ROUNDS: u32 = 64;
const NAP_PART: u32 = 16;
const SHORTEST_NAP: Duration = Duration::from_micros(20);
const LONGEST_NAP: Duration = Duration::from_micros(200);
/// After so much time in which a block only slept, its launch gets another OS thread.
const STALL: Duration = Duration::from_millis(2);
/// What one round counts at most towards a limit: the process may have been stopped.
const LONGEST_ROUND: Duration = Duration::from_millis(100);

/// Why a coroutine stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It has no more threads to start.
    Idle,
    /// Its thread waits at `__syncthreads()` of this source line.
    Barrier(u32),
    /// Its thread waits for the lanes of its wave.
    Exchange,
    /// Its thread sleeps for a moment, as in a loop that waits for another block or device.
    Sleep,
}

/// A block that can never end, in words.
#[derive(Debug)]
pub(crate) struct Divergence(pub String);

/// What the lanes of a wave exchange. Device code reaches it while the runner works, so everything in it is a cell.
struct Lanes {
    values: [[Cell<u64>; MAX_WAVE]; 2],
    /// Which of `values` the present exchange fills.
    side: Cell<usize>,
    /// Lanes that reached the present exchange.
    arrived: Cell<u64>,
    /// What they execute there: a matrix instruction, or `None` for a plain exchange.
    instruction: Cell<Option<u32>>,
    /// What is wrong with the present exchange.
    fault: RefCell<Option<String>>,
    /// Lanes of the last finished exchange; before it, the lanes that exist.
    mask: Cell<u64>,
}

/// The suspended threads of a wave.
#[derive(Default)]
struct Suspended {
    exchanging: Vec<Fiber>,
    waiting: Vec<Fiber>,
    sleeping: Vec<Fiber>,
    /// Those that were released and run next.
    leaving: Vec<Fiber>,
}

struct Fiber {
    coroutine: Coroutine<(), Stop, (), StaggeredStack>,
    /// Set by the coroutine when it first runs; lives on its stack.
    yielder: Box<Cell<*const Yielder<(), Stop>>>,
    /// Line of the barrier at which the thread waits.
    line: u32,
}

/// A stack whose top is some lines below the page's end. Were all tops at the same place in their pages, the frames of
/// all threads would compete for the same few lines of the cache.
struct StaggeredStack {
    stack: DefaultStack,
    offset: usize,
}

impl StaggeredStack {
    fn new() -> std::io::Result<StaggeredStack> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        const PAGE: usize = 4096;
        // Five cache lines: odd, so that 64 stacks start in 64 different lines of the page.
        const STEP: usize = 320;
        let offset = NUMBER.fetch_add(1, Ordering::Relaxed) * STEP % PAGE;
        Ok(StaggeredStack {
            stack: DefaultStack::new(STACK_BYTES)?,
            offset,
        })
    }
}

// SAFETY: a part of a stack that is one, with the same limit and guard page; the offset is a multiple of the alignment
// and leaves all but a page of the stack.
unsafe impl Stack for StaggeredStack {
    fn base(&self) -> StackPointer {
        let base = self.stack.base().get() - self.offset;
        StackPointer::new(base).expect("the stack lies above its offset")
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }
}

/// What callbacks from device code need: the block in progress on this OS thread.
struct Current {
    yielder: Cell<*const Yielder<(), Stop>>,
    lanes: Cell<*const Lanes>,
    wave_size: Cell<u32>,
    block: Cell<*const Block>,
    entry: Cell<Option<Entry>>,
    args: Cell<*const *const c_void>,
}

thread_local! {
    static CURRENT: Current = const {
        Current {
            yielder: Cell::new(std::ptr::null()),
            lanes: Cell::new(std::ptr::null()),
            wave_size: Cell::new(0),
            block: Cell::new(std::ptr::null()),
            entry: Cell::new(None),
            args: Cell::new(std::ptr::null()),
        }
    };
    static RUNNER: RefCell<Runner> = RefCell::new(Runner::default());
}

/// Coroutines, waves and shared memory that an OS thread reuses for block after block.
#[derive(Default)]
struct Runner {
    idle: Vec<Fiber>,
    lanes: Vec<Lanes>,
    suspended: Vec<Suspended>,
    order: Order,
    window: Option<Window>,
}

/// The shared-memory window of this OS thread; goes back to the pool with it.
struct Window(usize, &'static Memory);

impl Drop for Window {
    fn drop(&mut self) {
        self.1.return_window(self.0);
    }
}

/// The threads of a block in the order in which they start, wave by wave.
#[derive(Default)]
struct Order {
    shape: Option<(Dim3, u32, Option<u64>)>,
    threads: Vec<Thread>,
}

/// What all blocks of a launch have in common.
#[derive(Clone, Copy)]
pub(crate) struct Launch<'a> {
    pub entry: Entry,
    pub args: &'a [*const c_void],
    pub grid: Dim3,
    pub block: Dim3,
    pub shared_bytes: usize,
    pub wave: u32,
    pub seed: Option<u64>,
    /// The OS threads that run the launch.
    pub crew: &'a Arc<Crew>,
    /// How long the threads of a block may do nothing but sleep.
    pub spin_limit: Duration,
    /// Whether another block has failed.
    pub failed: &'a AtomicBool,
}

// SAFETY: the argument addresses point into a buffer that outlives the launch and is only read.
unsafe impl Sync for Launch<'_> {}

impl Fiber {
    fn new() -> std::io::Result<Fiber> {
        let yielder: Box<Cell<*const Yielder<(), Stop>>> = Box::new(Cell::new(std::ptr::null()));
        let slot: *const Cell<_> = &*yielder;
        let stack = StaggeredStack::new()?;
        let coroutine = Coroutine::with_stack(stack, move |own: &Yielder<(), Stop>, ()| {
            // SAFETY: `slot` is boxed in the fiber, which outlives its coroutine.
            unsafe { (*slot).set(own) };
            CURRENT.with(|c| c.yielder.set(own));
            loop {
                let (entry, block, args) =
                    CURRENT.with(|c| (c.entry.get(), c.block.get(), c.args.get()));
                if let Some(entry) = entry {
                    // SAFETY: the runner set these for the block in progress before it resumed this coroutine.
                    unsafe { entry(block, args) };
                }
                own.suspend(Stop::Idle);
            }
        });
        Ok(Fiber {
            coroutine,
            yielder,
            line: 0,
        })
    }

    fn resume(&mut self) -> Stop {
        CURRENT.with(|c| c.yielder.set(self.yielder.get()));
        match self.coroutine.resume(()) {
            CoroutineResult::Yield(stop) => stop,
            CoroutineResult::Return(()) => unreachable!("a fiber's loop never ends"),
        }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // SAFETY: the stack holds frames of device code, which owns nothing, and of the loop in `new`, which owns
        // nothing either.
        unsafe { self.coroutine.force_reset() }
    }
}

impl Lanes {
    fn new() -> Lanes {
        let values = [const { [const { Cell::new(0) }; MAX_WAVE] }; 2];
        Lanes {
            values,
            side: Cell::new(0),
            arrived: Cell::new(0),
            instruction: Cell::new(None),
            fault: RefCell::new(None),
            mask: Cell::new(0),
        }
    }

    fn reset(&self, lanes: usize) {
        self.side.set(0);
        self.arrived.set(0);
        self.fault.take();
        self.mask.set(u64::MAX >> (MAX_WAVE - lanes));
    }

    /// Takes a lane's part in the present exchange; returns the side that it fills.
    fn arrive(&self, lane: usize, value: u64, instruction: Option<u32>) -> usize {
        let side = self.side.get();
        let before = self.arrived.replace(self.arrived.get() | 1 << lane);
        let expected = self.instruction.replace(instruction);
        if before != 0 && expected != instruction {
            let name = |i: Option<u32>| i.map_or("an exchange between lanes", matrix::name);
            let (a, b) = (name(expected), name(instruction));
            self.fault
                .replace(Some(format!("lanes of a wave wait at {a} and at {b}")));
        }
        self.values[side][lane].set(value);
        side
    }

    /// Executes a matrix instruction once all lanes have brought their operands.
    fn multiply(&self, side: usize, lanes: usize) {
        if self.arrived.get() != u64::MAX >> (MAX_WAVE - lanes) || self.fault.borrow().is_some() {
            return;
        }
        let mut operands = [std::ptr::null(); MAX_WAVE];
        for (pointer, value) in operands.iter_mut().zip(&self.values[side]) {
            *pointer = value.get() as *const Operands;
        }
        // SAFETY: every lane is here with the same instruction, and its operands lie on its stack until it goes on.
        if let Err(why) = unsafe { matrix::execute(&operands[..lanes]) } {
            self.fault.replace(Some(why));
        }
    }

    /// Ends the present exchange: missing lanes read as all ones, and the next exchange fills the other side.
    fn release(&self, lanes: usize) -> Result<(), Divergence> {
        let arrived = self.arrived.take();
        if let Some(why) = self.fault.take() {
            return Err(Divergence(why));
        }
        if let Some(instruction) = self.instruction.get() {
            if arrived.count_ones() as usize != lanes {
                let (name, there) = (matrix::name(instruction), arrived.count_ones());
                return Err(Divergence(format!(
                    "{there} of {lanes} lanes of a wave execute {name}, which needs all"
                )));
            }
        }
        for (lane, slot) in self.values[self.side.get()].iter().enumerate() {
            if arrived >> lane & 1 == 0 {
                slot.set(u64::MAX);
            }
        }
        self.mask.set(arrived);
        self.side.set(self.side.get() ^ 1);
        Ok(())
    }
}

impl Suspended {
    /// Runs a coroutine until it stops, and puts it where it belongs.
    fn resume(&mut self, mut fiber: Fiber, idle: &mut Vec<Fiber>) {
        match fiber.resume() {
            Stop::Idle => idle.push(fiber),
            Stop::Exchange => self.exchanging.push(fiber),
            Stop::Sleep => self.sleeping.push(fiber),
            Stop::Barrier(line) => {
                fiber.line = line;
                self.waiting.push(fiber);
            }
        }
    }

    /// Runs the released threads.
    fn advance(&mut self, idle: &mut Vec<Fiber>) {
        let mut leaving = std::mem::take(&mut self.leaving);
        leaving.drain(..).for_each(|fiber| self.resume(fiber, idle));
        self.leaving = leaving;
    }

    /// Wakes the sleepers once; false if all of them sleep again.
    fn wake(&mut self, idle: &mut Vec<Fiber>) -> bool {
        let sleepers = self.sleeping.len();
        std::mem::swap(&mut self.sleeping, &mut self.leaving);
        self.advance(idle);
        self.sleeping.len() != sleepers
    }

    /// Ends exchanges for as long as all living lanes take part in them: those that sleep will, too.
    fn run_exchanges(&mut self, lanes: &Lanes, idle: &mut Vec<Fiber>) -> Result<(), Divergence> {
        while !self.exchanging.is_empty() && self.sleeping.is_empty() {
            if let Some(Fiber { line, .. }) = self.waiting.first() {
                let (a, b) = (self.exchanging.len(), self.waiting.len());
                return Err(Divergence(format!(
                    "{a} lanes of a wave wait at a wave operation, {b} at __syncthreads() in line {line}"
                )));
            }
            lanes.release(CURRENT.with(|c| c.wave_size.get()) as usize)?;
            std::mem::swap(&mut self.exchanging, &mut self.leaving);
            self.advance(idle);
        }
        Ok(())
    }
}

impl Order {
    /// Fills the table for blocks of this shape. The seed shuffles the waves, and the lanes of each wave.
    fn prepare(&mut self, block: Dim3, wave: u32, seed: Option<u64>) {
        if self.shape == Some((block, wave, seed)) {
            return;
        }
        self.shape = Some((block, wave, seed));
        let natural: Vec<u32> = (0..block.count() as u32).collect();
        let mut waves: Vec<Vec<u32>> = natural.chunks(wave as usize).map(<[u32]>::to_vec).collect();
        if let Some(seed) = seed {
            let mut state = seed;
            shuffle(&mut waves, &mut state);
            waves
                .iter_mut()
                .for_each(|lanes| shuffle(lanes, &mut state));
        }
        let thread = |linear| Thread {
            index: block.at(linear as u64),
            linear,
        };
        self.threads = waves.into_iter().flatten().map(thread).collect();
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Fisher-Yates.
fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for i in (1..items.len()).rev() {
        items.swap(i, (split_mix(state) % (i as u64 + 1)) as usize);
    }
}

/// Runs one block of a launch on this OS thread.
pub(crate) fn run_block(
    memory: &'static Memory,
    launch: &Launch,
    index: u64,
) -> Result<(), Divergence> {
    RUNNER.with(|runner| {
        let mut runner = runner.borrow_mut();
        runner.order.prepare(launch.block, launch.wave, launch.seed);
        let block_idx = launch.grid.at(index);
        runner
            .run(memory, launch, block_idx)
            .map_err(|Divergence(why)| {
                runner.suspended.clear();
                let Dim3 { x, y, z } = block_idx;
                Divergence(format!("block ({x},{y},{z}) can never end: {why}"))
            })
    })
}

impl Runner {
    fn fiber(&mut self) -> Result<Fiber, Divergence> {
        match self.idle.pop() {
            Some(fiber) => Ok(fiber),
            None => {
                Fiber::new().map_err(|e| Divergence(format!("no stack for another thread: {e}")))
            }
        }
    }

    fn run(
        &mut self,
        memory: &'static Memory,
        launch: &Launch,
        block_idx: Dim3,
    ) -> Result<(), Divergence> {
        let shared = if launch.shared_bytes > 0 {
            if self.window.is_none() {
                let window = memory.take_window();
                self.window = window.map(|address| Window(address, memory));
            }
            let window = self
                .window
                .as_ref()
                .ok_or_else(|| Divergence("too many threads run kernels at once".into()))?;
            debug_assert!(launch.shared_bytes <= MAX_SHARED_BYTES);
            memory.open_window(window.0, launch.shared_bytes);
            window.0 as *mut c_void
        } else {
            std::ptr::null_mut()
        };
        let threads = self.order.threads.len();
        let wave_size = launch.wave as usize;
        let wave_count = threads.div_ceil(wave_size);
        while self.lanes.len() < wave_count {
            self.lanes.push(Lanes::new());
        }
        while self.suspended.len() < wave_count {
            self.suspended.push(Suspended::default());
        }
        let block = Block {
            threads: self.order.threads.as_ptr(),
            next: Cell::new(0),
            end: Cell::new(0),
            block_idx,
            block_dim: launch.block,
            grid_dim: launch.grid,
            shared,
        };
        CURRENT.with(|c| {
            c.lanes.set(self.lanes.as_ptr());
            c.wave_size.set(launch.wave);
            c.block.set(&block);
            c.entry.set(Some(launch.entry));
            c.args.set(launch.args.as_ptr());
        });
        let mut started = 0;
        while started < threads {
            let linear = self.order.threads[started].linear as usize;
            let number = linear / wave_size;
            let lanes = wave_size.min(threads - number * wave_size);
            self.lanes[number].reset(lanes);
            block.end.set((started + lanes) as u32);
            while block.next.get() < block.end.get() {
                let fiber = self.fiber()?;
                self.suspended[number].resume(fiber, &mut self.idle);
            }
            self.suspended[number].run_exchanges(&self.lanes[number], &mut self.idle)?;
            started += lanes;
        }
        self.run_suspended(wave_count, launch)
    }

    /// Lets sleeping threads, and once there are none all threads that wait at the block's barrier, go on, again and
    /// again, until all have ended.
    fn run_suspended(&mut self, waves: usize, launch: &Launch) -> Result<(), Divergence> {
        let mut patience = Patience::default();
        loop {
            let suspended = &mut self.suspended[..waves];
            if suspended.iter().any(|wave| !wave.sleeping.is_empty()) {
                let mut moved = false;
                for (wave, lanes) in suspended.iter_mut().zip(&self.lanes) {
                    moved |= wave.wake(&mut self.idle);
                    wave.run_exchanges(lanes, &mut self.idle)?;
                }
                match moved {
                    true => patience = Patience::default(),
                    false => patience.wait(launch)?,
                }
                continue;
            }
            let mut lines = suspended
                .iter()
                .flat_map(|w| &w.waiting)
                .map(|fiber| fiber.line);
            let Some(line) = lines.next() else {
                return Ok(());
            };
            if let Some(other) = lines.find(|l| *l != line) {
                return Err(Divergence(format!(
                    "threads wait at different __syncthreads(), in lines {line} and {other}"
                )));
            }
            // All leave the barrier before any of them can reach the next one.
            suspended
                .iter_mut()
                .for_each(|w| std::mem::swap(&mut w.waiting, &mut w.leaving));
            for (wave, lanes) in suspended.iter_mut().zip(&self.lanes) {
                wave.advance(&mut self.idle);
                wave.run_exchanges(lanes, &mut self.idle)?;
            }
        }
    }
}

/// How long the threads of a block have only slept.
#[derive(Default)]
struct Patience {
    rounds: u32,
    last: Option<Instant>,
    waited: Duration,
    /// What of it had passed when the launch last got another OS thread.
    grown: Duration,
}

impl Patience {
    /// Gives the core away for a moment; fails when there is nothing to wait for any more.
    fn wait(&mut self, launch: &Launch) -> Result<(), Divergence> {
        if launch.failed.load(Ordering::Relaxed) {
            return Err(Divergence("another block of the launch has failed".into()));
        }
        launch.crew.sleeps.store(true, Ordering::Relaxed);
        self.rounds += 1;
        match self.rounds < EAGER_ROUNDS {
            true => std::thread::yield_now(),
            false => std::thread::sleep((self.waited / NAP_PART).clamp(SHORTEST_NAP, LONGEST_NAP)),
        }
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.waited += (now - last).min(LONGEST_ROUND);
        }
        if self.waited >= launch.spin_limit {
            return Err(Divergence(format!(
                "its threads have done nothing but sleep for {:?} (HIP_SIM_SPIN_LIMIT): what they wait for does not come",
                launch.spin_limit
            )));
        }
        if self.waited - self.grown >= STALL {
            self.grown = self.waited;
            launch.crew.grow(resident_blocks(launch.block.count()));
        }
        Ok(())
    }
}

/// Suspends the running thread for a moment.
pub(crate) unsafe extern "C" fn sleep() {
    suspend(Stop::Sleep);
}

/// Nanoseconds since some moment of the process: what device code's clocks count by.
pub(crate) unsafe extern "C" fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Suspends the running thread at the block's barrier.
pub(crate) unsafe extern "C" fn barrier(line: u32) {
    suspend(Stop::Barrier(line));
}

/// Deposits the lane's value and suspends it until its wave has arrived; returns the values of the wave, which stay
/// until the lane's next exchange.
pub(crate) unsafe extern "C" fn exchange(linear: u32, value: u64) -> *const u64 {
    let (wave, lane) = wave_of(linear);
    let side = wave.arrive(lane, value, None);
    suspend(Stop::Exchange);
    wave.values[side].as_ptr().cast()
}

/// Brings a lane's operands to a matrix instruction and suspends it until its wave has executed it.
pub(crate) unsafe extern "C" fn matrix(linear: u32, operands: *const Operands) {
    let (wave, lane) = wave_of(linear);
    // SAFETY: device code passes operands that it keeps while it waits.
    let instruction = unsafe { (*operands).instruction };
    let side = wave.arrive(lane, operands as u64, Some(instruction));
    wave.multiply(side, CURRENT.with(|c| c.wave_size.get()) as usize);
    suspend(Stop::Exchange);
}

/// The lanes of the wave's last exchange.
pub(crate) unsafe extern "C" fn mask(linear: u32) -> u64 {
    wave_of(linear).0.mask.get()
}

/// Coordinates of the block in progress on this OS thread.
pub(crate) fn current_block() -> Dim3 {
    // SAFETY: callbacks only come while a block is in progress.
    CURRENT.with(|c| unsafe { (*c.block.get()).block_idx })
}

/// The wave and lane of a thread of the block in progress.
fn wave_of<'a>(linear: u32) -> (&'a Lanes, usize) {
    CURRENT.with(|c| {
        let size = c.wave_size.get();
        // SAFETY: a thread's number is below the block's size, so its wave exists; the runner keeps it while device
        // code runs.
        (
            unsafe { &*c.lanes.get().add((linear / size) as usize) },
            (linear % size) as usize,
        )
    })
}

fn suspend(stop: Stop) {
    let yielder = CURRENT.with(|c| c.yielder.get());
    // SAFETY: device code only runs on a coroutine, whose yielder the runner set before it resumed it.
    unsafe { (*yielder).suspend(stop) }
}
