//! Who is loaded, who waits, and who makes room: rules only, without processes and without a clock of their own.
//!
//! Requests for a model that is not there wait in the order in which their models were first asked for; those for one
//! model wait together, and are let in together once it is there. A model that answers is never taken away. Where one
//! that waits needs the place of a model that answers, that one takes nothing new until the place was given up: its own
//! further requests wait behind, so that under any load every model has its turn.

use crate::device::{DeviceRequest, MOST_GPUS};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A model's number.
pub(super) type Id = usize;

/// What a model computes on, as far as room is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Place {
    Cpu,
    /// GPUs, a bit for each ordinal.
    Rocm(u64),
}

impl Place {
    /// A GPU.
    pub(super) fn gpu(ordinal: usize) -> Self {
        // A list of devices takes no higher numbers; one alone has the highest place then.
        Self::Rocm(1 << ordinal.min(MOST_GPUS - 1))
    }

    /// The place of a model on these devices: GPUs count, the CPU beside them does not.
    pub(super) fn of(devices: &[DeviceRequest]) -> Self {
        let places = devices.iter().map(|device| match device {
            DeviceRequest::Rocm(ordinal) => Self::gpu(*ordinal),
            DeviceRequest::Auto if DeviceRequest::Auto.may_be_rocm() => Self::gpu(0),
            DeviceRequest::Auto | DeviceRequest::Cpu => Self::Cpu,
        });
        places.fold(Self::Cpu, |all, place| match (all, place) {
            (Self::Rocm(all), Self::Rocm(more)) => Self::Rocm(all | more),
            (Self::Cpu, other) | (other, Self::Cpu) => other,
        })
    }

    /// The ordinals of its GPUs.
    pub(super) fn ordinals(self) -> impl Iterator<Item = usize> {
        let bits = match self {
            Self::Cpu => 0,
            Self::Rocm(bits) => bits,
        };
        (0..MOST_GPUS).filter(move |ordinal| bits >> ordinal & 1 == 1)
    }

    /// Whether models there take memory from each other.
    pub(super) fn meets(self, other: Self) -> bool {
        match (self, other) {
            (Self::Cpu, Self::Cpu) => true,
            (Self::Rocm(one), Self::Rocm(other)) => one & other != 0,
            _ => false,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Rocm(_) => {
                let names: Vec<String> = self.ordinals().map(|n| format!("rocm:{n}")).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

/// Where a model is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Unloaded,
    Loading,
    Loaded,
    FallingAsleep,
    /// Its process is there, its weights are not.
    Sleeping,
    Waking,
    Unloading,
}

impl Phase {
    /// Whether it has a process.
    pub(super) fn is_running(self) -> bool {
        self != Self::Unloaded
    }

    /// Whether it is about to become something else by itself.
    fn is_moving(self) -> bool {
        !matches!(self, Self::Unloaded | Self::Loaded | Self::Sleeping)
    }
}

/// When an idle model is given up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Patience {
    /// Until it is put to sleep.
    pub(super) sleep: Option<Duration>,
    /// Until it is unloaded.
    pub(super) unload: Option<Duration>,
}

/// A model.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) place: Place,
    /// Whether it stays loaded.
    pub(super) pinned: bool,
    /// Whether it can give back its memory without ending.
    pub(super) can_sleep: bool,
    pub(super) patience: Patience,
    /// What the last request said in place of it.
    keep: Option<Patience>,
    pub(super) phase: Phase,
    /// Requests that are answered.
    answers: usize,
    /// Requests that wait.
    waiters: usize,
    /// Whether it is to be loaded without a request.
    wanted: bool,
    /// When it was last asked for, by a clock that counts requests.
    used: u64,
    idle_since: Instant,
    /// Not before this is it started anew.
    pub(super) not_before: Option<Instant>,
    /// Bytes that it is thought to need.
    pub(super) needs: u64,
    /// Bytes that its process has.
    pub(super) takes: u64,
    /// Whether it takes nothing new as another needs its place.
    draining: bool,
    /// Whether the last try failed for memory: another has to go first.
    cramped: bool,
}

impl Slot {
    pub(super) fn new(place: Place, needs: u64, now: Instant) -> Self {
        Self {
            place,
            pinned: false,
            can_sleep: false,
            patience: Patience::default(),
            keep: None,
            phase: Phase::Unloaded,
            answers: 0,
            waiters: 0,
            wanted: false,
            used: 0,
            idle_since: now,
            not_before: None,
            needs,
            takes: 0,
            draining: false,
            cramped: false,
        }
    }

    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    pub(super) fn waiters(&self) -> usize {
        self.waiters
    }

