//! Events as `kfd_events.c` has them: set by interrupts or by the process, and waited for.

use super::pages::{Pages, PAGE};
use crate::driver::Errno;
use crate::uapi::{
    event_type, wait_result, HwExceptionData, MemoryExceptionData, SIGNAL_EVENT_LIMIT,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// What a slot of the page has while its event was not signalled.
const UNSIGNALED: u64 = u64::MAX;
/// The first number of events that have no slot (`KFD_FIRST_NONSIGNAL_EVENT_ID`).
const FIRST_OTHER: u32 = 0x7fff_ffff / 2 + 1;
/// Slots that there are until the process gives or maps a page.
const OLD_SLOTS: u64 = 256;

/// Events of the process.
#[derive(Debug, Default)]
pub(super) struct Events {
    events: BTreeMap<u32, Event>,
    page: Option<Arc<Pages>>,
    /// The allocation that the process gave as page.
    pub page_handle: Option<u64>,
    slots: u64,
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    /// How many of the next interrupts are lost.
    pub lose: usize,
}

#[derive(Debug)]
struct Event {
    kind: u32,
    auto_reset: bool,
    signaled: bool,
    age: u64,
    memory: MemoryExceptionData,
    hardware: HwExceptionData,
}

/// Who waits, and for what.
#[derive(Debug)]
struct Waiter {
    events: Vec<Awaited>,
    all: bool,
}

#[derive(Debug)]
struct Awaited {
    id: u32,
    activated: bool,
    destroyed: bool,
}

/// What a waiter is told of an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    Nothing,
    Age(u64),
    Memory(MemoryExceptionData),
    Hardware(HwExceptionData),
}

impl Events {
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// The page of slots.
    pub fn page(&self) -> Option<&Arc<Pages>> {
        self.page.as_ref()
    }

    /// Makes memory of the process' the page of slots: `kfd_event_page_set`.
    pub fn set_page(&mut self, pages: Arc<Pages>, handle: u64) -> Result<(), Errno> {
        // The kernel writes so much, whatever the memory's size; here that is an error.
        if self.page.is_some() || pages.bytes() < u64::from(SIGNAL_EVENT_LIMIT) * 8 {
            return Err(Errno(libc::EINVAL));
        }
        pages.fill64(0, SIGNAL_EVENT_LIMIT.into(), UNSIGNALED);
        self.slots = pages.bytes() / 8;
        self.page = Some(pages);
        self.page_handle = Some(handle);
        Ok(())
    }

    /// Makes an event, and returns its number: `kfd_event_create`.
    pub fn create(&mut self, kind: u32, auto_reset: bool) -> Result<u32, Errno> {
        let id = if kind == event_type::SIGNAL {
            self.signal_slot()?
        } else {
            let used = self.events.range(FIRST_OTHER..).map(|(&id, _)| id);
            first_free(FIRST_OTHER, used)
        };
        self.events.insert(
            id,
            Event {
                kind,
                auto_reset,
                signaled: false,
                age: 1,
                memory: MemoryExceptionData::default(),
                hardware: HwExceptionData::default(),
            },
        );
        Ok(id)
    }

    /// A slot for a new signal. Number 0 is nobody's: it stands for none.
    fn signal_slot(&mut self) -> Result<u32, Errno> {
        let page = match &self.page {
            Some(page) => page,
            None => {
                let bytes = (u64::from(SIGNAL_EVENT_LIMIT) * 8).next_multiple_of(PAGE);
                let page = Pages::new(bytes)?;
                page.fill64(0, SIGNAL_EVENT_LIMIT.into(), UNSIGNALED);
                self.slots = OLD_SLOTS;
                self.page.insert(Arc::new(page))
            }
        };
        let used = self.events.range(1..FIRST_OTHER).map(|(&id, _)| id);
        let id = first_free(1, used);
        if u64::from(id) >= self.slots.min(SIGNAL_EVENT_LIMIT.into()) {
            return Err(Errno(libc::ENOSPC));
        }
        page.word64(u64::from(id) * 8)
            .store(UNSIGNALED, Ordering::SeqCst);
        Ok(id)
    }

    /// The page was mapped, so that all of its slots can be used: `kfd_event_mmap`.
    pub fn page_mapped(&mut self, bytes: u64) {
        self.slots = bytes / 8;
    }

    /// Ends an event; who waits for it fails.
    pub fn destroy(&mut self, id: u32) -> Result<(), Errno> {
        self.events.remove(&id).ok_or(Errno(libc::EINVAL))?;
        for awaited in self
            .waiters
            .values_mut()
            .flat_map(|waiter| &mut waiter.events)
        {
            awaited.destroyed |= awaited.id == id;
        }
        Ok(())
    }

    /// The process sets a signal.
    pub fn set(&mut self, id: u32) -> Result<(), Errno> {
        self.signal(id)?;
        self.activate(id);
        Ok(())
    }

    /// The process resets a signal.
    pub fn reset(&mut self, id: u32) -> Result<(), Errno> {
        self.signal(id)?.signaled = false;
        Ok(())
    }

