//! Queues of the SDMA engines.

use super::ring::Cursor;
use super::Packets;
use crate::gpu::{Doorbell, Gpu};
use crate::memory::{Host, Kind, Memory};
use crate::uapi::{queue_type, CreateQueue, DestroyQueue, MAX_QUEUE_PERCENTAGE};
use crate::{Error, Result};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes of a ring: copies of 500 GB without waiting for room.
const RING_BYTES: usize = 256 << 10;
/// The driver's smallest page, which holds the pointers: it wants exactly one.
const POINTERS_BYTES: usize = 4096;
/// Where in that page the pointers and the number of the last submission that is done are, in cache lines of their own.
const WRITE_AT: usize = 0;
const READ_AT: usize = 128;
const DONE_AT: usize = 256;
/// Between those of nobody and of the kernel.
const PRIORITY: u32 = 7;
/// Since when the driver takes the number of an engine.
const TAKES_ENGINES: (u32, u32) = (1, 17);
/// How long room in a ring is waited for.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);
/// How often is looked before the thread sleeps, how long it sleeps, and after how many sleeps the driver is asked.
const SPINS: u32 = 2000;
const SLEEP: Duration = Duration::from_micros(20);
const SLEEPS_BETWEEN_FAULTS: u32 = 500;

/// Which engine a queue is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Any that reaches the host.
    #[default]
    Any,
    /// One for links between GPUs (xGMI).
    Xgmi,
    /// The one of this number, those for xGMI after the others.
    Id(u32),
}

/// A queue of an SDMA engine. Threads may share it: what one submits stays together.
#[derive(Debug)]
pub struct SdmaQueue {
    gpu: Arc<Gpu>,
    id: u32,
    doorbell: Doorbell,
    producer: Mutex<Producer>,
    /// Submissions so far. Only a producer adds to them; whoever waits reads them without waiting for him, who may be
    /// waiting for room.
    submitted: AtomicU64,
    /// Whether the driver still has the queue; a producer ends it.
    is_open: AtomicBool,
    memory: ManuallyDrop<QueueMemory>,
}

/// What an engine reads and writes for as long as it has the queue.
#[derive(Debug)]
struct QueueMemory {
    pointers: Memory,
    ring: Memory,
}

/// Packets that were submitted, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Producer {
    cursor: Cursor,
    /// Whether the driver has let go of it.
    is_destroyed: bool,
}

impl SdmaQueue {
    /// A queue of a GPU.
    ///
    /// # Errors
    /// [`Error::NoEngine`] if the GPU has no such engine, [`Error::TooOld`] if the driver cannot be asked for one engine,
    /// [`Error::Ioctl`] if it has no queue left, those of [`Gpu::allocate`].
    pub fn new(gpu: &Arc<Gpu>, engine: Engine) -> Result<SdmaQueue> {
        Self::with_ring(gpu, engine, RING_BYTES)
    }

