//! Slots as clients see them: a place for each sequence that runs at once, which remembers the tokens of the last one.
//!
//! What is saved of a slot is the longest known prefix of its tokens: whole blocks, for recurrent models up to the last
//! checkpoint, and what a draft model knows of it. What is restored becomes a known prefix, which any request of the
//! same namespace starts with.

use super::Scheduler;
use crate::engine::api::{self, Failure, SlotAction, SlotDone, SlotStatus};
use crate::engine::blocks::{root, BlockPool, Known, Prefix};
use crate::engine::saved::{self, Contents, Part, Saved};
use crate::engine::sequence::Sequence;
use crate::engine::snapshots::{Place, Snapshots};
use crate::engine::speculation::Memory;
use std::io;
use std::path::Path;

/// Slots by number.
#[derive(Default)]
pub(super) struct Slots(Vec<Slot>);

#[derive(Default)]
struct Slot {
    /// The sequence that it has now.
    request: Option<u64>,
    /// Of that which it had last, or what was restored, as prefixes are known by them.
    tokens: Vec<u32>,
    root: Prefix,
}

impl Slots {
    /// So many slots, which nobody has used.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Slot::default()).collect())
    }

    /// Whether a sequence can start that wants this slot, or any.
    pub(super) fn has(&self, wish: Option<usize>) -> bool {
        let wanted = wish.and_then(|id| self.0.get(id));
        wanted.is_none_or(|slot| slot.request.is_none())
    }

    /// Gives a sequence that starts the slot that it asks for, or the one with the lowest number that is free.
    pub(super) fn start(&mut self, sequence: &Sequence) -> Option<usize> {
        let free = |id: &usize| self.0.get(*id).is_some_and(|slot| slot.request.is_none());
        let wanted = sequence.slot.filter(free);
        let id = wanted.or_else(|| (0..self.0.len()).find(free))?;
        self.0[id] = Slot {
            request: Some(sequence.id),
            tokens: Vec::new(),
            root: sequence.root(),
        };
        Some(id)
    }

    /// Takes note of the tokens of a sequence that ends.
    pub(super) fn end(&mut self, sequence: &Sequence) {
        let mut slots = self.0.iter_mut();
        if let Some(slot) = slots.find(|slot| slot.request == Some(sequence.id)) {
            slot.request = None;
            slot.tokens = sequence.all_named();
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
        let own = root(api::namespace(namespace, &[]));
        let tokens = match slot.request.and_then(|id| self.sequence(id)) {
            _ if slot.root != own => Vec::new(),
            Some(sequence) => sequence.all_named(),
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

    /// The model's memory, and a draft model's.
    fn memories(&mut self) -> impl Iterator<Item = Memory<'_>> {
        let own = Memory {
            forward: &mut *self.forward,
            pool: &mut self.pool,
        };
        [own].into_iter().chain(self.speculation.memory())
    }

    fn save(
        &mut self,
        path: &Path,
        root: Prefix,
        mut tokens: Vec<u32>,
    ) -> Result<SlotDone, Failure> {
        if self.forward.snapshots().is_none() {
            return Err(not_implemented());
        }
        let vocabulary = self.forward.vocab_size();
        // What was forgotten is no part of what is known.
        let told = self.media.to_file(&tokens, vocabulary);
        tokens.truncate(told.0.len());
        let mut all: Vec<KnownPart> = Vec::new();
        for Memory { forward, pool } in self.memories() {
            let known = pool.take_known(root, &tokens);
            match forward.snapshots().filter(|_| !known.blocks.is_empty()) {
                Some(snapshots) => all.push(KnownPart::of(snapshots, pool, known)),
                // Nothing of a draft model: it reads the prompt anew.
                None => pool.give_back_known(known),
            }
            let Some(own) = all.first() else {
                return Err(Failure::Invalid(
                    "nothing of this slot is known that could be saved: not a whole block of it is in the cache"
                        .to_string(),
                ));
            };
            // A draft model is of no use beyond.
            tokens.truncate(own.part.tokens as usize);
        }
        let (mut told, pictures) = told;
        told.truncate(tokens.len());
        let contents = Contents {
            tokens: told,
            pictures,
            parts: all.iter().map(|known| known.part.clone()).collect(),
        };
        let place = |part: usize, index: usize, out: &mut Vec<u8>| {
            let KnownPart {
                snapshots, places, ..
            } = &all[part];
            snapshots.read(places[index], out).map_err(io::Error::other)
        };
        let saved = saved::write(path, &contents, place);
        for known in all {
            known.pool.give_back_known(known.known);
        }
        let bytes = saved.map_err(|error| of_file(path, &error))?;
        Ok(SlotDone {
            tokens: contents.tokens.len(),
            bytes,
        })
    }

    fn restore(&mut self, path: &Path, root: Prefix) -> Result<(Vec<u32>, SlotDone), Failure> {
        if self.forward.snapshots().is_none() {
            return Err(not_implemented());
        }
        if !self.pool.keeps() {
            return Err(Failure::Invalid(
                "a restored slot is a known prefix, and this worker runs without the prefix cache"
                    .to_string(),
            ));
        }
        let mut file = Saved::open(path).map_err(|error| of_file(path, &error))?;
        let Contents {
            tokens,
            pictures,
            parts,
        } = &file.contents;
        let (vocabulary, parts) = (self.forward.vocab_size(), parts.clone());
        let whole = tokens.len() == parts[0].tokens as usize && tokens.len() <= self.context;
        let named = || self.media.of_file(tokens, pictures, vocabulary);
        let Some(tokens) = whole.then(named).flatten() else {
            let reason = "its tokens are none that this worker could go on from";
            let error = io::Error::new(io::ErrorKind::InvalidData, reason);
            return Err(of_file(path, &error));
        };
        let mut new = Vec::new();
        let mut read = Ok(());
        for (number, (part, memory)) in parts.iter().zip(self.memories()).enumerate() {
            match Places::take(part, memory) {
                Ok(places) => new.push(places),
                // A draft model reads the prompt anew.
                Err(_) if number > 0 => break,
                Err(error) => {
                    read = Err(error);
                    break;
                }
            }
        }
        for (number, part) in parts.iter().enumerate() {
            read = read.and_then(|()| match new.get_mut(number) {
                Some(places) => places.read(&mut file),
                None => file.skip(part),
            });
        }
        read = read.and_then(|()| file.finish());
        for places in new {
            if read.is_ok() {
                let tokens = &tokens[..places.tokens];
                places.pool.remember_all(root, &places.known, tokens);
            }
            places.pool.give_back_known(places.known);
        }
        read.map_err(|error| of_file(path, &error))?;
        let done = SlotDone {
            tokens: tokens.len(),
            bytes: std::fs::metadata(path).map_or(0, |data| data.len()),
        };
        Ok((tokens, done))
    }
}

/// What a model knows of a slot's tokens.
struct KnownPart<'a> {
    snapshots: &'a mut dyn Snapshots,
    pool: &'a mut BlockPool,
    part: Part,
    known: Known,
    places: Vec<Place>,
}

