//! Events: interrupts of a GPU that a thread sleeps for, and those that tell of faults.
//!
//! Nobody watches for faults on the side: whoever waits is woken by them, and
//! [`Gpu::check_faults`](crate::Gpu::check_faults) asks.

use crate::driver::Errno;
use crate::fault::Fault;
use crate::gpu::Gpu;
use crate::kfd::{Kfd, Shared};
use crate::memory::{Block, Kind};
use crate::uapi::{
    event_type, wait_result, CreateEvent, DestroyEvent, EventData, Request, ResetEvent, SetEvent,
    WaitEvents, SIGNAL_EVENT_LIMIT,
};
use crate::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of an event's slot.
const SLOT_BYTES: usize = 8;
/// How long the kernel is asked to wait at a time, at most.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The same where the kernel does not wake for faults.
const LONGEST_BLIND_WAIT: Duration = Duration::from_millis(50);

/// The events of a process that tell of faults.
#[derive(Debug)]
pub(crate) struct FaultEvents {
    shared: Arc<Shared>,
    memory: u32,
    hardware: u32,
}

impl FaultEvents {
    /// Makes both events, and the page on which GPUs leave the numbers of events, unless an attempt that failed has: the
    /// driver takes one with the first event of a process, and no other after it.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let (kfd, gpu_id) = (gpu.kfd(), gpu.node().gpu_id);
        let memory = match kfd.page.get() {
            Some(page) => {
                page.map_to(&[gpu_id])?;
                create(&kfd.shared, event_type::MEMORY, 0)?.event_id
            }
            None => {
                let mut page = Block::new(
                    &kfd.shared,
                    &kfd.space,
                    gpu_id,
                    gpu.render()?,
                    SIGNAL_EVENT_LIMIT as usize * SLOT_BYTES,
                    Kind::Uncached.flags(),
                )?;
                let made = create(&kfd.shared, event_type::MEMORY, page.handle())?;
                // The driver has it now, and gives it back when the process ends.
                page.keep();
                // Nobody else sets it while a GPU is opened.
                let _ = kfd.page.set(page);
                made.event_id
            }
        };
        let hardware = match create(&kfd.shared, event_type::HW_EXCEPTION, 0) {
            Ok(hardware) => hardware.event_id,
            Err(error) => {
                destroy(&kfd.shared, memory);
                return Err(error);
            }
        };
        Ok(FaultEvents {
            shared: kfd.shared.clone(),
            memory,
            hardware,
        })
    }
}

impl Drop for FaultEvents {
    fn drop(&mut self) {
        destroy(&self.shared, self.hardware);
        destroy(&self.shared, self.memory);
    }
}

fn create(shared: &Shared, event_type: u32, page: u64) -> Result<CreateEvent> {
    let mut request = CreateEvent {
        event_page_offset: page,
        event_type,
        // Whoever is woken has seen it. Events of faults cannot be reset otherwise.
        auto_reset: 1,
        ..CreateEvent::default()
    };
    // SAFETY: the request holds a handle of memory that lives as long as the process's events.
    unsafe { shared.driver.request(&mut request) }?;
    Ok(request)
}

fn destroy(shared: &Shared, event_id: u32) {
    shared.release(DestroyEvent { event_id, pad: 0 });
}

/// An interrupt that a thread can sleep for: a GPU writes its number to its mailbox and interrupts the host. Whoever waits
/// resets it by waking up.
#[derive(Debug)]
pub struct Event {
    gpu: Arc<Gpu>,
    id: u32,
    trigger: u32,
    mailbox: u64,
}

/// Which of several events are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// One of them.
    Any,
    /// All of them.
    All,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// The events happened.
    Signalled,
    /// They did not in time.
    TimedOut,
}

impl Event {
    /// A new event, which has not happened.
    ///
    /// # Errors
    /// [`Error::Ioctl`] if the driver has none left, [`Error::Lost`] after a fault.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Event> {
        gpu.usable()?;
        let kfd = gpu.kfd();
        // Opening a GPU has made it.
        let page = kfd.page.get().ok_or(Error::Foreign)?;
        let made = create(&kfd.shared, event_type::SIGNAL, 0)?;
        let slot = made.event_slot_index as usize * SLOT_BYTES;
        if slot >= page.bytes() {
            destroy(&kfd.shared, made.event_id);
            return Err(Error::Topology {
                problem: format!("event {} has no slot on the page", made.event_id),
            });
        }
        Ok(Event {
            gpu: gpu.clone(),
            id: made.event_id,
            trigger: made.event_trigger_data,
            mailbox: page.address() + slot as u64,
        })
    }

    /// Its number: what a GPU writes to the mailbox, and `event_id` of a signal.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What a GPU sends with the interrupt.
    pub fn trigger(&self) -> u32 {
        self.trigger
    }

    /// The address to which a GPU writes the number: `event_mailbox_ptr` of a signal.
    pub fn mailbox(&self) -> u64 {
        self.mailbox
    }

    /// Makes it happen, as an interrupt would.
    ///
    /// # Errors
    /// [`Error::Ioctl`] if the driver refuses.
    pub fn set(&self) -> Result<()> {
        let mut request = SetEvent {
            event_id: self.id,
            pad: 0,
        };
        self.gpu.kfd().shared.own_process()?;
        // SAFETY: the request holds no addresses.
        unsafe { self.gpu.kfd().driver().request(&mut request) }
    }

    /// Makes it not have happened.
    ///
    /// # Errors
    /// [`Error::Ioctl`] if the driver refuses.
    pub fn reset(&self) -> Result<()> {
        let mut request = ResetEvent {
            event_id: self.id,
            pad: 0,
        };
        self.gpu.kfd().shared.own_process()?;
        // SAFETY: the request holds no addresses.
        unsafe { self.gpu.kfd().driver().request(&mut request) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        destroy(&self.gpu.kfd().shared, self.id);
    }
}