    /// The same with a ring of so many bytes, a power of two of at least 4096: a small one waits more often.
    ///
    /// # Errors
    /// As of [`new`](Self::new), and [`Error::SdmaRing`] for other sizes.
    pub fn with_ring(gpu: &Arc<Gpu>, engine: Engine, bytes: usize) -> Result<SdmaQueue> {
        if !bytes.is_power_of_two() || !(4096..=1 << 30).contains(&bytes) {
            return Err(Error::SdmaRing { bytes });
        }
        let (queue_type, sdma_engine_id) = match engine {
            Engine::Any => (queue_type::SDMA, 0),
            Engine::Xgmi => (queue_type::SDMA_XGMI, 0),
            Engine::Id(_) if gpu.kfd().version() < TAKES_ENGINES => {
                return Err(Error::TooOld {
                    what: "one copy engine of several",
                    since: TAKES_ENGINES,
                    version: gpu.kfd().version(),
                })
            }
            Engine::Id(engine) => (queue_type::SDMA_BY_ENG_ID, engine),
        };
        check_engine(gpu, engine)?;
        let ring = gpu.allocate(bytes, Kind::Queue)?;
        let pointers = gpu.allocate(POINTERS_BYTES, Kind::Uncached)?;
        for memory in [&ring, &pointers] {
            host(memory)?.fill(0, memory.len(), 0)?;
        }
        let mut request = CreateQueue {
            ring_base_address: ring.address(),
            ring_size: bytes as u32,
            write_pointer_address: pointers.address() + WRITE_AT as u64,
            read_pointer_address: pointers.address() + READ_AT as u64,
            gpu_id: gpu.node().gpu_id,
            queue_type,
            sdma_engine_id,
            queue_percentage: MAX_QUEUE_PERCENTAGE,
            queue_priority: PRIORITY,
            ..CreateQueue::default()
        };
        // SAFETY: ring and pointers are memory of this GPU, which lives until the queue is destroyed.
        unsafe { gpu.kfd().driver().request(&mut request) }?;
        let memory = ManuallyDrop::new(QueueMemory { pointers, ring });
        let doorbell = match gpu.doorbell(request.doorbell_offset) {
            Ok(doorbell) => doorbell,
            Err(error) => {
                if destroy(gpu, request.queue_id) {
                    drop(ManuallyDrop::into_inner(memory));
                }
                return Err(error);
            }
        };
        // Nothing yet. AMD's emulator has all bits set in a doorbell that nobody rang, and would run over the ring for ever.
        doorbell.ring(0);
        Ok(SdmaQueue {
            gpu: gpu.clone(),
            id: request.queue_id,
            doorbell,
            producer: Mutex::new(Producer {
                cursor: Cursor::new(bytes as u64, 0),
                is_destroyed: false,
            }),
            submitted: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
            memory,
        })
    }

    /// The GPU whose engine it is.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// An empty batch of packets for this queue's engine.
    pub fn packets(&self) -> Packets {
        Packets::new(self.gpu.generation().sdma)
    }

    /// Hands packets to the engine, and waits for room in the ring at most.
    ///
    /// # Safety
    /// Until the engine is through with them, or the queue is dropped, the memory that the packets name exists, the GPU
    /// may read and write it as they say, and nobody relies on what they overwrite.
    ///
    /// # Errors
    /// [`Error::SdmaTimeout`] if the engine does not make room in half a minute, [`Error::SdmaClosed`] after that.
    pub unsafe fn submit(&self, packets: &Packets) -> Result<Ticket> {
        self.gpu.kfd().shared.own_process()?;
        let mut producer = self.producer();
        if !self.is_open.load(Ordering::Acquire) {
            return Err(self.closed());
        }
        let before = self.submitted.load(Ordering::Acquire);
        if before == 0 {
            self.begin(&mut producer)?;
        }
        let number = before + 1;
        let mut done = self.packets();
        // Half of the number is enough: see `done`.
        done.fence(
            self.memory.pointers.address() + DONE_AT as u64,
            number as u32,
        );
        for packet in packets.iter().chain(done.iter()) {
            if let Err(error) = self.write(&mut producer, packet) {
                self.close(&mut producer);
                return Err(error);
            }
        }
        self.submitted.store(number, Ordering::Release);
        self.publish(&producer)?;
        Ok(Ticket(number))
    }

    /// Begins where the engine will read. That is 0, but in AMD's emulator, whose doorbells keep what an earlier queue has
    /// left: it then runs over a ring of zeros up to there.
    fn begin(&self, producer: &mut Producer) -> Result<()> {
        let read = host(&self.memory.pointers)?.long(READ_AT)?;
        producer.cursor = Cursor::new(self.memory.ring.len() as u64, read.load(Ordering::Acquire));
        Ok(())
    }

