//! Places of memory that belong to known prefixes beside their blocks, by number: slots of recurrent state, blocks of
//! layers with a sliding window.
//!
//! A place is free, held by sequences, or attached to a known block: it has what a sequence needs to go on behind that
//! block's prefix. An attached place that nobody holds is kept, and taken for something else only when none is free,
//! the longest unused first.

use std::collections::BTreeMap;

/// Places by number.
pub(super) struct Places {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Attached ones that nobody holds, by the time of their last use.
    kept: BTreeMap<u64, u32>,
    clock: u64,
}

#[derive(Default)]
struct Place {
    holders: u32,
    /// The known block that it is attached to.
    block: Option<u32>,
    /// When it was last used, while it is kept.
    kept_since: u64,
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self {
            places: (0..count).map(|_| Place::default()).collect(),
            free: (0..count as u32).rev().collect(),
            kept: BTreeMap::new(),
            clock: 0,
        }
    }

    pub(super) fn total(&self) -> usize {
        self.places.len()
    }

    /// Places that can be taken.
    pub(super) fn available(&self) -> usize {
        self.free.len() + self.kept.len()
    }

    /// Places that are kept for known prefixes.
    pub(super) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Places that sequences hold.
    pub(super) fn held(&self) -> usize {
        self.total() - self.available()
    }

    /// Takes hold of a place that nobody holds, if there is one. Gives the block that it was attached to as well.
    pub(super) fn take(&mut self) -> Option<(u32, Option<u32>)> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => self.kept.pop_first()?.1,
        };
        let taken = &mut self.places[place as usize];
        taken.holders = 1;
        Some((place, taken.block.take()))
    }

    /// Takes hold of an attached place, beside others.
    pub(super) fn hold(&mut self, place: u32) {
        let held = &mut self.places[place as usize];
        if held.holders == 0 {
            self.kept.remove(&held.kept_since);
        }
        held.holders += 1;
    }

    /// Ends one hold. Gives the time of this use.
    pub(super) fn give_back(&mut self, place: u32) -> u64 {
        self.clock += 1;
        let held = &mut self.places[place as usize];
        held.holders -= 1;
        if held.holders == 0 {
            if held.block.is_some() {
                held.kept_since = self.clock;
                self.kept.insert(self.clock, place);
            } else {
                self.free.push(place);
            }
        }
        self.clock
    }

    /// Attaches a held place to a block.
    pub(super) fn attach(&mut self, place: u32, block: u32) {
        self.places[place as usize].block = Some(block);
    }

    /// The opposite.
    pub(super) fn detach(&mut self, place: u32) {
        let detached = &mut self.places[place as usize];
        if detached.block.take().is_some() && detached.holders == 0 {
            self.kept.remove(&detached.kept_since);
            self.free.push(place);
        }
    }

    /// The block that it is attached to.
    pub(super) fn block(&self, place: u32) -> Option<u32> {
        self.places[place as usize].block
    }

    /// Whether more than one sequence holds it.
    pub(super) fn is_shared(&self, place: u32) -> bool {
        self.places[place as usize].holders > 1
    }

    /// Whether it is kept, and was last used at that time.
    pub(super) fn is_unused_since(&self, place: u32, time: u64) -> bool {
        self.kept.get(&time) == Some(&place)
    }
}
