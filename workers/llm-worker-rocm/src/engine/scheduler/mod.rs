//! The thread that runs the model: who is computed when.
//!
//! Each step takes the next token of every running sequence, and as many prompt tokens as the step has room for
//! besides. When blocks run out, the youngest sequence gives its own back and is computed anew later, from what the
//! pool then still knows of it. Sequences of a recurrent model have a slot of state besides their blocks.

mod adapters;
mod compute;
mod guess;
mod media;
mod outcome;
mod plan;
mod sleep;
mod slots;

pub(super) use plan::longest_step;
pub(super) use sleep::Sleep;

use crate::engine::api::{DecodeFigures, Event, Failure, Request};
use crate::engine::blocks::BlockPool;
use crate::engine::device::{self, DeviceFault};
use crate::engine::forward::Forward;
use crate::engine::handle::{adapters_of, Command, Shared, Waiting};
use crate::engine::media::MediaStore;
use crate::engine::sequence::Sequence;
use crate::engine::speculation::Speculation;
use slots::Slots;
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};
use worker::device::buffer_memory;

/// How often device memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_secs(1);
/// Most bytes of a step's logits that only tell the probabilities of prompts.
const TOLD_BYTES: usize = 64 << 20;

/// The state of the thread.
pub(super) struct Scheduler {
    pub forward: Box<dyn Forward>,
    pub pool: BlockPool,
    pub end_tokens: Vec<u32>,
    pub context: usize,
    pub max_sequences: usize,
    pub max_step_tokens: usize,
    pub speculation: Speculation,
    /// First tokens that a sequence keeps when it drops others at the end of the context, if it does.
    pub context_shift: Option<usize>,
    /// Most rows of logits of a step that only tell the probabilities of prompts.
    told_rows: usize,
    /// Those that have blocks, or had none before their first step; oldest first.
    running: Vec<Sequence>,
    /// Those that have no blocks: they lost them, or there were not enough to start. Oldest first.
    preempted: VecDeque<Sequence>,
    /// Sequences of a step that failed: each runs alone, to find the one at fault.
    suspects: Vec<Suspect>,
    memory_seen: Option<Instant>,
    decode: DecodeFigures,
    media: MediaStore,
    slots: Slots,
    sleep: Sleep,
    asleep: bool,
}

/// How a scheduler works.
pub(super) struct Settings {
    pub end_tokens: Vec<u32>,
    pub context: usize,
    pub max_sequences: usize,
    pub max_step_tokens: usize,
    pub context_shift: Option<usize>,
    pub sleep: Sleep,
}

/// A sequence of a step that failed.
struct Suspect {
    id: u64,
    /// It is none any more when it has computed so many tokens.
    until: usize,
}

/// A sequence's tokens in a step.
#[derive(Clone, Copy)]
struct Chunk {
    id: u64,
    rows: usize,
    /// So many of its last rows are drafts.
    drafts: usize,
}

impl Scheduler {
    pub(super) fn new(
        forward: Box<dyn Forward>,
        pool: BlockPool,
        speculation: Speculation,
        settings: Settings,
    ) -> Self {
        Self {
            told_rows: (TOLD_BYTES / 4 / forward.vocab_size().max(1)).max(1),
            forward,
            pool,
            end_tokens: settings.end_tokens,
            context: settings.context,
            max_sequences: settings.max_sequences,
            max_step_tokens: settings.max_step_tokens,
            speculation,
            context_shift: settings.context_shift,
            running: Vec::new(),
            preempted: VecDeque::new(),
            suspects: Vec::new(),
            memory_seen: None,
            decode: DecodeFigures::default(),
            media: MediaStore::new(),
            slots: Slots::new(settings.max_sequences),
            sleep: settings.sleep,
            asleep: false,
        }
    }

