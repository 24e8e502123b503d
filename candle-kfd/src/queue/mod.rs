//! Compute queues: rings of packets that the GPU's command processors take kernels and barriers from.
//!
//! A queue takes packets of several threads, in the order of their calls. Kernels without a barrier may run side by side.
//!
//! Memory of a queue: the ring and a page with the descriptor, which are shared with the host; a buffer for the ends of
//! packets; an area to which waves are saved when the queue has to make way, tens of MiB of host memory; memory for the
//! arguments of kernels that are under way; scratch, when the first kernel needs it.

mod create;
mod descriptor;
mod failure;
mod kernarg;
mod launch;
mod packet;

use crate::generation::Shape;
use crate::gpu::{Doorbell, Gpu};
use crate::memory::Memory;
use crate::program::Kernel;
use crate::scratch::{Plan, Scratch};
use crate::signal::Signal;
use crate::timeline::Timeline;
use crate::{Error, Result};
use create::visible;
use descriptor::Descriptor;
use kernarg::{Kernarg, Place};
pub use launch::Launch;
use packet::Packet;
use std::mem::ManuallyDrop;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a full queue may make no progress, unless [`ComputeQueue::set_patience`] says otherwise: kernels are shorter.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pauses between two looks at a full queue.
const PAUSE: Duration = Duration::from_micros(50);

/// A queue of kernels and barriers.
#[derive(Debug)]
pub struct ComputeQueue {
    queue: Registered,
    packets: u32,
    doorbell: Doorbell,
    /// Of each slot, the kernel of its packet.
    names: Mutex<Vec<Option<Arc<str>>>>,
    failed: OnceLock<Error>,
    patience: Mutex<Duration>,
}

/// A queue that the driver knows, with what the GPU uses for as long as it does.
#[derive(Debug)]
struct Registered {
    gpu: Arc<Gpu>,
    id: u32,
    parts: ManuallyDrop<Parts>,
}

#[derive(Debug)]
struct Parts {
    ring: Memory,
    /// The page of the descriptor.
    page: Memory,
    eop: Memory,
    save: Memory,
    /// Commands that empty the caches of code.
    code: Memory,
    code_words: u32,
    inactive: Signal,
    exceptions: Signal,
    /// Moves on by one with each barrier of [`ComputeQueue::idle`].
    idle: Timeline,
    producer: Mutex<Producer>,
}

/// What whoever puts a packet onto the queue has to himself.
#[derive(Debug)]
struct Producer {
    /// Packets so far.
    written: u64,
    kernarg: Kernarg,
    scratch: Option<Scratch>,
    /// Programs below this order are known to the caches.
    code_known: u64,
    /// Barriers of `idle` so far.
    barriers: u64,
}

