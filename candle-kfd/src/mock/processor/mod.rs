//! What executes a queue: a thread each.

mod aql;
mod dispatch;
mod image;
mod pm4;
mod sdma;
mod view;

use super::lock;
use super::space::{Fault, Reason};
use super::state::Shared;
use crate::uapi::MemoryExceptionData;
pub(super) use dispatch::Kernels;
pub use dispatch::MockLaunch;
pub(super) use sdma::Dialect;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
pub use view::View;

/// What a queue was made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Its GPU, by index.
    pub gpu: usize,
    pub id: u32,
    pub kind: Kind,
    /// Its engine, if it is one's: those to other GPUs count on from the others.
    pub engine: Option<u32>,
    pub ring: u64,
    pub ring_bytes: u64,
    pub read_pointer: u64,
    pub write_pointer: u64,
    /// Where its doorbell is among the GPU's, in bytes.
    pub doorbell: u64,
    /// Where the waves are saved: the address of the first die's header.
    pub save_area: u64,
}

/// What a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Packets of HSA.
    Aql,
    /// Packets of a copy engine.
    Sdma,
}

/// A queue, and the thread that executes it.
#[derive(Debug)]
pub(super) struct Queue {
    pub settings: Settings,
    /// Addresses of mappings that it keeps from being unmapped.
    pub holds: Vec<u64>,
    control: Arc<Control>,
    thread: JoinHandle<()>,
}

/// What others tell a queue's thread.
#[derive(Debug, Default)]
struct Control {
    stop: AtomicBool,
    paused: AtomicBool,
}

/// Why a queue executes nothing any more.
#[derive(Clone, Copy, Debug)]
enum Halt {
    /// Memory that the GPU was not given.
    Fault(Fault),
    /// A packet that it cannot execute.
    Packet(PacketError),
    /// It was told to stop while it waited.
    Stopped,
}

impl From<Fault> for Halt {
    fn from(fault: Fault) -> Self {
        Halt::Fault(fault)
    }
}

/// What is wrong with a packet: the bit that the firmware sets in the queue's inactive signal (ROCr's
/// `amd_aql_queue.cpp` translates them), and the driver's number of the exception (`enum kfd_dbg_trap_exception_code`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PacketError {
    /// None where only the driver tells.
    bit: u64,
    code: u32,
}

impl Queue {
    /// Begins to execute it.
    pub fn start(
        shared: &Arc<Shared>,
        settings: Settings,
        holds: Vec<u64>,
        paused: bool,
    ) -> std::io::Result<Self> {
        let control = Arc::new(Control::default());
        control.paused.store(paused, Ordering::Relaxed);
        let processor = Processor {
            view: View::new(Arc::clone(shared), settings.gpu),
            shared: Arc::clone(shared),
            settings,
            control: Arc::clone(&control),
            under_way: Mutex::default(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("mock queue {}", settings.id))
            .spawn(move || processor.run())?;
        Ok(Queue {
            settings,
            holds,
            control,
            thread,
        })
    }

    /// Halts it, or lets it go on.
    pub fn pause(&self, paused: bool) {
        self.control.paused.store(paused, Ordering::SeqCst);
    }

    /// Ends it; a kernel that runs is waited for.
    pub fn end(self) {
        self.control.stop.store(true, Ordering::SeqCst);
        // A panic in it was reported as an error of the queue.
        let _ = self.thread.join();
    }
}

/// A queue's thread.
struct Processor {
    shared: Arc<Shared>,
    settings: Settings,
    control: Arc<Control>,
    view: View,
    /// Ranges of addresses that copies may still read and write, and whether they write.
    under_way: Mutex<Vec<(Range<u64>, bool)>>,
}

impl Processor {
    /// Executes packets until it is told to stop, or one is wrong.
    fn run(self) {
        let mut pace = Pace::default();
        while !self.stopped() {
            match self.step() {
                Ok(true) => pace = Pace::default(),
                Ok(false) => pace.rest(),
                Err(Halt::Stopped) => return,
                Err(Halt::Fault(fault)) => return self.report_fault(fault),
                Err(Halt::Packet(error)) => return self.report_packet(error),
            }
        }
    }

    fn stopped(&self) -> bool {
        self.control.stop.load(Ordering::SeqCst)
    }

    /// Whether it executes packets at present.
    fn runs(&self) -> bool {
        let injected = &self.shared.injected;
        !self.control.paused.load(Ordering::SeqCst)
            && !injected.lost[self.settings.gpu].load(Ordering::SeqCst)
            && !injected.deaf.load(Ordering::SeqCst)
    }

