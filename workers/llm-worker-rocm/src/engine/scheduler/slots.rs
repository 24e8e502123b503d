//! Slots as clients see them: a place for each sequence that runs at once, which remembers the tokens of the last one.
//!
//! What is saved of a slot is the longest known prefix of its tokens: whole blocks, for recurrent models up to the last
//! checkpoint. What is restored becomes a known prefix, which any request of the same namespace starts with.

use super::Scheduler;
use crate::engine::api::{Failure, SlotAction, SlotDone, SlotStatus};
use crate::engine::blocks::{root, Known, Prefix};
use crate::engine::saved::{self, Contents, Saved};
use crate::engine::sequence::Sequence;
use crate::engine::snapshots::{Place, Snapshots};
use std::io;
use std::path::Path;

/// Slots by number.
#[derive(Default)]
pub(super) struct Slots(Vec<Slot>);

#[derive(Default)]
struct Slot {
    /// The sequence that it has now.
    request: Option<u64>,
    /// Of that which it had last, or what was restored.
    tokens: Vec<u32>,
    root: Prefix,
}

impl Slots {
    /// So many slots, which nobody has used.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Slot::default()).collect())
    }

    /// Gives a sequence that starts the slot with the lowest number that is free.
    pub(super) fn start(&mut self, sequence: &Sequence) {
        if let Some(slot) = self.0.iter_mut().find(|slot| slot.request.is_none()) {
            *slot = Slot {
                request: Some(sequence.id),
                tokens: Vec::new(),
                root: sequence.root(),
            };
        }
    }

    /// Takes note of the tokens of a sequence that ends.
    pub(super) fn end(&mut self, sequence: &Sequence) {
        let mut slots = self.0.iter_mut();
        if let Some(slot) = slots.find(|slot| slot.request == Some(sequence.id)) {
            slot.request = None;
            slot.tokens = sequence.tokens.clone();
        }
    }

    /// Forgets all tokens.
    pub(super) fn clear(&mut self) {
        self.0.iter_mut().for_each(|slot| *slot = Slot::default());
    }
}

impl Scheduler {
    /// What the slots have.
    pub(super) fn slot_status(&self) -> Vec<SlotStatus> {
        let status = |(id, slot): (usize, &Slot)| {
            let sequence = slot.request.and_then(|id| self.sequence(id));
            SlotStatus {
                id,
                request: slot.request,
                context: self.context,
                tokens: sequence.map_or(slot.tokens.len(), |s| s.tokens.len()),
                prompt: sequence.map_or(0, |s| s.prompt),
                computed: sequence.map_or(0, |s| s.computed),
                generated: sequence.map_or(0, Sequence::generated),
            }
        };
        self.slots.0.iter().enumerate().map(status).collect()
    }

    fn sequence(&self, id: u64) -> Option<&Sequence> {
        let mut all = self.running.iter().chain(&self.preempted);
        all.find(|sequence| sequence.id == id)
    }

    /// Does something with a slot.
    pub(super) fn slot(
        &mut self,
        id: usize,
        namespace: u64,
        action: &SlotAction,
    ) -> Result<SlotDone, Failure> {
        let count = self.slots.0.len();
        let Some(slot) = self.slots.0.get(id) else {
            return Err(Failure::Invalid(format!(
                "there is no slot {id}, only 0 to {}",
                count.saturating_sub(1)
            )));
        };
        let own = root(namespace);
        let tokens = match slot.request.and_then(|id| self.sequence(id)) {
            _ if slot.root != own => Vec::new(),
            Some(sequence) => sequence.tokens.clone(),
            None => slot.tokens.clone(),
        };
        match action {
            SlotAction::Save(path) => self.save(path, own, tokens),
            SlotAction::Restore(_) if slot.request.is_some() => Err(Failure::Invalid(format!(
                "slot {id} is in use; restore into one that is free"
            ))),
            SlotAction::Restore(path) => {
                let (tokens, done) = self.restore(path, own)?;
                self.slots.0[id] = Slot {
                    request: None,
                    tokens,
                    root: own,
                };
                Ok(done)
            }
            SlotAction::Erase => {
                let erased = self.pool.forget_known(own, &tokens);
                if self.slots.0[id].root == own {
                    self.slots.0[id].tokens.clear();
                }
                Ok(SlotDone {
                    tokens: erased,
                    bytes: 0,
                })
            }
        }
    }