    fn is_idle(&self) -> bool {
        self.answers == 0
    }
}

/// How much there may be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Limits {
    /// Models that have a process.
    pub(super) models: Option<usize>,
    /// Bytes that the models of a place take together.
    pub(super) memory: Option<u64>,
    /// Requests that wait.
    pub(super) waiting: usize,
}

/// What is to be done. The slot's phase says so already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Load(Id),
    Wake(Id),
    Sleep(Id),
    Unload(Id),
    /// Those who wait are let in: each is an answer from now on.
    Admit(Id),
    /// Those who wait will not be served.
    Refuse(Id, String),
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// It is an answer from now on.
    Admitted,
    /// It waits from now on.
    Waits,
    /// It would wait, and too many do.
    Full,
}

/// How a model makes room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Sleep,
    Unload,
}

/// Whether there is room for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Room {
    Yes,
    /// Something is on its way.
    Wait,
    Evict(Id, Way),
    Drain(Id),
    Never(String),
}

/// What bounds a model's room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    Count,
    Memory,
}

/// Free bytes of a place, where that is known.
pub(super) type Free<'a> = &'a dyn Fn(Place) -> Option<u64>;

/// All models.
#[derive(Debug)]
pub(super) struct Schedule {
    pub(super) slots: Vec<Slot>,
    pub(super) limits: Limits,
    /// Models that are waited for, in the order in which they were first asked for.
    queue: VecDeque<Id>,
    clock: u64,
}