    /// Takes a packet, if there is one; says whether it did. Whether the queue runs is asked once the doorbell has been
    /// read, so that nothing is done that comes after a reset.
    fn step(&self) -> Result<bool, Halt> {
        match self.settings.kind {
            Kind::Aql => self.step_aql(),
            Kind::Sdma => self.step_sdma(),
        }
    }

    /// What the doorbell was rung with last.
    fn doorbell(&self) -> u64 {
        let doorbells = Arc::clone(&lock(&self.shared.state).gpus[self.settings.gpu].doorbells);
        doorbells
            .word64(self.settings.doorbell)
            .load(Ordering::SeqCst)
    }

    /// Waits until something is so, or the queue is to stop.
    fn wait(&self, mut is: impl FnMut() -> Result<bool, Halt>) -> Result<(), Halt> {
        let mut pace = Pace::default();
        while !is()? {
            if self.stopped() || self.shared.injected.lost[self.settings.gpu].load(Ordering::SeqCst)
            {
                return Err(Halt::Stopped);
            }
            pace.rest();
        }
        Ok(())
    }

    /// Notes something that hardware would let pass, or hang from without a word.
    fn complain(&self, what: &str) {
        let kind = match self.settings.kind {
            Kind::Aql => "compute",
            Kind::Sdma => "SDMA",
        };
        let text = format!("{kind} queue {}: {what}", self.settings.id);
        lock(&self.shared.state).complaints.push(text);
    }

    /// Interrupts the host for an event.
    fn interrupt(&self, event: u32) {
        lock(&self.shared.state).events.interrupt(event);
        self.shared.woken.notify_all();
    }

    /// An access that failed stops all queues of the GPU: `kfd_signal_vm_fault_event` after the scheduler has taken the
    /// process' queues away.
    fn report_fault(&self, fault: Fault) {
        let index = self.settings.gpu;
        self.shared.injected.lost[index].store(true, Ordering::SeqCst);
        let mut state = lock(&self.shared.state);
        let gpu_id = state.gpus[index].described.gpu_id;
        let is = |reason| u32::from(fault.reason == reason);
        state.events.memory_fault(MemoryExceptionData {
            not_present: is(Reason::NotPresent),
            read_only: is(Reason::ReadOnly),
            no_execute: is(Reason::NoExecute),
            imprecise: 0,
            // The hardware tells the page.
            va: fault.address / super::pages::PAGE * super::pages::PAGE,
            gpu_id,
            error_type: 0,
        });
        drop(state);
        self.shared.woken.notify_all();
    }

    /// A packet that cannot be executed stops its queue.
    fn report_packet(&self, error: PacketError) {
        // Nobody can be told of a fault in the telling.
        let _ = self.tell_packet(error);
        let payload = self.tell_driver(error);
        if let Ok(Some(event)) = payload {
            // As the driver sets it, without a slot: `kfd_set_event`.
            let _ = lock(&self.shared.state).events.set(event);
            self.shared.woken.notify_all();
        }
    }

    /// The driver's part: where the header of the area for saved waves says so (`kfd_dbg_send_exception_to_runtime`),
    /// and to runtimes that said that they are there. The event to set.
    fn tell_driver(&self, error: PacketError) -> Result<Option<u32>, Halt> {
        /// `err_payload_addr` and `err_event_id` of `struct kfd_context_save_area_header`.
        const PAYLOAD: u64 = 24;
        const EVENT: u64 = 32;
        if self.settings.save_area == 0 || !lock(&self.shared.state).runtime_enabled {
            return Ok(None);
        }
        let payload = self.view.load64(self.settings.save_area + PAYLOAD)?;
        let event = self.view.load32(self.settings.save_area + EVENT)?;
        if payload == 0 {
            return Ok(None);
        }
        // It is written as memory of the process.
        let mut bytes = [0; 8];
        let user = &self.shared.user;
        if user.read(payload, &mut bytes).is_err() {
            return Ok(None);
        }
        let value = u64::from_le_bytes(bytes) | 1 << (error.code - 1);
        if user.write(payload, &value.to_le_bytes()).is_err() {
            return Ok(None);
        }
        Ok(Some(event))
    }
}

/// How long a thread rests that has nothing to do: longer and longer, up to half a millisecond.
#[derive(Default)]
struct Pace(u32);

impl Pace {
    fn rest(&mut self) {
        if self.0 < 16 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(u64::from(self.0.min(500))));
        }
        self.0 = self.0.saturating_add(4);
    }
}
