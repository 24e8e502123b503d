//! The thread that runs the model: who is computed when.
//!
//! Each step takes the next token of every running sequence, and as many prompt tokens as the step has room for besides. When blocks run out, the youngest sequence
//! gives its own back and is computed anew later, from what the pool then still knows of it.

use super::api::{DecodeFigures, Event, Failure, FinishReason, GeneratedToken};
use super::blocks::BlockPool;
use super::device::{self, DeviceFault};
use super::forward::{DecodeOutput, Forward, SampleParams, Step, StepSequence};
use super::handle::{Shared, Waiting};
use super::sampling;
use super::sequence::Sequence;
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};
use worker::device::buffer_memory;

/// How often device memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the thread.
pub(super) struct Scheduler {
    pub forward: Box<dyn Forward>,
    pub pool: BlockPool,
    pub end_tokens: Vec<u32>,
    pub context: usize,
    pub max_sequences: usize,
    pub max_step_tokens: usize,
    /// Those that have blocks, or had none before their first step; oldest first.
    running: Vec<Sequence>,
    /// Those that have no blocks: they lost them, or there were not enough to start. Oldest first.
    preempted: VecDeque<Sequence>,
    /// Sequences of a step that failed: each runs alone, to find the one at fault.
    suspects: Vec<u64>,
    memory_seen: Option<Instant>,
    decode: DecodeFigures,
}

/// A sequence's tokens in a step.
#[derive(Clone, Copy)]
struct Chunk {
    id: u64,
    rows: usize,
}

impl Scheduler {
    pub(super) fn new(
        forward: Box<dyn Forward>,
        pool: BlockPool,
        end_tokens: Vec<u32>,
        context: usize,
        max_sequences: usize,
        max_step_tokens: usize,
    ) -> Self {
        Self {
            forward,
            pool,
            end_tokens,
            context,
            max_sequences,
            max_step_tokens,
            running: Vec::new(),
            preempted: VecDeque::new(),
            suspects: Vec::new(),
            memory_seen: None,
            decode: DecodeFigures::default(),
        }
    }

