//! The engine from outside, and the queue between it and its thread.

use super::api::{
    AdapterUse, BlockListener, EventSender, Failure, Request, SlotAction, SlotDone, SlotStatus,
    Status, Ticket, MAX_TOP_LOGPROBS,
};
use super::sampling::Breakers;
use crate::tokenizer::Tokenizer;
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A clonable handle on the thread that runs the model. The thread ends with the last handle.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    _last: Arc<StopOnDrop>,
}

/// What requests are checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub vocab_size: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    pub max_waiting: usize,
    pub max_sequences: usize,
    /// Adapters of the model.
    pub adapters: usize,
}

/// Texts and their tokens.
type KnownBreakers = (Arc<[String]>, Arc<Breakers>);

/// What handles and the thread share.
pub(super) struct Shared {
    pub limits: Limits,
    tokenizer: Arc<Tokenizer>,
    /// The last texts that end runs of tokens, and these tokens.
    breakers: Mutex<KnownBreakers>,
    queue: Mutex<Queue>,
    wake: Condvar,
    status: Mutex<Status>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Requests on their way to the thread.
pub(super) struct Queue {
    pub waiting: VecDeque<Waiting>,
    /// No requests come any more; those that run may take until then.
    pub stop_by: Option<Instant>,
    /// What else the thread is to do.
    pub commands: Vec<Command>,
    /// The thread has ended.
    closed: bool,
    /// Moving mean of what a request takes once it runs.
    pub mean_time: Duration,
    next_id: u64,
}

/// Where an answer goes.
pub(super) type Reply<T> = Sender<Result<T, Failure>>;

/// What the thread does between steps.
pub(super) enum Command {
    /// Tells what the slots have.
    Slots(Reply<Vec<SlotStatus>>),
    /// Does something with a slot.
    Slot {
        id: usize,
        namespace: u64,
        action: SlotAction,
        reply: Reply<SlotDone>,
    },
    /// Gives weights and cache back.
    Sleep(Reply<()>),
    /// Loads them again.
    Wake(Reply<()>),
    /// Tells from now on what becomes of the blocks that it keeps for equal beginnings.
    Tell(Box<dyn BlockListener>, Reply<()>),
}

/// A request in the queue.
pub(super) struct Waiting {
    pub id: u64,
    pub request: Request,
    pub events: EventSender,
    pub arrived: Instant,
    /// What ends runs of tokens, for its sampling.
    pub breakers: Arc<Breakers>,
}

/// A panic elsewhere leaves plain figures behind, never a half-made state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(limits: Limits, status: Status, tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            limits,
            tokenizer,
            breakers: Mutex::new((Arc::new([]), Arc::default())),
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                stop_by: None,
                commands: Vec::new(),
                closed: false,
                mean_time: Duration::from_secs(1),
                next_id: 1,
            }),
            wake: Condvar::new(),
            status: Mutex::new(status),
            thread: Mutex::new(None),
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// The queue, once it has requests or commands, the engine is to stop, or the time is over.
    pub(super) fn wait(&self, most: Option<Duration>) -> MutexGuard<'_, Queue> {
        let idle = |queue: &mut Queue| queue.has_nothing();
        let queue = self.queue();
        match most {
            None => (self.wake.wait_while(queue, idle)).unwrap_or_else(PoisonError::into_inner),
            Some(most) => {
                let waited = self.wake.wait_timeout_while(queue, most, idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    /// Nobody hears commands any more.
    fn close(&self) {
        let mut queue = self.queue();
        queue.closed = true;
        queue.commands.clear();
    }

    pub(super) fn status(&self) -> MutexGuard<'_, Status> {
        lock(&self.status)
    }

    fn stop_by(&self, by: Instant) {
        let mut queue = self.queue();
        queue.stop_by = Some(queue.stop_by.map_or(by, |earlier| earlier.min(by)));
        drop(queue);
        self.wake.notify_all();
    }

    fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread.filter(|t| t.thread().id() != std::thread::current().id()) {
            // A panic of the thread was reported by it; its requests see their channels close.
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// Whether there is nothing to do.
    pub(super) fn has_nothing(&self) -> bool {
        self.waiting.is_empty() && self.stop_by.is_none() && self.commands.is_empty()
    }
}

/// Closes the queue at the thread's end, however it ends.
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Engine {
    /// Starts the thread; `run` is its body.
    ///
    /// # Errors
    /// Those of the operating system.
    pub(super) fn spawn(
        shared: Arc<Shared>,
        run: impl FnOnce(&Shared) + Send + 'static,
    ) -> std::io::Result<Self> {
        let inner = shared.clone();
        let thread = std::thread::Builder::new()
            .name("engine".to_string())
            .spawn(move || {
                let _closing = CloseOnDrop(inner.clone());
                run(&inner);
            })?;
        *lock(&shared.thread) = Some(thread);
        Ok(Self {
            _last: Arc::new(StopOnDrop(shared.clone())),
            shared,
        })
    }

    /// Puts a request into the queue.
    ///
    /// # Errors
    /// At once [`Failure::Invalid`], [`Failure::TooLong`], [`Failure::QueueFull`], [`Failure::Stopping`] or
    /// [`Failure::DeviceLost`].
    pub fn submit(&self, request: Request) -> Result<Ticket, Failure> {
        self.check(&request)?;
        let breakers = self.breakers(&request);
        let mut queue = self.shared.queue();
        // Under the queue's lock: the thread empties the queue after it has set this.
        if let Some(reason) = &self.shared.status().lost {
            return Err(Failure::DeviceLost(reason.clone()));
        }
        if queue.stop_by.is_some() {
            return Err(Failure::Stopping);
        }
        if queue.waiting.len() >= self.shared.limits.max_waiting {
            let before = queue.waiting.len();
            queue.waiting.retain(|waiting| !waiting.events.is_closed());
            let waiting = queue.waiting.len();
            self.shared.status().requests_cancelled += (before - waiting) as u64;
            if waiting >= self.shared.limits.max_waiting {
                let rounds = waiting.div_ceil(self.shared.limits.max_sequences) as u32;
                let retry_after = (queue.mean_time * rounds).max(Duration::from_secs(1));
                return Err(Failure::QueueFull {
                    waiting,
                    retry_after,
                });
            }
        }
        let id = queue.next_id;
        queue.next_id += 1;
        let (ticket, events) = Ticket::new(id);
        let waiting = Waiting {
            id,
            request,
            events,
            arrived: Instant::now(),
            breakers,
        };
        let behind = match waiting.request.background {
            true => queue.waiting.len(),
            false => queue
                .waiting
                .partition_point(|other| !other.request.background),
        };
        queue.waiting.insert(behind, waiting);
        drop(queue);
        self.shared.wake.notify_all();
        Ok(ticket)
    }

    /// The tokens that end runs for a request: found anew only where the texts are others than the last request's, as
    /// this looks at the whole vocabulary.
    fn breakers(&self, request: &Request) -> Arc<Breakers> {
        let Some(dry) = &request.sampling.dry else {
            return Arc::default();
        };
        let known = lock(&self.shared.breakers).clone();
        if known.0 == dry.breakers {
            return known.1;
        }
        let breakers = Arc::new(Breakers::new(&dry.breakers, &self.shared.tokenizer));
        *lock(&self.shared.breakers) = (dry.breakers.clone(), breakers.clone());
        breakers
    }

    /// What tells the engine, from any thread, that its model has lost a device or a host that it cannot go on without.
    /// Requests that come from then on are refused with [`Failure::DeviceLost`]; those that run fail with it when their
    /// step does.
    pub fn loser(&self) -> impl FnOnce(&str) + Send + 'static {
        let shared = Arc::downgrade(&self.shared);
        move |reason| {
            if let Some(shared) = shared.upgrade() {
                shared
                    .status()
                    .lost
                    .get_or_insert_with(|| reason.to_string());
            }
        }
    }

    /// What the slots have. Waits for the step that is computed.
    ///
    /// # Errors
    /// [`Failure::Stopping`] or [`Failure::DeviceLost`].
    pub fn slots(&self) -> Result<Vec<SlotStatus>, Failure> {
        self.command(Command::Slots)
    }

    /// Does something with a slot, for requests of a namespace; nothing is computed meanwhile. Waits for it.
    ///
    /// # Errors
    /// [`Failure::Invalid`] for a slot that there is not or that has nothing to save, a file that is damaged or of
    /// another model, a model whose memory cannot be saved, and a cache without room; those of [`Engine::slots`].
    pub fn slot(&self, id: usize, namespace: u64, action: SlotAction) -> Result<SlotDone, Failure> {
        self.command(|reply| Command::Slot {
            id,
            namespace,
            action,
            reply,
        })
    }

    /// Gives weights and cache back until the next request. Known prefixes are lost.
    ///
    /// # Errors
    /// [`Failure::Invalid`] while requests run, or if the model cannot be loaded again; those of [`Engine::slots`].
    pub fn sleep(&self) -> Result<(), Failure> {
        self.command(Command::Sleep)
    }

    /// Loads the model again, if it sleeps.
    ///
    /// # Errors
    /// [`Failure::Internal`] if loading fails; those of [`Engine::slots`].
    pub fn wake_up(&self) -> Result<(), Failure> {
        self.command(Command::Wake)
    }

    /// Tells `listener` from now on what becomes of the blocks that are kept for equal beginnings, with
    /// [`BlockEvent::Cleared`](super::api::BlockEvent::Cleared) first. What is known already is not told: call this
    /// before the first request.
    ///
    /// # Errors
    /// Those of [`Engine::slots`].
    pub fn tell_blocks(&self, listener: Box<dyn BlockListener>) -> Result<(), Failure> {
        self.command(|reply| Command::Tell(listener, reply))
    }

    fn command<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Failure> {
        let (reply, answer) = mpsc::channel();
        let mut queue = self.shared.queue();
        if let Some(reason) = &self.shared.status().lost {
            return Err(Failure::DeviceLost(reason.clone()));
        }
        if queue.stop_by.is_some() || queue.closed {
            return Err(Failure::Stopping);
        }
        queue.commands.push(command(reply));
        drop(queue);
        self.shared.wake.notify_all();
        answer.recv().unwrap_or(Err(Failure::Stopping))
    }

    fn check(&self, request: &Request) -> Result<(), Failure> {
        let Limits {
            vocab_size,
            context,
            ..
        } = self.shared.limits;
        let invalid = |text: String| Err(Failure::Invalid(text));
        if request.prompt.is_empty() {
            return invalid("the prompt is empty".to_string());
        }
        let answer = usize::from(request.max_tokens != Some(0));
        if request.prompt.len() + answer > context {
            return Err(Failure::TooLong {
                prompt: request.prompt.len(),
                context,
            });
        }
        let media = request.media.as_ref();
        if let Some(reason) = media.and_then(|media| media.refuse(request.prompt.len())) {
            return invalid(reason);
        }
        if request.prompt_logprobs.is_some() && media.is_some() {
            return invalid(
                "prompts with pictures or sounds have no probabilities to report".to_string(),
            );
        }
        let bias = request.sampling.logit_bias.keys();
        let unknown = request.prompt.iter().chain(bias);
        if let Some(token) = unknown.into_iter().find(|t| **t as usize >= vocab_size) {
            return invalid(format!(
                "token {token} is unknown; the model has {vocab_size}"
            ));
        }
        let slots = self.shared.limits.max_sequences;
        if let Some(slot) = request.slot.filter(|slot| *slot >= slots) {
            return invalid(format!("there is no slot {slot}, only 0 to {}", slots - 1));
        }
        let tops = request
            .top_logprobs
            .into_iter()
            .chain(request.prompt_logprobs);
        if let Some(top) = tops.max().filter(|top| *top > MAX_TOP_LOGPROBS) {
            return invalid(format!(
                "{top} alternatives for each token; {MAX_TOP_LOGPROBS} are the most"
            ));
        }
        let adapters = self.shared.limits.adapters;
        for (i, wish) in request.adapters.iter().enumerate() {
            if wish.adapter >= adapters {
                return invalid(format!(
                    "there is no adapter {}; the model has {adapters}",
                    wish.adapter
                ));
            }
            let before = &request.adapters[..i];
            if !wish.scale.is_finite() || before.iter().any(|b| b.adapter == wish.adapter) {
                return invalid(format!(
                    "adapter {} needs one scale, a number",
                    wish.adapter
                ));
            }
        }
        request.sampling.validate()
    }

    /// The figures as of the last step.
    pub fn status(&self) -> Status {
        let queue = self.shared.queue();
        let requests = || queue.waiting.iter().map(|waiting| &waiting.request);
        let waiting = queue.waiting.len();
        let waiting_tokens = requests().map(|request| request.prompt.len()).sum();
        let adapters_waiting = adapters_of(requests().map(|request| &*request.adapters));
        drop(queue);
        Status {
            waiting,
            waiting_tokens,
            adapters_waiting,
            ..self.shared.status().clone()
        }
    }

    /// Longest sequence in tokens, prompt and answer together.
    pub fn context(&self) -> usize {
        self.shared.limits.context
    }

    /// Takes no new requests; those that wait fail with [`Failure::Stopping`], those that run finish, or fail with it
    /// after `grace`. Returns when all have ended.
    pub fn stop(&self, grace: Duration) {
        self.shared.stop_by(Instant::now() + grace);
        self.shared.join();
    }
}

/// The adapters that requests use, each once, in order.
pub(super) fn adapters_of<'a>(requests: impl Iterator<Item = &'a [AdapterUse]>) -> Vec<usize> {
    let used: BTreeSet<usize> = requests.flatten().map(|wish| wish.adapter).collect();
    used.into_iter().collect()
}

struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop_by(Instant::now());
        self.0.join();
    }
}