    /// Writes one packet into the ring.
    fn write(&self, producer: &mut Producer, packet: &[u32]) -> Result<()> {
        let place = producer.cursor.place(packet.len() as u64 * 4);
        let read = host(&self.memory.pointers)?.long(READ_AT)?;
        if !producer
            .cursor
            .has_room(place, read.load(Ordering::Acquire))
        {
            // What is in the ring must be known to the engine, or it would never make room.
            self.publish(producer)?;
            self.wait_until(ROOM_TIMEOUT, "room in the ring", || {
                Ok(producer
                    .cursor
                    .has_room(place, read.load(Ordering::Acquire)))
            })?;
        }
        let ring = host(&self.memory.ring)?;
        ring.fill(place.padding_at as usize, place.padding as usize, 0)?;
        for (i, &word) in packet.iter().enumerate() {
            ring.word(place.at as usize + 4 * i)?
                .store(word, Ordering::Relaxed);
        }
        producer.cursor.advance(place);
        Ok(())
    }

    /// Tells the engine how far the ring is written.
    fn publish(&self, producer: &Producer) -> Result<()> {
        let written = producer.cursor.written();
        let pointer = host(&self.memory.pointers)?.long(WRITE_AT)?;
        pointer.store(written, Ordering::Release);
        self.doorbell.ring(written);
        Ok(())
    }

    /// Whether the engine is through with what was submitted.
    ///
    /// # Errors
    /// None that a queue's own memory could give.
    pub fn is_done(&self, ticket: Ticket) -> Result<bool> {
        let low = host(&self.memory.pointers)?
            .word(DONE_AT)?
            .load(Ordering::Acquire);
        let submitted = self.submitted.load(Ordering::Acquire);
        // The engine writes the lower half of a number. It is at most 2^32 - 1 submissions behind: a ring holds fewer.
        let behind = (submitted as u32).wrapping_sub(low);
        Ok(ticket.0 <= submitted.saturating_sub(behind.into()))
    }

    /// Waits until the engine is through with what was submitted.
    ///
    /// # Errors
    /// [`Error::SdmaTimeout`] after `timeout`: the queue goes on. [`Error::Lost`] if the GPU met a fault meanwhile,
    /// [`Error::SdmaClosed`] if the queue was given up.
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<()> {
        self.wait_until(timeout, "packets to be executed", || {
            if self.is_done(ticket)? {
                return Ok(true);
            }
            match self.is_open.load(Ordering::Acquire) {
                true => Ok(false),
                false => Err(self.closed()),
            }
        })
    }

    /// Waits until the engine is through with everything submitted so far.
    ///
    /// # Errors
    /// As of [`wait`](Self::wait).
    pub fn idle(&self, timeout: Duration) -> Result<()> {
        let last = Ticket(self.submitted.load(Ordering::Acquire));
        self.wait(last, timeout)
    }

    /// Copies within or between memories, and waits for it. Ranges of one memory must not overlap.
    ///
    /// # Errors
    /// [`Error::Range`] beyond a memory, [`Error::Overlap`], and those of [`run`](Self::run).
    pub fn copy(
        &self,
        (to, to_offset): (&Memory, u64),
        (from, from_offset): (&Memory, u64),
        bytes: u64,
        timeout: Duration,
    ) -> Result<()> {
        let to = to.range(to_offset, bytes)?;
        let from = from.range(from_offset, bytes)?;
        if to < from + bytes && from < to + bytes {
            return Err(Error::Overlap { bytes });
        }
        let mut packets = self.packets();
        packets.acquire().copy(to, from, bytes).release();
        // SAFETY: both ranges lie in memory that is borrowed until the engine is through or has lost the queue.
        unsafe { self.run(&packets, timeout) }
    }

    /// Writes `value` to words of 32 bits of a memory, and waits for it.
    ///
    /// # Errors
    /// [`Error::Range`] beyond the memory, [`Error::Alignment`] for an offset that is no multiple of 4, and those of
    /// [`run`](Self::run).
    pub fn fill(
        &self,
        (to, offset): (&Memory, u64),
        value: u32,
        words: u64,
        timeout: Duration,
    ) -> Result<()> {
        let to = to.range(offset, words.saturating_mul(4))?;
        if !to.is_multiple_of(4) {
            return Err(Error::Alignment {
                address: to,
                alignment: 4,
            });
        }
        let mut packets = self.packets();
        packets.acquire().fill(to, value, words).release();
        // SAFETY: the range lies in memory that is borrowed until the engine is through or has lost the queue.
        unsafe { self.run(&packets, timeout) }
    }