    /// Runs until the engine is stopped or the device lost.
    pub(super) fn run(mut self, shared: &Shared) {
        while self.take_requests(shared) {
            self.drop_cancelled(shared);
            let chunks = self.plan(shared);
            if chunks.is_empty() {
                self.publish(shared);
                continue;
            }
            // Before events are sent: whoever sees one finds the figures that go with it.
            self.publish(shared);
            let step = self.step(&chunks);
            let outcome = catch_unwind(AssertUnwindSafe(|| self.compute(&step)));
            match outcome {
                Ok(Ok(chosen)) => self.deliver(&chunks, chosen, shared),
                Ok(Err(error)) => {
                    let fault = device::diagnose(self.forward.device(), error);
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
        let mut queue = if idle { shared.wait() } else { shared.queue() };
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

    /// Starts sequences as long as there are blocks for all that they have so far.
    fn admit(&mut self, waiting: &mut VecDeque<Waiting>, shared: &Shared) {
        let size = self.pool.block_size();
        let missing = |s: &Sequence| s.tokens.len().div_ceil(size) - s.blocks.len();
        let mut promised: usize = self.running.iter().map(missing).sum();
        while self.running.len() < self.max_sequences {
            let next = self.preempted.pop_front();
            let Some(mut sequence) = next.or_else(|| waiting.pop_front().map(Sequence::new)) else {
                return;
            };
            if self.forward.shares_prefixes() {
                sequence.take_known(&mut self.pool);
            }
            let needed = missing(&sequence);
            if promised + needed > self.pool.available() && !self.running.is_empty() {
                sequence.give_back(&mut self.pool);
                self.preempted.push_front(sequence);
                return;
            }
            promised += needed;
            if sequence.start() {
                shared.status().prefix_hit_tokens += sequence.cached() as u64;
            }
            let place = self.running.partition_point(|other| other.id < sequence.id);
            self.running.insert(place, sequence);
        }
    }

    /// Takes out sequences that nobody waits for, and those whose time is over.
    fn drop_cancelled(&mut self, shared: &Shared) {
        let now = Instant::now();
        let pool = &mut self.pool;
        let mut stays = |sequence: &mut Sequence| {
            let cancelled = sequence.is_cancelled();
            if !cancelled && !sequence.is_late(now) {
                return true;
            }
            if sequence.is_answered() {
                count_finished(sequence, shared);
            } else if cancelled {
                shared.status().requests_cancelled += 1;
            } else {
                shared.status().requests_failed += 1;
                sequence.fail(Failure::Timeout(sequence.generated()));
            }
            sequence.give_back(pool);
            false
        };
        self.running.retain_mut(&mut stays);
        self.preempted.retain_mut(&mut stays);
    }

    /// Decides what the next step computes, and takes the blocks for it.
    fn plan(&mut self, shared: &Shared) -> Vec<Chunk> {
        self.suspects
            .retain(|id| self.running.iter().any(|sequence| sequence.id == *id));
        let mut chunks: Vec<Chunk> = Vec::new();
        if let Some(alone) = self.suspects.first().copied() {
            chunks.extend(
                self.running
                    .iter()
                    .filter(|s| s.id == alone)
                    .map(|s| Chunk {
                        id: alone,
                        rows: s.pending().min(self.max_step_tokens),
                    }),
            );
        } else {
            let mut room = self.max_step_tokens;
            let decoding = self.running.iter().filter(|s| s.pending() == 1);
            let reading = self.running.iter().filter(|s| s.pending() > 1);
            for sequence in decoding.chain(reading) {
                let rows = sequence.pending().min(room);
                if rows > 0 && chunks.len() < self.forward.max_sequences() {
                    room -= rows;
                    chunks.push(Chunk {
                        id: sequence.id,
                        rows,
                    });
                }
            }
        }
        // The oldest first: they take blocks from the youngest.
        chunks.sort_by_key(|chunk| chunk.id);
        for chunk in &chunks {
            self.take_blocks(*chunk, shared);
        }
        chunks.retain(|chunk| self.running.iter().any(|s| s.id == chunk.id));
        chunks
    }

    /// Takes a sequence's blocks for its chunk, from the youngest sequences if there are none left.
    fn take_blocks(&mut self, chunk: Chunk, shared: &Shared) {
        while let Some(index) = self.running.iter().position(|s| s.id == chunk.id) {
            let sequence = &mut self.running[index];
            let needed = (sequence.computed + chunk.rows).div_ceil(self.pool.block_size());
            if sequence.blocks.len() >= needed {
                return;
            }
            if let Some(block) = self.pool.take() {
                sequence.blocks.push(block);
            } else if let Some(mut youngest) = self.running.pop() {
                youngest.give_back(&mut self.pool);
                shared.status().preemptions += 1;
                let place = self.preempted.partition_point(|s| s.id < youngest.id);
                self.preempted.insert(place, youngest);
            }
        }
    }

    fn step(&self, chunks: &[Chunk]) -> Step {
        let mut step = Step::default();
        for (sequence, rows) in self.in_chunks(chunks) {
            let keys = sequence.computed + rows;
            step.tokens
                .extend_from_slice(&sequence.tokens[sequence.computed..keys]);
            step.sequences.push(StepSequence {
                id: sequence.id,
                blocks: sequence.blocks.clone(),
                keys,
                rows,
            });
            if keys == sequence.tokens.len() {
                step.outputs.push(step.tokens.len() as u32 - 1);
            }
        }
        step
    }

    fn in_chunks<'a>(
        &'a self,
        chunks: &'a [Chunk],
    ) -> impl Iterator<Item = (&'a Sequence, usize)> + 'a {
        chunks.iter().filter_map(|chunk| {
            let sequence = self.running.iter().find(|s| s.id == chunk.id)?;
            Some((sequence, chunk.rows))
        })
    }

    /// Runs the model and chooses tokens for the sequences that are read to their end: one for each output, in their order.
    fn compute(
        &mut self,
        step: &Step,
    ) -> candle_core::Result<Vec<(u64, Result<GeneratedToken, Failure>)>> {
        let logits = if step.is_decode() {
            match self.decode(step)? {
                DecodeOutput::Logits(logits) => logits,
                DecodeOutput::Tokens(tokens) => {
                    let ids = step.sequences.iter().map(|s| s.id);
                    return Ok(ids.zip(sampling::read(&tokens)?).collect());
                }
            }
        } else {
            self.forward.forward(step)?
        };
        if step.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let ends = |s: &StepSequence, tokens: usize| s.keys == tokens;
        let mut ids = Vec::new();
        let mut requests = Vec::new();
        let mut refused = Vec::new();
        for sequence in &mut self.running {
            let len = sequence.tokens.len();
            let in_step = step.sequences.iter().find(|s| s.id == sequence.id);
            if !in_step.is_some_and(|s| ends(s, len)) {
                continue;
            }
            let row = ids.len();
            ids.push(sequence.id);
            match sequence.sampling_request() {
                Ok(request) => requests.push((row, request)),
                Err(failure) => refused.push((row, failure)),
            }
        }
        let rows: Vec<usize> = requests.iter().map(|(row, _)| *row).collect();
        let requests: Vec<_> = requests.into_iter().map(|(_, request)| request).collect();
        let logits = if rows.len() == ids.len() {
            logits
        } else {
            let rows: Vec<u32> = rows.iter().map(|row| *row as u32).collect();
            let index = candle_core::Tensor::new(rows.as_slice(), logits.device())?;
            logits.index_select(&index, 0)?
        };
        let chosen = if requests.is_empty() {
            Vec::new()
        } else {
            sampling::choose(&logits, &requests)?
        };
        let refused = refused.into_iter().map(|(row, f)| (ids[row], Err(f)));
        Ok(rows
            .iter()
            .map(|row| ids[*row])
            .zip(chosen)
            .chain(refused)
            .collect())
    }

    /// Computes a step of one new token for each sequence, and keeps account of what that takes.
    fn decode(&mut self, step: &Step) -> candle_core::Result<DecodeOutput> {
        let params = |s: &StepSequence| {
            let sequence = self.running.iter().find(|r| r.id == s.id)?;
            sequence.sample_params()
        };
        let samples: Option<Vec<SampleParams>> = step.sequences.iter().map(params).collect();
        let (before, start) = (device::launches(self.forward.device()), Instant::now());
        let decoded = self.forward.decode(step, samples.as_deref())?;
        self.decode.enqueue += start.elapsed();
        self.decode.launches += device::launches(self.forward.device()) - before;
        self.decode.steps += 1;
        self.decode.graphs += u64::from(decoded.graph);
        Ok(decoded.output)
    }

    /// Takes a step's outcome into the sequences.
    fn deliver(
        &mut self,
        chunks: &[Chunk],
        chosen: Vec<(u64, Result<GeneratedToken, Failure>)>,
        shared: &Shared,
    ) {
        self.suspects
            .retain(|id| chunks.iter().all(|chunk| chunk.id != *id));
        let mut prompt_tokens = 0;
        for chunk in chunks {
            if let Some(sequence) = self.running.iter_mut().find(|s| s.id == chunk.id) {
                let read = sequence.prompt.saturating_sub(sequence.computed);
                prompt_tokens += read.min(chunk.rows) as u64;
                sequence.computed += chunk.rows;
                sequence.remember(&mut self.pool);
            }
        }
        shared.status().prompt_tokens += prompt_tokens;
        for (id, token) in chosen {
            let Some(index) = self.running.iter().position(|s| s.id == id) else {
                continue;
            };
            let sequence = &mut self.running[index];
            let outcome = token.and_then(|token| {
                shared.status().generated_tokens += 1;
                sequence.push(token, &self.end_tokens, self.context)
            });
            match outcome {
                Ok(None) => {}
                Ok(Some(reason)) => self.finish(index, reason, shared),
                Err(failure) => self.fail(index, failure, shared),
            }
        }
    }

    fn finish(&mut self, index: usize, reason: FinishReason, shared: &Shared) {
        let mut sequence = self.running.remove(index);
        sequence.give_back(&mut self.pool);
        // Figures first: whoever sees the event sees them, too.
        count_finished(&sequence, shared);
        self.publish(shared);
        sequence.finish(reason);
    }

    fn fail(&mut self, index: usize, failure: Failure, shared: &Shared) {
        let mut sequence = self.running.remove(index);
        sequence.give_back(&mut self.pool);
        shared.status().requests_failed += 1;
        self.publish(shared);
        sequence.fail(failure);
    }

    /// A step failed: a lone sequence is at fault; of several, each has to run alone.
    fn suspect(&mut self, chunks: &[Chunk], fault: DeviceFault, shared: &Shared) {
        if let [chunk] = chunks {
            let failure = match fault {
                DeviceFault::OutOfMemory(text) => Failure::OutOfMemory(text),
                DeviceFault::Lost(text) => Failure::DeviceLost(text),
                DeviceFault::Other(text) => Failure::Internal(text),
            };
            if let Some(index) = self.running.iter().position(|s| s.id == chunk.id) {
                self.fail(index, failure, shared);
            }
            return;
        }
        self.suspects = chunks.iter().map(|chunk| chunk.id).collect();
    }

    /// Ends those that left the queue and found no blocks: for whoever sent them, they wait still.
    fn fail_unstarted(&mut self, failure: &Failure, shared: &Shared) {
        self.preempted.retain(|sequence| {
            if !sequence.has_started() {
                shared.status().requests_failed += 1;
                sequence.fail(failure.clone());
            }
            sequence.has_started()
        });
    }

    fn fail_all(&mut self, failure: &Failure, shared: &Shared) {
        let mut ended: Vec<Sequence> = self.running.drain(..).collect();
        ended.extend(self.preempted.drain(..));
        for sequence in &mut ended {
            sequence.give_back(&mut self.pool);
        }
        shared.status().requests_failed += ended.len() as u64;
        self.publish(shared);
        for sequence in ended {
            sequence.fail(failure.clone());
        }
    }

    /// Ends everything for good.
    fn end(&mut self, failure: Failure, shared: &Shared) {
        if let Failure::DeviceLost(reason) = &failure {
            shared.status().lost = Some(reason.clone());
        }
        let waiting = std::mem::take(&mut shared.queue().waiting);
        for waiting in waiting {
            refuse(&waiting, failure.clone(), shared);
        }
        self.fail_all(&failure, shared);
    }

    fn publish(&mut self, shared: &Shared) {
        let due = self
            .memory_seen
            .is_none_or(|seen| seen.elapsed() >= MEMORY_INTERVAL);
        let memory = due.then(|| device::memory(self.forward.device())).flatten();
        if due {
            self.memory_seen = Some(Instant::now());
        }
        let mut status = shared.status();
        status.decode = self.decode;
        status.running = self.running.len() + self.preempted.len();
        status.kv_blocks_total = self.pool.total();
        status.kv_blocks_used = self.pool.held();
        status.kv_blocks_cached = self.pool.kept();
        status.buffers = buffer_memory(self.forward.device());
        if let Some((free, total)) = memory {
            status.device_bytes_used = Some(total.saturating_sub(free));
            status.device_bytes_total = Some(total);
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
    waiting.events.send(Event::Failed(failure));
}