impl Schedule {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            slots: Vec::new(),
            limits,
            queue: VecDeque::new(),
            clock: 0,
        }
    }

    /// Requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.slots.iter().map(|slot| slot.waiters).sum()
    }

    /// A request. `keep` is how long the model is kept after it, if it says so.
    pub(super) fn enter(&mut self, id: Id, keep: Option<Patience>) -> Entry {
        let waiting = self.waiting();
        self.clock += 1;
        let slot = &mut self.slots[id];
        let at_once = slot.phase == Phase::Loaded && !slot.draining && slot.waiters == 0;
        if !at_once && waiting >= self.limits.waiting {
            return Entry::Full;
        }
        slot.used = self.clock;
        slot.keep = keep;
        if at_once {
            slot.answers += 1;
            return Entry::Admitted;
        }
        slot.waiters += 1;
        self.ask(id);
        Entry::Waits
    }

    /// Has a model loaded without a request.
    pub(super) fn want(&mut self, id: Id) {
        self.clock += 1;
        let slot = &mut self.slots[id];
        slot.used = self.clock;
        slot.wanted = true;
        slot.not_before = None;
        self.ask(id);
    }

    fn ask(&mut self, id: Id) {
        if !self.queue.contains(&id) {
            self.queue.push_back(id);
        }
    }

    /// A request that waited is gone.
    pub(super) fn give_up(&mut self, id: Id) {
        let waiters = &mut self.slots[id].waiters;
        *waiters = waiters.saturating_sub(1);
    }

    /// An answer has ended.
    pub(super) fn answered(&mut self, id: Id, now: Instant) {
        let slot = &mut self.slots[id];
        slot.answers = slot.answers.saturating_sub(1);
        slot.idle_since = now;
    }

    /// A model is loaded, or awake again, and takes so many bytes.
    pub(super) fn loaded(&mut self, id: Id, takes: u64, now: Instant) {
        let slot = &mut self.slots[id];
        // It may have been told to end meanwhile.
        if !matches!(slot.phase, Phase::Loading | Phase::Waking) {
            return;
        }
        slot.phase = Phase::Loaded;
        slot.takes = takes;
        slot.needs = slot.needs.max(takes);
        slot.idle_since = now;
        slot.not_before = None;
        slot.cramped = false;
        slot.wanted &= slot.waiters > 0;
    }

    /// A model sleeps, and still takes so many bytes; or it cannot.
    pub(super) fn slept(&mut self, id: Id, takes: Option<u64>) {
        let slot = &mut self.slots[id];
        if slot.phase != Phase::FallingAsleep {
            return;
        }
        match takes {
            Some(takes) => {
                slot.phase = Phase::Sleeping;
                slot.takes = takes;
            }
            None => {
                slot.can_sleep = false;
                slot.phase = Phase::Loaded;
            }
        }
    }

    /// A model's process has ended.
    pub(super) fn ended(&mut self, id: Id, not_before: Option<Instant>) {
        let slot = &mut self.slots[id];
        slot.phase = Phase::Unloaded;
        slot.takes = 0;
        slot.not_before = not_before;
        slot.keep = None;
    }

    /// A load has failed for memory: another model is to go before the next try. False if there is none.
    pub(super) fn cramped(&mut self, id: Id) -> bool {
        let place = self.slots[id].place;
        let others = |(other, slot): (Id, &Slot)| {
            other != id && slot.place.meets(place) && slot.phase.is_running() && !slot.pinned
        };
        let any = self.slots.iter().enumerate().any(others);
        self.slots[id].cramped = any;
        any
    }

    /// Nobody waits for a model any more.
    pub(super) fn clear(&mut self, id: Id) {
        self.slots[id].waiters = 0;
        self.slots[id].wanted = false;
        self.slots[id].cramped = false;
        self.queue.retain(|&other| other != id);
    }

    /// Has a model unloaded: what it answers now may end. None if it has no process.
    pub(super) fn unload(&mut self, id: Id) -> Option<Step> {
        let slot = &mut self.slots[id];
        if !slot.phase.is_running() || slot.phase == Phase::Unloading {
            return None;
        }
        slot.phase = Phase::Unloading;
        slot.wanted = false;
        Some(Step::Unload(id))
    }

    /// Has an idle model put to sleep. None if it answers or is not loaded.
    pub(super) fn sleep(&mut self, id: Id) -> Option<Step> {
        let slot = &mut self.slots[id];
        let may = slot.phase == Phase::Loaded && slot.is_idle() && slot.can_sleep;
        may.then(|| {
            slot.phase = Phase::FallingAsleep;
            Step::Sleep(id)
        })
    }

    /// What is to be done now.
    pub(super) fn steps(&mut self, now: Instant, free: Free<'_>) -> Vec<Step> {
        let mut steps = Vec::new();
        for slot in &mut self.slots {
            slot.draining = false;
        }
        // Places where nothing further may begin, and whether no further process may be started.
        let mut blocked: Vec<Place> = Vec::new();
        let mut full = false;
        let mut next = 0;
        while let Some(&id) = self.queue.get(next) {
            let slot = &self.slots[id];
            let place = slot.place;
            if slot.waiters == 0 && !slot.wanted {
                self.queue.remove(next);
                continue;
            }
            match slot.phase {
                Phase::Loaded if !slot.draining => {
                    self.queue.remove(next);
                    self.admit(id, &mut steps);
                    continue;
                }
                Phase::Unloaded | Phase::Sleeping => {}
                _ => {
                    next += 1;
                    continue;
                }
            }
            let starts = slot.phase == Phase::Unloaded;
            let waits_for_time = slot.not_before.is_some_and(|due| due > now);
            if waits_for_time || blocked.iter().any(|other| other.meets(place)) || (full && starts)
            {
                next += 1;
                continue;
            }
            let (room, bound) = self.room(id, free);
            match room {
                Room::Yes => {
                    let slot = &mut self.slots[id];
                    slot.phase = if starts {
                        Phase::Loading
                    } else {
                        Phase::Waking
                    };
                    steps.push(if starts {
                        Step::Load(id)
                    } else {
                        Step::Wake(id)
                    });
                }
                Room::Wait => {}
                Room::Evict(victim, Way::Sleep) => {
                    self.slots[victim].phase = Phase::FallingAsleep;
                    self.slots[id].cramped = false;
                    steps.push(Step::Sleep(victim));
                }
                Room::Evict(victim, Way::Unload) => {
                    self.slots[victim].phase = Phase::Unloading;
                    self.slots[id].cramped = false;
                    steps.push(Step::Unload(victim));
                }
                Room::Drain(victim) => self.slots[victim].draining = true,
                Room::Never(reason) => {
                    self.clear(id);
                    steps.push(Step::Refuse(id, reason));
                    continue;
                }
            }
            blocked.push(place);
            full |= bound == Bound::Count;
            next += 1;
        }
        steps
    }

    fn admit(&mut self, id: Id, steps: &mut Vec<Step>) {
        let slot = &mut self.slots[id];
        slot.wanted = false;
        if slot.waiters > 0 {
            slot.answers += slot.waiters;
            slot.waiters = 0;
            steps.push(Step::Admit(id));
        }
    }

    /// Whether a model may be loaded or woken, and what bounds it.
    fn room(&self, id: Id, free: Free<'_>) -> (Room, Bound) {
        let slot = &self.slots[id];
        let running = self.slots.iter().filter(|slot| slot.phase.is_running());
        if !slot.phase.is_running() {
            if let Some(most) = self.limits.models.filter(|&most| running.count() >= most) {
                let leaving = |slot: &Slot| slot.phase == Phase::Unloading;
                let may_leave = |slot: &Slot| slot.phase.is_running() && !slot.pinned;
                let room = match self.slots.iter().any(leaving) {
                    true => None,
                    false => self.make_room(id, None),
                };
                let room = room.unwrap_or_else(|| match self.slots.iter().any(may_leave) {
                    // One that is being loaded may go once it has been of use.
                    true => Room::Wait,
                    false => Room::Never(format!(
                        "all of the {most} models that --models-max allows at once stay loaded"
                    )),
                });
                return (room, Bound::Count);
            }
        }
        let here = |other: &Slot| other.place.meets(slot.place);
        if self
            .slots
            .iter()
            .any(|other| here(other) && other.phase.is_moving())
        {
            return (Room::Wait, Bound::Memory);
        }
        if slot.cramped {
            // There was one when the load failed; if it has gone by itself, its room is there.
            let room = self.make_room(id, Some(slot.place)).unwrap_or(Room::Yes);
            return (room, Bound::Memory);
        }
        let others = self.slots.iter().enumerate();
        let others = others.filter(|(other, slot)| *other != id && here(slot));
        let taken: u64 = others.map(|(_, slot)| slot.takes).sum();
        let fits = match self.limits.memory {
            Some(most) => taken.saturating_add(slot.needs) <= most,
            None => {
                free(slot.place).is_none_or(|free| slot.needs.saturating_sub(slot.takes) <= free)
            }
        };
        if fits {
            return (Room::Yes, Bound::Memory);
        }
        let room = match (self.make_room(id, Some(slot.place)), self.limits.memory) {
            (Some(room), _) => room,
            (None, Some(most)) if taken > 0 => Room::Never(format!(
                "it needs about {} MB, the models that stay loaded take {} MB, and --models-memory allows {} MB",
                slot.needs >> 20,
                taken >> 20,
                most >> 20
            )),
            // Alone: whether it fits shows when it is tried.
            (None, _) => Room::Yes,
        };
        (room, Bound::Memory)
    }

    /// Who makes room for a model: of all places for a process, of one for memory. An idle one before one that answers,
    /// and the one first that was asked for longest ago.
    fn make_room(&self, id: Id, place: Option<Place>) -> Option<Room> {
        let settled = self.slots.iter().enumerate().filter(|(other, slot)| {
            let settled = matches!(slot.phase, Phase::Loaded | Phase::Sleeping);
            let here = place.is_none_or(|place| slot.place.meets(place));
            *other != id && settled && here && !slot.pinned
        });
        let rank = |(_, slot): &(Id, &Slot)| {
            // A sleeping one has little memory to give.
            let sleeps = place.is_some() && slot.phase == Phase::Sleeping;
            (!slot.is_idle(), sleeps, slot.used)
        };
        let (victim, slot) = settled.min_by_key(rank)?;
        if !slot.is_idle() {
            return Some(Room::Drain(victim));
        }
        let sleeps = place.is_some() && slot.phase == Phase::Loaded && slot.can_sleep;
        let way = if sleeps { Way::Sleep } else { Way::Unload };
        Some(Room::Evict(victim, way))
    }

    /// Idle models whose time is over, and when to look again.
    pub(super) fn overdue(&mut self, now: Instant) -> (Vec<Step>, Option<Instant>) {
        let mut steps = Vec::new();
        let mut next: Option<Instant> = None;
        let mut look = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        for (id, slot) in self.slots.iter_mut().enumerate() {
            if let Some(due) = slot.not_before.filter(|&due| due > now && slot.waiters > 0) {
                look(due);
            }
            let settled = matches!(slot.phase, Phase::Loaded | Phase::Sleeping);
            if slot.pinned || !settled || !slot.is_idle() || slot.waiters > 0 {
                continue;
            }
            let patience = slot.keep.unwrap_or(slot.patience);
            let due =
                |wait: Option<Duration>| wait.and_then(|wait| slot.idle_since.checked_add(wait));
            let unload = due(patience.unload);
            let sleep =
                due(patience.sleep).filter(|_| slot.can_sleep && slot.phase == Phase::Loaded);
            if unload.is_some_and(|due| due <= now) {
                slot.phase = Phase::Unloading;
                steps.push(Step::Unload(id));
            } else if sleep.is_some_and(|due| due <= now) {
                slot.phase = Phase::FallingAsleep;
                steps.push(Step::Sleep(id));
                unload.into_iter().for_each(&mut look);
            } else {
                unload.into_iter().chain(sleep).for_each(&mut look);
            }
        }
        (steps, next)
    }
}

#[cfg(test)]
mod tests;
