//! Watches over the ranks of a group: who works, who waits for whom, and who stands still.
//!
//! Ranks leave marks: at each block of a prompt, at each piece of a step, wherever they wait. While a command is under way
//! and no rank leaves one for [`LIMIT`], the first rank that waits for no other has failed, unless it is seen to work: its
//! thread takes processor time, or waits for a process of its own, as the first use of a kernel does that is compiled.

use super::failure::Failed;
use candle_core::Result;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long no rank leaves a mark until one has failed.
pub const LIMIT: Duration = Duration::from_secs(4);
/// The same while one is seen to work.
const WORKING_LIMIT: Duration = Duration::from_secs(600);
/// How often the watch looks.
const LOOK: Duration = Duration::from_millis(100);
/// The least part of the time that a thread has a processor for, if it works.
const WORKING_PART: f64 = 0.1;

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nothing.
    Idle,
    /// It computes, or enqueues.
    Host,
    /// It waits for its device.
    Device,
    /// It waits for another rank.
    Other,
    /// It waits for a rank of another process, whose own watch sees whether that gets on.
    Elsewhere,
}

impl State {
    fn from(number: u8) -> Self {
        match number {
            1 => Self::Host,
            2 => Self::Device,
            3 => Self::Other,
            4 => Self::Elsewhere,
            _ => Self::Idle,
        }
    }
}

/// A rank's marks.
#[derive(Debug)]
pub struct Mark {
    name: String,
    /// It computes on the CPU, by threads of the whole process.
    on_cpu: bool,
    state: AtomicU8,
    count: AtomicU64,
    /// The system's number of its thread, 0 if that is not known.
    thread: AtomicU32,
}

/// Puts a rank back into the state of before.
pub struct Entered<'a> {
    mark: &'a Mark,
    before: State,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.mark.put(self.before);
    }
}

impl Mark {
    /// Takes note that the rank gets on.
    pub fn go_on(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes note of what the rank does until the result is dropped.
    pub fn enter(&self, state: State) -> Entered<'_> {
        let before = self.state();
        self.put(state);
        Entered { mark: self, before }
    }

    /// Takes note that the rank has something to do, which it may not have begun.
    pub fn is_told(&self) {
        self.put(State::Host);
    }

    /// Takes note that the rank works, and of its end once the result is dropped.
    pub fn begin(&self) -> Entered<'_> {
        self.put(State::Host);
        let before = State::Idle;
        Entered { mark: self, before }
    }

    /// Takes note of the thread that the rank works in: this one.
    pub fn is_here(&self) {
        let number = std::fs::read_link("/proc/thread-self").ok();
        let number = number.and_then(|path| path.file_name()?.to_str()?.parse().ok());
        self.thread.store(number.unwrap_or(0), Ordering::Relaxed);
    }

    fn state(&self) -> State {
        State::from(self.state.load(Ordering::Relaxed))
    }

    fn put(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
        self.go_on();
    }

    /// Seconds that its thread, or all of a process that computes on the CPU, has had a processor for.
    fn processor_seconds(&self) -> f64 {
        let thread = self.thread.load(Ordering::Relaxed);
        let path = match self.on_cpu || thread == 0 {
            true => "/proc/self/stat".to_string(),
            false => format!("/proc/self/task/{thread}/stat"),
        };
        processor_seconds(Path::new(&path)).unwrap_or(0.0)
    }
}

/// Whether a thread of this process has started another one that runs: a compiler, perhaps in a thread beside the rank's.
fn has_process() -> bool {
    let Ok(mut tasks) = std::fs::read_dir("/proc/self/task") else {
        return false;
    };
    tasks.any(|task| {
        let children = task.and_then(|task| std::fs::read_to_string(task.path().join("children")));
        children.is_ok_and(|children| !children.trim().is_empty())
    })
}

/// What a `stat` file of /proc says of a thread or a process, in seconds.
fn processor_seconds(path: &Path) -> Option<f64> {
    /// Linux gives these times in hundredths of a second, whatever the kernel counts in.
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(path).ok()?;
    // The name stands in brackets and may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some((next()? + next()?) / TICKS)
}

/// Ends what other ranks may wait in.
type Abort = Box<dyn Fn(&str) + Send + Sync>;