impl Kfd {
    /// Sleeps until events happen, or a fault does. It may wake early, as after a fault on another GPU, and an interrupt can
    /// be missed when several threads wait for one event: whoever waits for a value in memory looks at that, too, and again
    /// after a while.
    ///
    /// # Errors
    /// [`Error::Lost`] for a fault on the GPU of one of the events, or on any if there are no events; [`Error::Foreign`] for
    /// an event of another driver; [`Error::Ioctl`] if the driver refuses.
    pub fn wait(&self, events: &[&Event], wake: Wake, timeout: Duration) -> Result<Woken> {
        if (events.iter()).any(|event| !Arc::ptr_eq(&event.gpu.kfd().shared, &self.shared)) {
            return Err(Error::Foreign);
        }
        let ids: Vec<u32> = events.iter().map(|event| event.id).collect();
        // The kernel wakes for one event or for all of them: it can be asked for faults besides only with the former.
        let blind = wake == Wake::All && ids.len() > 1;
        self.all_usable(events)?;
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            let woken = if blind {
                self.look_for_faults()?;
                self.ask(&ids, true, None, left.min(LONGEST_BLIND_WAIT))?
            } else {
                self.ask(&ids, false, self.faults.get(), left.min(LONGEST_WAIT))?
            };
            self.all_usable(events)?;
            if woken == Woken::Signalled || start.elapsed() >= timeout {
                return Ok(woken);
            }
        }
    }

    /// Marks the GPUs that had a fault.
    pub(crate) fn look_for_faults(&self) -> Result<()> {
        match self.faults.get() {
            None => Ok(()),
            faults => self.ask(&[], false, faults, Duration::ZERO).map(drop),
        }
    }

    /// Waits once, and marks the GPUs that had a fault.
    fn ask(
        &self,
        ids: &[u32],
        all: bool,
        faults: Option<&FaultEvents>,
        timeout: Duration,
    ) -> Result<Woken> {
        let of_faults = faults.map_or([None; 2], |faults| {
            [Some(faults.memory), Some(faults.hardware)]
        });
        let event = |&event_id: &u32| EventData {
            event_id,
            ..EventData::default()
        };
        let mut data: Vec<EventData> = ids
            .iter()
            .chain(of_faults.iter().flatten())
            .map(event)
            .collect();
        let mut request = WaitEvents {
            events_ptr: data.as_mut_ptr() as u64,
            num_events: data.len() as u32,
            wait_for_all: u32::from(all),
            // At most seconds, and no less than asked for.
            timeout: timeout.as_micros().div_ceil(1000) as u32,
            wait_result: wait_result::TIMEOUT,
        };
        // SAFETY: the array has so many entries, which the driver reads and writes, and lives as long as the request.
        unsafe { self.driver().request(&mut request) }?;
        if let (true, [.., memory, hardware]) = (faults.is_some(), &data[..]) {
            let memory = memory.memory_exception();
            if memory.gpu_id != 0 {
                let nearest = self.shared.regions.nearest(memory.va);
                self.lose(memory.gpu_id, &Fault::of_memory(memory, nearest));
            }
            let hardware = hardware.hw_exception();
            if hardware.gpu_id != 0 {
                self.lose(hardware.gpu_id, &Fault::of_hardware(hardware));
            }
        }
        match request.wait_result {
            wait_result::COMPLETE => Ok(Woken::Signalled),
            wait_result::TIMEOUT => Ok(Woken::TimedOut),
            _ => Err(Error::Ioctl {
                ioctl: WaitEvents::NAME,
                errno: Errno(libc::EBADF),
            }),
        }
    }

    /// Marks a GPU as lost: that with the number, or all if nobody has it. The first fault of a GPU counts.
    fn lose(&self, gpu_id: u32, fault: &Fault) {
        let is_known = self.nodes().iter().any(|node| node.gpu_id == gpu_id);
        for (device, node) in self.devices.iter().zip(self.nodes()) {
            if node.gpu_id == gpu_id || !is_known {
                let _ = device.lost.set(fault.clone());
            }
        }
    }

    /// Whether the GPUs of the events have had no fault, or all if there are no events.
    fn all_usable(&self, events: &[&Event]) -> Result<()> {
        self.shared.own_process()?;
        if events.is_empty() {
            return (self.devices.iter().zip(self.nodes()))
                .try_for_each(|(device, node)| device.usable(node));
        }
        events.iter().try_for_each(|event| event.gpu.usable())
    }
}