/// Memory is always whole: what a panic interrupted was not announced to the GPU.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ComputeQueue {
    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.queue.gpu
    }

    fn parts(&self) -> &Parts {
        &self.queue.parts
    }

    /// Packets that it holds.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// How long a call may wait for room without any progress of the GPU; a minute at first.
    pub fn set_patience(&self, patience: Duration) {
        *lock(&self.patience) = patience;
    }

    /// Starts a kernel.
    ///
    /// # Safety
    /// The kernel touches only memory that is there and that nobody else uses meanwhile in a way that contradicts it;
    /// arguments are what it expects. That memory, its program and the completion signal live until it is done.
    ///
    /// # Errors
    /// [`Error::Launch`] if sizes are not what kernel and GPU allow, [`Error::Scratch`] and [`Error::OutOfMemory`] if it needs
    /// more scratch than there is, [`Error::Stalled`] if the queue stays full, [`Error::Queue`] and [`Error::Lost`] if
    /// something failed before.
    pub unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let needs = launch.check(self.gpu())?;
        let arguments = launch.arguments(&needs, self.gpu(), self.parts().page.address())?;
        let mut producer = lock(&self.parts().producer);
        self.check()?;
        self.see_code(&mut producer, launch.kernel)?;
        self.scratch_for(&mut producer, needs.lane_bytes)?;
        let at = match arguments.len() {
            0 => 0,
            bytes => {
                let at = self.kernarg_for(&mut producer, bytes)?;
                producer.kernarg.write(at, &arguments)?
            }
        };
        let packet = Packet::dispatch(&launch.dispatch(&needs, at));
        self.push(&mut producer, &packet, Some(launch.kernel.name()))
    }

    /// Waits, on the GPU, until everything before is done and the signals are zero; then `completion` is counted down by
    /// one. What comes after begins after it.
    ///
    /// The signals must be visible to this GPU and live until then: see [`Signal::share`].
    ///
    /// # Errors
    /// [`Error::Stalled`] if the queue stays full, [`Error::Queue`] and [`Error::Lost`] if something failed before.
    pub fn barrier(&self, waits: &[&Signal], completion: Option<&Signal>) -> Result<()> {
        let mut producer = lock(&self.parts().producer);
        self.check()?;
        self.push_barrier(&mut producer, waits, completion)
    }

    fn push_barrier(
        &self,
        producer: &mut Producer,
        waits: &[&Signal],
        completion: Option<&Signal>,
    ) -> Result<()> {
        let addresses: Vec<u64> = waits.iter().map(|signal| signal.address()).collect();
        let last = addresses.len().div_ceil(packet::BARRIER_SIGNALS).max(1) - 1;
        for at in 0..=last {
            let from = at * packet::BARRIER_SIGNALS;
            let to = addresses.len().min(from + packet::BARRIER_SIGNALS);
            let completion = completion.filter(|_| at == last).map_or(0, Signal::address);
            self.push(
                producer,
                &Packet::barrier(&addresses[from..to], completion),
                None,
            )?;
        }
        Ok(())
    }

    /// Waits until everything is done that was put onto the queue before.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it is not done in time, [`Error::Queue`] and [`Error::Lost`] if something failed.
    pub fn idle(&self, timeout: Duration) -> Result<()> {
        let mut producer = lock(&self.parts().producer);
        self.check()?;
        let ticket = self.push_idle(&mut producer)?;
        drop(producer);
        self.wait_for_ticket(ticket, timeout)
    }

    fn push_idle(&self, producer: &mut Producer) -> Result<u64> {
        self.push_barrier(producer, &[], Some(self.parts().idle.signal()))?;
        producer.barriers += 1;
        Ok(producer.barriers)
    }

    fn wait_for_ticket(&self, ticket: u64, timeout: Duration) -> Result<()> {
        let reached = self
            .parts()
            .idle
            .wait_until(ticket, timeout, || self.check())?;
        self.check()?;
        reached.map(drop).ok_or_else(|| self.stalled(timeout))
    }

    /// Waits until a signal that this queue counts down is below one; also ends if the queue fails.
    ///
    /// # Errors
    /// [`Error::Stalled`] if it is not in time, [`Error::Queue`] and [`Error::Lost`] if something failed.
    pub fn wait(&self, signal: &Signal, timeout: Duration) -> Result<()> {
        let done = signal.wait_until(1, timeout, || self.check())?;
        done.map(drop).ok_or_else(|| self.stalled(timeout))
    }

    /// Whether the queue runs: looks at what firmware and driver left, without a request.
    ///
    /// # Errors
    /// [`Error::Queue`] with the reason and the kernel, [`Error::Lost`] after a fault.
    pub fn check(&self) -> Result<()> {
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        self.gpu().usable()?;
        let (inactive, exceptions) = (self.parts().inactive.load(), self.parts().exceptions.load());
        match failure::reason(inactive, exceptions) {
            None => Ok(()),
            Some(reason) => {
                let packet = self.taken()?;
                let error = Error::Queue {
                    gpu: self.gpu().node().pci_id.clone(),
                    packet,
                    kernel: self.kernel_at(packet),
                    reason,
                };
                Err(self.failed.get_or_init(|| error).clone())
            }
        }
    }

    /// The kernel that the command processor is at: of the packet that it has not taken yet, if that is one, else of the
    /// last one before.
    fn kernel_at(&self, taken: u64) -> Option<String> {
        let names = lock(&self.names);
        let slots = names.len() as u64;
        (0..slots.min(taken + 1))
            .find_map(|back| names[((taken - back) % slots) as usize].clone())
            .map(|name| name.to_string())
    }

    fn stalled(&self, after: Duration) -> Error {
        let taken = self.taken().unwrap_or_default();
        Error::Stalled {
            gpu: self.gpu().node().pci_id.clone(),
            taken,
            written: self.written().unwrap_or_default(),
            kernel: self.kernel_at(taken),
            after,
        }
    }

    fn descriptor(&self) -> Result<Descriptor<'_>> {
        visible(&self.parts().page).map(Descriptor)
    }

    /// Packets that the command processor has taken.
    ///
    /// # Errors
    /// None that happens: the queue's page is visible.
    pub fn taken(&self) -> Result<u64> {
        Ok(self.descriptor()?.read_index()?.load(Ordering::Acquire))
    }

    /// Packets that were put onto the queue.
    ///
    /// # Errors
    /// None that happens: the queue's page is visible.
    pub fn written(&self) -> Result<u64> {
        Ok(self.descriptor()?.write_index()?.load(Ordering::Acquire))
    }

    /// Waits for a free slot, fills it, and announces it.
    fn push(
        &self,
        producer: &mut Producer,
        packet: &Packet,
        kernel: Option<&Arc<str>>,
    ) -> Result<()> {
        let descriptor = self.descriptor()?;
        self.wait_for_room(producer, &descriptor)?;
        let slot = (producer.written % u64::from(self.packets)) as usize;
        lock(&self.names)[slot] = kernel.cloned();
        let ring = visible(&self.parts().ring)?;
        let header = ring.word(slot * packet::BYTES)?;
        // No processor that looks ahead takes a half of it.
        header.store(packet::INVALID, Ordering::Release);
        ring.write(slot * packet::BYTES + 4, &packet.body)?;
        header.store(packet.header, Ordering::Release);
        producer.written += 1;
        descriptor
            .write_index()?
            .store(producer.written, Ordering::Release);
        self.doorbell.ring(producer.written - 1);
        Ok(())
    }

    fn wait_for_room(&self, producer: &Producer, descriptor: &Descriptor<'_>) -> Result<()> {
        let read = descriptor.read_index()?;
        let (mut last, mut since) = (read.load(Ordering::Acquire), Instant::now());
        let patience = *lock(&self.patience);
        while producer.written.wrapping_sub(last) >= u64::from(self.packets) {
            std::thread::sleep(PAUSE);
            let now = read.load(Ordering::Acquire);
            if now != last {
                (last, since) = (now, Instant::now());
                continue;
            }
            self.check()?;
            if since.elapsed() >= patience {
                self.gpu().check_faults()?;
                return Err(self.stalled(patience));
            }
        }
        Ok(())
    }

    /// A place for arguments.
    fn kernarg_for(&self, producer: &mut Producer, bytes: usize) -> Result<usize> {
        loop {
            match producer.kernarg.place(bytes)? {
                Place::At(at) => return Ok(at),
                Place::Full => {
                    if let Some(address) = producer.kernarg.close().map(Signal::address) {
                        self.push(producer, &Packet::barrier(&[], address), None)?;
                        producer.kernarg.closed();
                    }
                    let patience = *lock(&self.patience);
                    self.wait(producer.kernarg.next(), patience)?;
                    producer.kernarg.open_next();
                }
            }
        }
    }

    /// Has the caches of code emptied if the program came after they were the last time: its memory may have been another's.
    fn see_code(&self, producer: &mut Producer, kernel: &Kernel) -> Result<()> {
        let order = kernel.program().order();
        if order < producer.code_known {
            return Ok(());
        }
        let commands = Packet::commands(self.parts().code.address(), self.parts().code_words, 0);
        self.push(producer, &commands, None)?;
        producer.code_known = order + 1;
        Ok(())
    }

    /// Makes scratch larger if it has to be, which waits for everything on the queue.
    fn scratch_for(&self, producer: &mut Producer, lane_bytes: u32) -> Result<()> {
        let there = producer
            .scratch
            .as_ref()
            .map_or(0, |scratch| scratch.plan.lane_bytes);
        if lane_bytes <= there {
            return Ok(());
        }
        let shape = Shape::from(self.gpu().node());
        let plan = Plan::new(self.gpu().generation(), &shape, lane_bytes)?;
        let patience = *lock(&self.patience);
        let ticket = self.push_idle(producer)?;
        self.wait_for_ticket(ticket, patience)?;
        // Both do not have to fit at once. Until the new one is there, no kernel with scratch is let onto the queue.
        producer.scratch = None;
        let scratch = Scratch::new(self.gpu(), plan)?;
        self.descriptor()?
            .set_scratch(&scratch, self.gpu().generation())?;
        producer.scratch = Some(scratch);
        Ok(())
    }
}