/// The watch over a group.
pub struct Watch {
    marks: Vec<Mark>,
    limit: Duration,
    failure: Mutex<Option<Failed>>,
    has_failed: AtomicBool,
    aborts: Mutex<Vec<Abort>>,
    /// Commands that are under way, and whether the group is gone.
    under_way: Mutex<(usize, bool)>,
    changed: Condvar,
}

/// A command that is under way until this is dropped.
pub struct UnderWay<'a>(&'a Watch);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        lock(&self.0.under_way).0 -= 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Over ranks of these names, of which it is known whether they compute on the CPU.
    pub fn new(ranks: impl IntoIterator<Item = (String, bool)>, limit: Duration) -> Arc<Self> {
        let mark = |(name, on_cpu)| Mark {
            name,
            on_cpu,
            state: AtomicU8::new(State::Idle as u8),
            count: AtomicU64::new(0),
            thread: AtomicU32::new(0),
        };
        Arc::new(Self {
            marks: ranks.into_iter().map(mark).collect(),
            limit,
            failure: Mutex::default(),
            has_failed: AtomicBool::new(false),
            aborts: Mutex::default(),
            under_way: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// A rank's marks.
    pub fn mark(&self, rank: usize) -> &Mark {
        &self.marks[rank]
    }

    /// Has `abort` called with the reason if the group ends: it wakes ranks that wait for others.
    pub fn on_failure(&self, abort: impl Fn(&str) + Send + Sync + 'static) {
        lock(&self.aborts).push(Box::new(abort));
    }

    /// Ends the group: this rank is at fault. Only the first one counts.
    pub fn fail(&self, rank: usize, reason: &str) {
        let failed = Failed::Group {
            rank: self.marks[rank].name.clone(),
            reason: reason.to_string(),
        };
        {
            let mut failure = lock(&self.failure);
            if failure.is_some() {
                return;
            }
            tracing::error!("{failed}");
            *failure = Some(failed.clone());
            self.has_failed.store(true, Ordering::Release);
        }
        let text = failed.to_string();
        lock(&self.aborts).iter().for_each(|abort| abort(&text));
    }

    /// Why the group has ended.
    pub fn failure(&self) -> Option<Failed> {
        match self.has_failed.load(Ordering::Acquire) {
            true => lock(&self.failure).clone(),
            false => None,
        }
    }

    /// Refuses to go on in a group that has ended.
    ///
    /// # Errors
    /// [`Failed::Group`].
    pub fn check(&self) -> Result<()> {
        self.failure().map_or(Ok(()), |failed| Err(failed.into()))
    }

    /// Watches from now on, until the result is dropped.
    pub fn begin(&self) -> UnderWay<'_> {
        lock(&self.under_way).0 += 1;
        self.changed.notify_all();
        UnderWay(self)
    }

    /// Starts the thread that looks; it ends with [`Watch::end`].
    ///
    /// # Errors
    /// The system's.
    pub fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let watch = self.clone();
        let builder = std::thread::Builder::new().name("group-watch".to_string());
        builder.spawn(move || watch.run())
    }

    /// Ends the thread that looks.
    pub fn end(&self) {
        lock(&self.under_way).1 = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut seen = Seen::of(self);
        loop {
            let under_way = lock(&self.under_way);
            let idle = under_way.0 == 0;
            let rests = |(count, ended): &mut (usize, bool)| *count == 0 && !*ended;
            let under_way = self.changed.wait_while(under_way, rests);
            let under_way = under_way.unwrap_or_else(PoisonError::into_inner);
            if under_way.1 {
                return;
            }
            if idle {
                seen = Seen::of(self);
            }
            let looked = self.changed.wait_timeout(under_way, LOOK);
            drop(looked);
            self.look(&mut seen);
        }
    }

    /// Fails the rank that stands still, if one does.
    fn look(&self, seen: &mut Seen) {
        let stands = seen.since.elapsed();
        if self.counts() != seen.counts || self.failure().is_some() {
            *seen = Seen::of(self);
            return;
        }
        if stands < LOOK {
            return;
        }
        // Those that wait for another one are not at fault; if all do, one has forgotten another.
        let mut states = self.marks.iter().map(Mark::state);
        let found = states
            .position(|state| matches!(state, State::Host | State::Device))
            .or_else(|| {
                let mut states = self.marks.iter().map(Mark::state);
                match states.any(|state| state == State::Elsewhere) {
                    true => None,
                    false => self.marks.iter().position(|m| m.state() != State::Idle),
                }
            });
        let Some(rank) = found else { return };
        let mark = &self.marks[rank];
        if mark.state() == State::Host && seen.sees_work(mark, rank) {
            seen.worked = Instant::now();
        }
        let rests = seen.worked.elapsed() >= self.limit;
        if !rests && stands < WORKING_LIMIT.max(self.limit) {
            return;
        }
        let what = match mark.state() {
            State::Device => "its device does not get on",
            State::Other => "it waits for a rank that does not know of it",
            State::Host | State::Idle | State::Elsewhere => "it does not get on",
        };
        self.fail(rank, &format!("{what} for {:.1} s", stands.as_secs_f64()));
    }

    fn counts(&self) -> Vec<u64> {
        let counts = self.marks.iter();
        counts
            .map(|mark| mark.count.load(Ordering::Relaxed))
            .collect()
    }
}