impl<'a> KnownPart<'a> {
    fn of(snapshots: &'a mut dyn Snapshots, pool: &'a mut BlockPool, mut known: Known) -> Self {
        pool.take_earlier_windows(&mut known);
        let counts = [
            known.blocks.len(),
            known.windows.len(),
            known.state.iter().len(),
        ];
        let tokens = known.blocks.len() * pool.block_size();
        Self {
            part: Part::of(snapshots, tokens, counts.map(|count| count as u32)),
            places: places(&known).collect(),
            snapshots,
            pool,
            known,
        }
    }
}

/// Where what a file has for a model goes.
struct Places<'a> {
    snapshots: &'a mut dyn Snapshots,
    pool: &'a mut BlockPool,
    known: Known,
    tokens: usize,
}

impl<'a> Places<'a> {
    /// Takes the places for a part of a file, if that is of this model.
    fn take(part: &Part, memory: Memory<'a>) -> io::Result<Self> {
        let Memory { forward, pool } = memory;
        let Some(snapshots) = forward.snapshots() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let own = Part::of(snapshots, 0, [0; 3]);
        let [blocks, windows, states] = part.counts.map(|count| count as usize);
        let tokens = part.tokens as usize;
        let refused = own.difference(part).or_else(|| {
            let whole = blocks > 0 && tokens == blocks.saturating_mul(pool.block_size());
            let seen = whole && (pool.known_windows(blocks)..=blocks).contains(&windows);
            let seen = seen && (windows == 0 || pool.has_windows());
            let fits = seen && states == usize::from(pool.is_recurrent());
            (!fits).then(|| {
                format!(
                    "its {tokens} tokens in {blocks} blocks, {windows} of windows and {states} states are nothing that this worker could go on from"
                )
            })
        });
        let reason = refused.map_or_else(
            || {
                let taken = pool.take_places(blocks, windows, states);
                taken.ok_or_else(|| {
                    format!("{blocks} blocks of the cache are needed, and fewer are free now")
                })
            },
            Err,
        );
        let known = reason.map_err(|text| io::Error::new(io::ErrorKind::InvalidData, text))?;
        Ok(Self {
            snapshots,
            pool,
            known,
            tokens,
        })
    }

    fn read(&mut self, file: &mut Saved) -> io::Result<()> {
        let mut held = Vec::new();
        for place in places(&self.known) {
            file.next(self.snapshots.bytes(place), &mut held)?;
            self.snapshots
                .write(place, &held)
                .map_err(io::Error::other)?;
        }
        Ok(())
    }
}

fn places(known: &Known) -> impl Iterator<Item = Place> + '_ {
    let blocks = known.blocks.iter().map(|block| Place::Block(*block));
    let windows = known.windows.iter().map(|block| Place::WindowBlock(*block));
    let states = known.state.iter().map(|slot| Place::State(*slot));
    blocks.chain(windows).chain(states)
}

fn not_implemented() -> Failure {
    Failure::Invalid("saving and restoring is not implemented for this family".to_string())
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