    fn save(
        &mut self,
        path: &Path,
        root: Prefix,
        mut tokens: Vec<u32>,
    ) -> Result<SlotDone, Failure> {
        let Some(snapshots) = self.forward.snapshots().filter(|_| self.saves) else {
            return Err(not_implemented());
        };
        let mut known = self.pool.take_known(root, &tokens);
        self.pool.take_earlier_windows(&mut known);
        tokens.truncate(known.blocks.len() * self.pool.block_size());
        let saved = match tokens.is_empty() {
            true => Err(Failure::Invalid(
                "nothing of this slot is known that could be saved: not a whole block of it is in the cache"
                    .to_string(),
            )),
            false => save_known(path, &*snapshots, &known, tokens),
        };
        self.pool.give_back_known(known);
        saved
    }

    fn restore(&mut self, path: &Path, root: Prefix) -> Result<(Vec<u32>, SlotDone), Failure> {
        let Some(snapshots) = self.forward.snapshots().filter(|_| self.saves) else {
            return Err(not_implemented());
        };
        if !self.pool.keeps() {
            return Err(Failure::Invalid(
                "a restored slot is a known prefix, and this worker runs without the prefix cache"
                    .to_string(),
            ));
        }
        let mut file = Saved::open(path).map_err(|error| of_file(path, &error))?;
        let own = Contents::of(&*snapshots, Vec::new(), [0; 3]);
        let size = self.pool.block_size();
        let [blocks, windows, states] = file.contents.counts.map(|count| count as usize);
        let tokens = std::mem::take(&mut file.contents.tokens);
        let vocabulary = self.forward.vocab_size();
        let refused = own.difference(&file.contents).or_else(|| {
            let whole = tokens.len() == blocks * size && blocks > 0 && blocks * size <= self.context;
            let known = tokens.iter().all(|token| (*token as usize) < vocabulary);
            let seen = (self.pool.known_windows(blocks)..=blocks).contains(&windows);
            let seen = seen && (windows == 0 || self.pool.has_windows());
            let fits = whole && known && seen && states == usize::from(self.pool.is_recurrent());
            (!fits).then(|| {
                format!(
                    "its {} tokens in {blocks} blocks, {windows} of windows and {states} states are nothing that this worker could go on from",
                    tokens.len()
                )
            })
        });
        if let Some(reason) = refused {
            return Err(of_file(
                path,
                &io::Error::new(io::ErrorKind::InvalidData, reason),
            ));
        }
        let Some(new) = self.pool.take_places(blocks, windows, states) else {
            return Err(Failure::Invalid(format!(
                "{blocks} blocks of the cache are needed, and fewer are free now"
            )));
        };
        let read = self.read_places(&mut file, &new);
        if read.is_ok() {
            self.pool.remember_all(root, &new, &tokens);
        }
        self.pool.give_back_known(new);
        read.map_err(|error| of_file(path, &error))?;
        let done = SlotDone {
            tokens: tokens.len(),
            bytes: std::fs::metadata(path).map_or(0, |data| data.len()),
        };
        Ok((tokens, done))
    }

    fn read_places(&mut self, file: &mut Saved, new: &Known) -> io::Result<()> {
        let Some(snapshots) = self.forward.snapshots() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let mut held = Vec::new();
        for place in places(new) {
            file.next(snapshots.bytes(place), &mut held)?;
            snapshots.write(place, &held).map_err(io::Error::other)?;
        }
        file.finish()
    }
}

fn save_known(
    path: &Path,
    snapshots: &dyn Snapshots,
    known: &Known,
    tokens: Vec<u32>,
) -> Result<SlotDone, Failure> {
    let counts = [
        known.blocks.len(),
        known.windows.len(),
        known.state.iter().len(),
    ];
    let contents = Contents::of(snapshots, tokens, counts.map(|count| count as u32));
    let places: Vec<Place> = places(known).collect();
    let place = |index: usize, out: &mut Vec<u8>| {
        snapshots.read(places[index], out).map_err(io::Error::other)
    };
    let bytes = saved::write(path, &contents, place).map_err(|error| of_file(path, &error))?;
    Ok(SlotDone {
        tokens: contents.tokens.len(),
        bytes,
    })
}

fn places(known: &Known) -> impl Iterator<Item = Place> + '_ {
    let blocks = known.blocks.iter().map(|block| Place::Block(*block));
    let windows = known.windows.iter().map(|block| Place::WindowBlock(*block));
    let states = known.state.iter().map(|slot| Place::State(*slot));
    blocks.chain(windows).chain(states)
}

fn not_implemented() -> Failure {
    Failure::Invalid("saving and restoring is not implemented for this family, nor with a draft model or a head that guesses"
            .to_string())
}

/// What is wrong with a file; its folder is nobody's business.
fn of_file(path: &Path, error: &io::Error) -> Failure {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::NotFound => {
            Failure::Invalid(format!("{name}: {error}"))
        }
        _ => Failure::Internal(format!("{name}: {error}")),
    }
}