/// What was seen when marks came last.
struct Seen {
    since: Instant,
    counts: Vec<u64>,
    /// When somebody looked last, and the processor times of then.
    looked: Instant,
    seconds: Vec<f64>,
    /// When a rank was seen to work last.
    worked: Instant,
}

impl Seen {
    fn of(watch: &Watch) -> Self {
        let now = Instant::now();
        Self {
            since: now,
            counts: watch.counts(),
            looked: now,
            seconds: watch.marks.iter().map(Mark::processor_seconds).collect(),
            worked: now,
        }
    }

    /// Whether a rank has worked since somebody looked last.
    fn sees_work(&mut self, mark: &Mark, rank: usize) -> bool {
        let (before, since) = (self.seconds[rank], self.looked.elapsed());
        self.seconds[rank] = mark.processor_seconds();
        self.looked = Instant::now();
        let had = self.seconds[rank] - before;
        had >= WORKING_PART * since.as_secs_f64() || has_process()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(limit: Duration) -> Arc<Watch> {
        let ranks = ["rank 0", "rank 1"].map(|name| (name.to_string(), false));
        Watch::new(ranks, limit)
    }

    /// One that has seen nothing for so long.
    fn long_ago(watch: &Watch, seconds: u64) -> Seen {
        let then = Instant::now() - Duration::from_secs(seconds);
        Seen {
            since: then,
            looked: then,
            worked: then,
            ..Seen::of(watch)
        }
    }

    #[test]
    fn the_rank_that_waits_for_nobody_is_at_fault() {
        let watch = watch(LIMIT);
        let _waits = watch.mark(0).enter(State::Other);
        let _hangs = watch.mark(1).enter(State::Device);
        watch.look(&mut long_ago(&watch, 3));
        assert_eq!(watch.failure(), None);
        watch.on_failure(|reason| assert!(reason.contains("rank 1"), "{reason}"));
        watch.look(&mut long_ago(&watch, 5));
        let Some(Failed::Group { rank, reason }) = watch.failure() else {
            panic!("nobody is at fault")
        };
        assert_eq!(rank, "rank 1");
        assert!(reason.contains("device"), "{reason}");
        assert!(watch.check().is_err());
    }

    #[test]
    fn marks_and_processor_time_show_that_a_rank_works() {
        let watch = watch(LIMIT);
        let _works = watch.mark(0).enter(State::Host);
        let mut seen = long_ago(&watch, 5);
        watch.mark(0).go_on();
        watch.look(&mut seen);
        assert_eq!(watch.failure(), None);
        // As if its thread had had a processor meanwhile.
        let mut seen = long_ago(&watch, 5);
        seen.seconds[0] -= 2.0;
        watch.look(&mut seen);
        assert_eq!(watch.failure(), None);
        watch.look(&mut Seen {
            since: Instant::now() - WORKING_LIMIT,
            ..seen
        });
        assert!(watch.failure().is_some());
    }

    #[test]
    fn threads_have_times_and_processes() {
        let watch = watch(LIMIT);
        let mark = watch.mark(0);
        mark.is_here();
        let before = mark.processor_seconds();
        let start = Instant::now();
        let mut sum = 0u64;
        while mark.processor_seconds() == before && start.elapsed() < Duration::from_secs(60) {
            sum = (0..100_000).fold(sum, u64::wrapping_add);
        }
        assert!(mark.processor_seconds() > before, "{sum}");
    }
}