    /// Runs until the engine is stopped or the device lost.
    pub(super) fn run(mut self, shared: &Shared) {
        while self.take_requests(shared) {
            self.drop_cancelled(shared);
            if !self.encode_next(shared) || !self.guess(shared) {
                return;
            }
            let chunks = self.plan(shared);
            if chunks.is_empty() {
                self.publish(shared);
                continue;
            }
            // Before events are sent: whoever sees one finds the figures that go with it.
            self.publish(shared);
            let step = self.step(&chunks);
            let start = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| self.compute(&step)));
            match outcome {
                Ok(Ok(taken)) => {
                    self.speculation.computed(&step, start.elapsed());
                    self.deliver(&chunks, taken, shared);
                }
                Ok(Err(error)) => {
                    let fault = device::diagnose_model(&*self.forward, &error);
                    if let DeviceFault::Lost(reason) = fault {
                        self.end(Failure::DeviceLost(reason), shared);
                        return;
                    }
                    self.suspect(&chunks, fault, shared);
                }
                Err(_) => {
                    let fault = DeviceFault::Other("the model's computation panicked".to_string());
                    self.suspect(&chunks, fault, shared);
                }
            }
            self.publish(shared);
        }
    }

    /// Takes what is new from the queue; waits for it if there is nothing else to do. Gives whether to go on.
    fn take_requests(&mut self, shared: &Shared) -> bool {
        let idle = self.running.is_empty() && self.preempted.is_empty();
        let mut queue = match idle {
            true => shared.wait(self.until_sleep()),
            false => shared.queue(),
        };
        let commands = std::mem::take(&mut queue.commands);
        let waiting = queue.waiting.len();
        let bored = idle && commands.is_empty() && queue.has_nothing();
        let must_wake = self.asleep && waiting > 0 && queue.stop_by.is_none();
        if !commands.is_empty() || bored || must_wake {
            drop(queue);
            for command in commands {
                self.obey(command, shared);
            }
            if bored {
                // That it has nothing to load again from was asked before.
                let _ = self.fall_asleep(shared);
            }
            if must_wake {
                self.wake_for(waiting, shared);
            }
            return true;
        }
        let now = Instant::now();
        if let Some(by) = queue.stop_by {
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            for waiting in waiting {
                refuse(&waiting, Failure::Stopping, shared);
            }
            if now >= by {
                self.fail_all(&Failure::Stopping, shared);
            } else {
                self.fail_unstarted(&Failure::Stopping, shared);
                // Those that lost their blocks come back; nobody else does.
                self.admit(&mut VecDeque::new(), shared);
            }
            let done = self.running.is_empty() && self.preempted.is_empty();
            if done {
                self.publish(shared);
            }
            return !done;
        }
        queue.waiting.retain(|waiting| {
            let cancelled = waiting.events.is_closed();
            let late = waiting.request.deadline.is_some_and(|by| now >= by);
            if cancelled {
                shared.status().requests_cancelled += 1;
            } else if late {
                refuse(waiting, Failure::Timeout(0), shared);
            }
            !cancelled && !late
        });
        self.admit(&mut queue.waiting, shared);
        true
    }

    /// Does what else is asked of it.
    fn obey(&mut self, command: Command, shared: &Shared) {
        // Whoever asked may be gone.
        match command {
            Command::Slots(reply) => {
                let _ = reply.send(Ok(self.slot_status()));
            }
            Command::Slot {
                id,
                namespace,
                action,
                reply,
            } => {
                let done = match self.wake_up(shared) {
                    Ok(()) => self.slot(id, namespace, &action),
                    Err(failure) => Err(failure),
                };
                self.publish(shared);
                let _ = reply.send(done);
            }
            Command::Sleep(reply) => {
                let _ = reply.send(self.fall_asleep(shared));
            }
            Command::Wake(reply) => {
                let _ = reply.send(self.wake_up(shared));
            }
            Command::Tell(listener, reply) => {
                self.pool.tell(listener, self.forward.vocab_size() as u32);
                self.publish(shared);
                let _ = reply.send(Ok(()));
            }
        }
    }

    /// Loads the model again for the first requests that wait, which fail if that fails.
    fn wake_for(&mut self, waiting: usize, shared: &Shared) {
        if let Err(failure) = self.wake_up(shared) {
            let mut queue = shared.queue();
            let count = waiting.min(queue.waiting.len());
            let refused: Vec<Waiting> = queue.waiting.drain(..count).collect();
            drop(queue);
            for waiting in &refused {
                refuse(waiting, failure.clone(), shared);
            }
        }
    }

    /// Starts sequences as long as there are blocks for all that they have so far.
    fn admit(&mut self, waiting: &mut VecDeque<Waiting>, shared: &Shared) {
        let sum = |a: [usize; 2], b: [usize; 2]| [a[0] + b[0], a[1] + b[1]];
        let missing = self.running.iter().map(|s| s.missing(&self.pool));
        let mut promised = missing.fold([0; 2], sum);
        while self.running.len() < self.max_sequences {
            let next = self.preempted.pop_front();
            let (media, slots, running) = (&mut self.media, &self.slots, &self.running);
            let shares = |request: &Request| {
                let mut running = running.iter();
                running.any(|leader| leader.computes_beginning_of(request, self.pool.block_size()))
            };
            // Guesses that read the model's steps find blocks without what they would have read, if these are taken at
            // once.
            let waits =
                self.pool.keeps() && !self.pool.is_recurrent() && !self.speculation.reads_steps();
            let mut new = || {
                // Those that want a slot which is taken let others pass, and those whose beginning is being computed:
                // they have it for nothing a few steps later.
                let may_start =
                    |w: &Waiting| slots.has(w.request.slot) && !(waits && shares(&w.request));
                let first = waiting.iter().position(may_start)?;
                waiting.remove(first).map(|new| Sequence::new(new, media))
            };
            let Some(mut sequence) = next.or_else(&mut new) else {
                return;
            };
            sequence.take_known(&mut self.pool);
            let needed = sum(promised, sequence.missing(&self.pool));
            let windows = self.pool.windows().available();
            let fits = needed[0] <= self.pool.available() && needed[1] <= windows;
            if !fits && !self.running.is_empty() {
                sequence.give_back(&mut self.pool);
                self.preempted.push_front(sequence);
                return;
            }
            promised = needed;
            if !sequence.has_started() {
                let slot = self.slots.start(&sequence);
                sequence.start(slot);
                shared.status().prefix_hit_tokens += sequence.cached() as u64;
            }
            let place = self.running.partition_point(|other| other.id < sequence.id);
            self.running.insert(place, sequence);
        }
    }

    /// Takes out sequences that nobody waits for, and those whose time is over.
    fn drop_cancelled(&mut self, shared: &Shared) {
        let now = Instant::now();
        let (pool, slots) = (&mut self.pool, &mut self.slots);
        let speculation = &mut self.speculation;
        let mut stays = |sequence: &mut Sequence| {
            let cancelled = sequence.is_cancelled();
            if !cancelled && !sequence.is_late(now) {
                return true;
            }
            if sequence.is_answered() {
                sequence.log_event("it is answered, by a stop string");
                count_finished(sequence, shared);
            } else if cancelled {
                sequence.log_event("it is cancelled");
                shared.status().requests_cancelled += 1;
            } else {
                shared.status().requests_failed += 1;
                sequence.fail(Failure::Timeout(sequence.generated()));
            }
            slots.end(sequence);
            sequence.give_back(pool);
            speculation.forget(sequence.id);
            false
        };
        self.running.retain_mut(&mut stays);
        self.preempted.retain_mut(&mut stays);
    }

    fn publish(&mut self, shared: &Shared) {
        let due = self
            .memory_seen
            .is_none_or(|seen| seen.elapsed() >= MEMORY_INTERVAL);
        let memory = due.then(|| device::memory_of_each(&self.forward.devices()));
        if due {
            self.memory_seen = Some(Instant::now());
        }
        self.pool.tell_now();
        let mut status = shared.status();
        status.asleep = self.asleep;
        status.decode = self.decode;
        status.drafts = self.speculation.figures;
        status.weights = self.forward.weight_bytes();
        status.without_graphs = self.forward.without_graphs().map(str::to_string);
        status.running = self.running.len() + self.preempted.len();
        let sequences = self.running.iter().chain(&self.preempted);
        status.adapters_running = adapters_of(sequences.map(|sequence| &*sequence.adapters));
        status.kv_blocks_total = self.pool.total();
        status.kv_blocks_used = self.pool.held();
        status.kv_blocks_cached = self.pool.kept();
        status.kv_window_blocks_used = self.pool.windows().held();
        status.kv_window_blocks_cached = self.pool.windows().kept();
        status.states_used = self.pool.states().held();
        status.states_cached = self.pool.states().kept();
        status.buffers = buffer_memory(self.forward.device());
        if let Some(devices) = memory.filter(|devices| !devices.is_empty()) {
            status.device_bytes_used = Some(devices.iter().map(|device| device.used).sum());
            status.device_bytes_total = Some(devices.iter().map(|device| device.total).sum());
            let several = devices.len() > 1;
            status.devices = if several { devices } else { Vec::new() };
        }
    }
}

/// Takes an answered request into the figures.
fn count_finished(sequence: &Sequence, shared: &Shared) {
    let mut queue = shared.queue();
    queue.mean_time = (queue.mean_time * 7 + sequence.age()) / 8;
    drop(queue);
    shared.status().requests_finished += 1;
}

/// Ends a request that did not start.
fn refuse(waiting: &Waiting, failure: Failure, shared: &Shared) {
    shared.status().requests_failed += 1;
    tracing::debug!(parent: &waiting.request.log, sequence = waiting.id, "it is not begun: {failure}");
    waiting.events.send(Event::Failed(failure));
}
