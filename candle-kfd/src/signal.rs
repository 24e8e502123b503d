//! Signals: numbers in memory that command processors count down and wait for.
//!
//! The layout is `amd_signal_t` of ROCr's `amd_hsa_signal.h`. A command processor that has done a packet subtracts one
//! from its signal's value, having written when it began and ended; if the signal has an event, it then leaves the event's
//! number in the mailbox and interrupts the host. A barrier waits until values are zero.

use crate::event::{Event, Wake};
use crate::generation::PAGE;
use crate::gpu::Gpu;
use crate::memory::{Host, Kind, Memory};
use crate::{Error, Result};
use std::sync::atomic::{fence, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a signal.
const BYTES: usize = 64;
/// `AMD_SIGNAL_KIND_USER`.
const KIND_USER: u64 = 1;
/// For how long a value is looked at without a pause: kernels are often that short, and sleeping costs more.
const SPIN: Duration = Duration::from_micros(50);
/// A wait without an event pauses so long between two looks, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// How often faults are asked for, and how long an interrupt is waited for at a time: one that is lost costs so much.
const PATROL: Duration = Duration::from_millis(20);

/// Offsets of `amd_signal_t`.
mod field {
    pub const KIND: usize = 0;
    pub const VALUE: usize = 8;
    pub const MAILBOX: usize = 16;
    pub const EVENT: usize = 24;
    pub const START: usize = 32;
    pub const END: usize = 40;
}

/// A signal.
///
/// It must live until no packet that names it is left on any queue: a queue does not keep it.
#[derive(Debug)]
pub struct Signal {
    memory: Arc<Memory>,
    offset: usize,
    event: Option<Event>,
}

impl Signal {
    /// A signal with a value, that is polled.
    ///
    /// # Errors
    /// As of [`Gpu::allocate`].
    pub fn new(gpu: &Arc<Gpu>, initial: i64) -> Result<Signal> {
        Self::make(memory(gpu, 1)?, 0, initial, None)
    }

    /// Several signals in common memory, which is cheaper than one by one.
    ///
    /// # Errors
    /// As of [`Gpu::allocate`].
    pub fn several(gpu: &Arc<Gpu>, count: usize, initial: i64) -> Result<Vec<Signal>> {
        let mut signals = Vec::with_capacity(count);
        while signals.len() < count {
            let here = (count - signals.len()).min(PAGE / BYTES);
            let memory = memory(gpu, here)?;
            for at in 0..here {
                signals.push(Self::make(memory.clone(), at * BYTES, initial, None)?);
            }
        }
        Ok(signals)
    }

    /// A signal with an event, so that the host sleeps while it waits.
    ///
    /// # Errors
    /// As of [`Gpu::allocate`] and [`Event::new`].
    pub fn with_event(gpu: &Arc<Gpu>, initial: i64) -> Result<Signal> {
        Self::make(memory(gpu, 1)?, 0, initial, Some(Event::new(gpu)?))
    }

    fn make(
        memory: Arc<Memory>,
        offset: usize,
        initial: i64,
        event: Option<Event>,
    ) -> Result<Signal> {
        let signal = Signal {
            memory,
            offset,
            event,
        };
        let host = signal.host()?;
        host.write(offset, &[0; BYTES])?;
        if let Some(event) = &signal.event {
            host.long(offset + field::MAILBOX)?
                .store(event.mailbox(), Ordering::Relaxed);
            host.word(offset + field::EVENT)?
                .store(event.id(), Ordering::Relaxed);
        }
        host.long(offset + field::VALUE)?
            .store(initial as u64, Ordering::Relaxed);
        host.long(offset + field::KIND)?
            .store(KIND_USER, Ordering::Release);
        Ok(signal)
    }

    fn host(&self) -> Result<Host<'_>> {
        self.memory.host().ok_or_else(|| Error::NotVisible {
            gpu: self.memory.gpu().node().pci_id.clone(),
        })
    }

    fn long(&self, field: usize) -> &AtomicU64 {
        let long = self.host().and_then(|host| host.long(self.offset + field));
        // `make` has written all fields through the same view.
        long.expect("a signal lies in memory that the host sees")
    }

    /// The address that packets name.
    pub fn address(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// The address of the value, of 64 bits.
    pub fn value_address(&self) -> u64 {
        self.address() + field::VALUE as u64
    }

    /// The GPU for which it was made.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.memory.gpu()
    }

    /// The event that wakes the host, if it has one.
    pub fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }

    /// Lets other GPUs wait for it and count it down; those of [`several`](Self::several) together.
    ///
    /// # Errors
    /// As of [`Memory::map_to`].
    pub fn share(&self, gpus: &[Arc<Gpu>]) -> Result<()> {
        self.memory.map_to(gpus)
    }

    /// The value. What a GPU wrote before it changed the value is seen then.
    pub fn load(&self) -> i64 {
        self.long(field::VALUE).load(Ordering::Acquire) as i64
    }

    /// Sets the value. What the host wrote before is seen by a GPU that sees the value.
    pub fn store(&self, value: i64) {
        self.long(field::VALUE)
            .store(value as u64, Ordering::Release);
    }

    /// When the last packet that counted it down began and ended, in ticks of the GPU's clock; zeros before.
    pub fn times(&self) -> (u64, u64) {
        let [start, end] =
            [field::START, field::END].map(|field| self.long(field).load(Ordering::Acquire));
        (start, end)
    }

    /// Waits until the value is below one, for [`wait_below`](Self::wait_below) with 1.
    ///
    /// # Errors
    /// As of [`wait_below`](Self::wait_below).
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        self.wait_below(1, timeout).map(drop)
    }

    /// Waits until the value is below another and says what it is then. Sleeps if the signal has an event, but looks at
    /// the value again after a while even if no interrupt comes.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it takes longer, [`Error::Lost`] after a fault of the GPU.
    pub fn wait_below(&self, value: i64, timeout: Duration) -> Result<i64> {
        self.wait_until(value, timeout, || Ok(()))?
            .ok_or(Error::Timeout {
                what: "a signal",
                after: timeout,
            })
    }

    /// As [`wait_below`](Self::wait_below), for who has more to look after meanwhile: none if time is up.
    pub(crate) fn wait_until(
        &self,
        value: i64,
        timeout: Duration,
        mut patrol: impl FnMut() -> Result<()>,
    ) -> Result<Option<i64>> {
        let gpu = self.gpu();
        let start = Instant::now();
        let mut pause = PAUSES[0];
        let mut patrolled = start;
        loop {
            let now = self.load();
            if now < value {
                return Ok(Some(now));
            }
            let waited = start.elapsed();
            if waited < SPIN && waited < timeout {
                std::hint::spin_loop();
                continue;
            }
            if waited >= timeout || patrolled.elapsed() >= PATROL {
                gpu.check_faults()?;
                patrol()?;
                patrolled = Instant::now();
            }
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                // It may have come just now.
                let now = self.load();
                return Ok((now < value).then_some(now));
            }
            match &self.event {
                Some(event) => {
                    gpu.kfd().wait(&[event], Wake::Any, left.min(PATROL))?;
                }
                None => {
                    std::thread::sleep(pause.min(left));
                    pause = (pause * 2).min(PAUSES[1]);
                }
            }
        }
    }
}

fn memory(gpu: &Arc<Gpu>, signals: usize) -> Result<Arc<Memory>> {
    gpu.allocate(signals * BYTES, Kind::Uncached).map(Arc::new)
}

impl Drop for Signal {
    fn drop(&mut self) {
        // A command processor that is late finds no event to set.
        let is_ours = self.gpu().kfd().shared.own_process().is_ok();
        if is_ours && self.event.is_some() {
            self.long(field::MAILBOX).store(0, Ordering::Relaxed);
            fence(Ordering::Release);
        }
    }
}