    fn signal(&mut self, id: u32) -> Result<&mut Event, Errno> {
        (self.events.get_mut(&id))
            .filter(|event| event.kind == event_type::SIGNAL)
            .ok_or(Errno(libc::EINVAL))
    }

    /// Sets an event, unless that frees exactly those that wait for it: `set_event`.
    fn activate(&mut self, id: u32) {
        let Some(event) = self.events.get_mut(&id) else {
            return;
        };
        let mut waited_for = false;
        for awaited in self
            .waiters
            .values_mut()
            .flat_map(|waiter| &mut waiter.events)
        {
            if awaited.id == id {
                awaited.activated = true;
                waited_for = true;
            }
        }
        event.signaled = !event.auto_reset || !waited_for;
        event.age += 1;
    }

    /// An interrupt with the number of an event: `kfd_signal_event_interrupt`. Only slots that were written to count;
    /// where that of the number was not, all are looked at.
    pub fn interrupt(&mut self, id: u32) {
        if self.lose > 0 {
            self.lose -= 1;
            return;
        }
        let Some(page) = self.page.clone() else {
            return;
        };
        let written = |id: u32| page.word64(u64::from(id) * 8).load(Ordering::SeqCst) != UNSIGNALED;
        let signals = |events: &Events| -> Vec<u32> {
            let all = events.events.range(1..SIGNAL_EVENT_LIMIT);
            all.map(|(&id, _)| id).filter(|&id| written(id)).collect()
        };
        let set =
            if id > 0 && id < SIGNAL_EVENT_LIMIT && written(id) && self.events.contains_key(&id) {
                vec![id]
            } else {
                signals(self)
            };
        for id in set {
            page.word64(u64::from(id) * 8)
                .store(UNSIGNALED, Ordering::SeqCst);
            self.activate(id);
        }
    }

    /// Sets all events that wait for faults of memory.
    pub fn memory_fault(&mut self, data: MemoryExceptionData) {
        for id in self.others(event_type::MEMORY) {
            if let Some(event) = self.events.get_mut(&id) {
                event.memory = data;
            }
            self.activate(id);
        }
    }

    /// Sets all events that wait for resets.
    pub fn hardware_exception(&mut self, data: HwExceptionData) {
        for id in self.others(event_type::HW_EXCEPTION) {
            if let Some(event) = self.events.get_mut(&id) {
                event.hardware = data;
            }
            self.activate(id);
        }
    }

    fn others(&self, kind: u32) -> Vec<u32> {
        let of_kind = self
            .events
            .range(FIRST_OTHER..)
            .filter(|(_, event)| event.kind == kind);
        of_kind.map(|(&id, _)| id).collect()
    }

    /// Begins to wait for events, each with the age that the waiter knows (0: none), and returns the waiter's number.
    pub fn begin_wait(&mut self, ids: &[(u32, u64)], all: bool) -> Result<u64, Errno> {
        let mut events = Vec::with_capacity(ids.len());
        for &(id, age) in ids {
            let event = self.events.get_mut(&id).ok_or(Errno(libc::EINVAL))?;
            let newer = event.kind == event_type::SIGNAL && age > 0 && event.age != age;
            let activated = event.signaled || newer;
            event.signaled &= !event.auto_reset;
            events.push(Awaited {
                id,
                activated,
                destroyed: false,
            });
        }
        let number = self.next_waiter;
        self.next_waiter += 1;
        self.waiters.insert(number, Waiter { events, all });
        Ok(number)
    }

    /// What the wait has come to: a result of [`wait_result`].
    pub fn outcome(&self, waiter: u64) -> u32 {
        let Some(waiter) = self.waiters.get(&waiter) else {
            return wait_result::FAIL;
        };
        if waiter.events.iter().any(|awaited| awaited.destroyed) {
            return wait_result::FAIL;
        }
        let mut activated = waiter.events.iter().map(|awaited| awaited.activated);
        let complete = if waiter.all {
            activated.all(|is| is)
        } else {
            activated.any(|is| is)
        };
        if complete {
            wait_result::COMPLETE
        } else {
            wait_result::TIMEOUT
        }
    }

    /// Ends the wait, and returns what there is to tell of each event.
    pub fn end_wait(&mut self, waiter: u64) -> Vec<Told> {
        let Some(waiter) = self.waiters.remove(&waiter) else {
            return Vec::new();
        };
        let tell = |awaited: &Awaited| match self.events.get(&awaited.id) {
            Some(event) if awaited.activated => match event.kind {
                event_type::MEMORY => Told::Memory(event.memory),
                event_type::HW_EXCEPTION => Told::Hardware(event.hardware),
                event_type::SIGNAL => Told::Age(event.age),
                _ => Told::Nothing,
            },
            _ => Told::Nothing,
        };
        waiter.events.iter().map(tell).collect()
    }
}

/// The first number from `start` on that is not used; those used are in order.
fn first_free(start: u32, used: impl Iterator<Item = u32>) -> u32 {
    let mut free = start;
    for used in used {
        if used != free {
            break;
        }
        free += 1;
    }
    free
}