    /// Submits and waits. If the engine is not through by then, the queue is given up, so that it touches no memory
    /// afterwards.
    ///
    /// # Safety
    /// As of [`submit`](Self::submit), but only until this returns.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit) and [`wait`](Self::wait).
    pub unsafe fn run(&self, packets: &Packets, timeout: Duration) -> Result<()> {
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.submit(packets) }?;
        self.wait(ticket, timeout).inspect_err(|_| {
            self.close(&mut self.producer());
        })
    }

    /// Waits until `is_met`, and looks for faults from time to time.
    fn wait_until(
        &self,
        timeout: Duration,
        what: &'static str,
        mut is_met: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let start = Instant::now();
        let mut looks = 0u32;
        loop {
            if is_met()? {
                return Ok(());
            }
            looks = looks.saturating_add(1);
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            if looks.is_multiple_of(SLEEPS_BETWEEN_FAULTS) {
                self.gpu.check_faults()?;
            }
            if start.elapsed() >= timeout {
                // A fault says more than that nothing happens.
                self.gpu.check_faults()?;
                return Err(Error::SdmaTimeout {
                    gpu: self.gpu.node().pci_id.clone(),
                    what,
                    seconds: timeout.as_secs_f64().to_string(),
                });
            }
            std::thread::sleep(SLEEP);
        }
    }

    fn producer(&self) -> MutexGuard<'_, Producer> {
        // A thread that panicked has advanced the cursor only past packets that were written.
        self.producer
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn closed(&self) -> Error {
        Error::SdmaClosed {
            gpu: self.gpu.node().pci_id.clone(),
        }
    }

    /// Takes the queue from the engine.
    fn close(&self, producer: &mut Producer) {
        if self.is_open.load(Ordering::Acquire) {
            producer.is_destroyed = destroy(&self.gpu, self.id);
            // Not before: whoever waits for a copy gives up its memory then.
            self.is_open.store(false, Ordering::Release);
        }
    }
}

impl Drop for SdmaQueue {
    fn drop(&mut self) {
        let mut producer = self.producer();
        self.close(&mut producer);
        let is_destroyed = producer.is_destroyed;
        drop(producer);
        if is_destroyed {
            // SAFETY: nothing else takes the memory, and it is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        // Else the engine may still have the queue: its memory stays until the process ends.
    }
}

/// Whether a GPU has an engine, as far as the kernel tells of engines.
fn check_engine(gpu: &Gpu, engine: Engine) -> Result<()> {
    let node = gpu.node();
    let all = node.sdma_engines.saturating_add(node.sdma_xgmi_engines);
    let (is_there, name, engines) = match engine {
        Engine::Any => (true, String::new(), all),
        Engine::Xgmi => (node.sdma_xgmi_engines > 0, "for xGMI".to_string(), 0),
        Engine::Id(id) => (id < all, id.to_string(), all),
    };
    if is_there || all == 0 {
        return Ok(());
    }
    Err(Error::NoEngine {
        gpu: node.pci_id.clone(),
        engine: name,
        engines,
    })
}

/// The host's view of a queue's own memory, which is of kinds that have one.
fn host(memory: &Memory) -> Result<Host<'_>> {
    memory.host().ok_or_else(|| Error::NotVisible {
        gpu: memory.gpu().node().pci_id.clone(),
    })
}

/// Ends a queue; the driver takes it from the engine, whatever that does at the moment.
fn destroy(gpu: &Gpu, queue_id: u32) -> bool {
    gpu.kfd().shared.release(DestroyQueue {
        queue_id,
        ..DestroyQueue::default()
    })
}
