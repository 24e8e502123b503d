//! The OS threads that run a launch: the calling thread, idle helpers that all launches share, and more while blocks
//! wait for something outside of them.
//!
//! The calling thread always runs blocks, in ascending order, and waits for nobody who has not begun: a launch makes
//! progress whatever launches of other devices or streams hold the helpers. What a block may wait for follows from
//! that: for the block of the same number, or a lower one, of launches that other OS threads make on other devices; and
//! for other blocks of its own launch as long as they are resident at once, see [`resident_blocks`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Helpers, at most: each may hold a thousand stacks, and a process has a limited number of mappings.
const MAX_HELPERS: usize = 16;
/// Threads and blocks of a launch that are resident at once, whatever the machine has: a launch whose blocks wait gets
/// as many OS threads as this takes.
const RESIDENT_THREADS: u64 = 2048;
const RESIDENT_BLOCKS: u64 = 32;
/// How often launches are looked at in which no block ends.
const WATCH: Duration = Duration::from_secs(1);

/// Blocks of a launch that run at the same time at least, once they wait.
pub(super) fn resident_blocks(block_threads: u64) -> u64 {
    (RESIDENT_THREADS / block_threads.max(1)).clamp(1, RESIDENT_BLOCKS)
}

/// OS threads that a launch on an idle machine runs on.
pub(super) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        cores.min(MAX_HELPERS)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// What all of a crew run at once.
type Work = *const (dyn Fn() + Sync);

/// Those who run a launch.
pub(super) struct Crew {
    kernel: String,
    state: Mutex<State>,
    left: Condvar,
    /// Blocks that have ended.
    pub ended: AtomicU64,
    /// Whether threads of a block have slept since this was last looked at.
    pub sleeps: AtomicBool,
}

#[derive(Default)]
struct State {
    /// While [`Crew::run`] is under way.
    work: Option<Work>,
    /// Helpers that may still join.
    wanted: usize,
    /// Those who run the work, the calling thread not counted.
    active: usize,
    /// Threads that were started for this launch and have not begun.
    coming: usize,
}

// SAFETY: the work may be called from any thread; the pointer is only followed while `run` keeps it alive.
unsafe impl Send for State {}

impl Crew {
    /// A crew for a launch of this kernel.
    pub fn new(kernel: &str) -> Arc<Crew> {
        Arc::new(Crew {
            kernel: kernel.to_string(),
            state: Mutex::default(),
            left: Condvar::new(),
            ended: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
        })
    }

    /// Runs the work on this thread and on up to `helpers` idle ones, and returns when it has returned everywhere.
    pub fn run(self: &Arc<Self>, helpers: usize, limit: Duration, work: &(dyn Fn() + Sync)) {
        // SAFETY: only the lifetime changes; nobody follows the pointer after the guard below is dropped.
        let shared = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), Work>(work) };
        {
            let mut state = lock(&self.state);
            (state.work, state.wanted) = (Some(shared), helpers);
        }
        let _dismissed = Dismiss(self);
        let hall = hall(limit);
        lock(&hall.crews).push(self.clone());
        if helpers > 0 {
            hall.news.notify_all();
        }
        work();
    }

    /// Takes one more OS thread for this launch, unless it has as many already as blocks of it must be resident.
    pub fn grow(self: &Arc<Self>, resident: u64) {
        {
            let mut state = lock(&self.state);
            if state.work.is_none() || 1 + (state.active + state.coming) as u64 >= resident {
                return;
            }
            state.coming += 1;
        }
        let crew = self.clone();
        let begin = move || {
            lock(&crew.state).coming -= 1;
            crew.join(|_| true);
        };
        let name = "hip-sim-resident".to_string();
        if (std::thread::Builder::new().name(name))
            .spawn(begin)
            .is_err()
        {
            // Without another thread the launch goes on as it is.
            lock(&self.state).coming -= 1;
        }
    }

    /// Takes part in the work, if it is still under way and `wanted` says so.
    fn join(&self, wanted: impl FnOnce(&mut State) -> bool) {
        let work = {
            let mut state = lock(&self.state);
            let Some(work) = state.work else { return };
            if !wanted(&mut state) {
                return;
            }
            state.active += 1;
            work
        };
        // SAFETY: `run` waits until nobody is active any more before the work ends its life.
        unsafe { (*work)() };
        lock(&self.state).active -= 1;
        self.left.notify_all();
    }

    /// Takes part as one of the idle helpers.
    fn help(&self) {
        self.join(|state| {
            let wanted = state.wanted > 0;
            state.wanted = state.wanted.saturating_sub(1);
            wanted
        });
    }

    fn wants(&self) -> bool {
        lock(&self.state).wanted > 0
    }
}

/// Ends a crew's work, however its `run` ends.
struct Dismiss<'a>(&'a Arc<Crew>);

impl Drop for Dismiss<'_> {
    fn drop(&mut self) {
        if let Some(hall) = HALL.get() {
            lock(&hall.crews).retain(|crew| !Arc::ptr_eq(crew, self.0));
        }
        let mut state = lock(&self.0.state);
        (state.work, state.wanted) = (None, 0);
        while state.active > 0 {
            state = (self.0.left.wait(state)).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// Where launches under way and idle helpers find each other.
struct Hall {
    crews: Mutex<Vec<Arc<Crew>>>,
    news: Condvar,
}

static HALL: OnceLock<Hall> = OnceLock::new();

fn hall(limit: Duration) -> &'static Hall {
    static STARTED: OnceLock<()> = OnceLock::new();
    let hall = HALL.get_or_init(|| Hall {
        crews: Mutex::default(),
        news: Condvar::new(),
    });
    STARTED.get_or_init(|| {
        for i in 1..cores() {
            let name = format!("hip-sim-{i}");
            // Without helpers the calling thread does it all.
            let _ = (std::thread::Builder::new().name(name)).spawn(move || help_all(hall));
        }
        let name = "hip-sim-watch".to_string();
        let _ = (std::thread::Builder::new().name(name)).spawn(move || watch(hall, limit));
    });
    hall
}

/// Helps whichever launch wants it, for good.
fn help_all(hall: &Hall) {
    let mut crews = lock(&hall.crews);
    loop {
        match crews.iter().find(|crew| crew.wants()).cloned() {
            Some(crew) => {
                drop(crews);
                crew.help();
                crews = lock(&hall.crews);
            }
            None => crews = (hall.news.wait(crews)).unwrap_or_else(|e| e.into_inner()),
        }
    }
}

/// Ends the process once no block of a launch has ended for the limit although none of them waits in a way that the
/// simulator sees: nothing else can end device code that never comes back. Time in which the process was stopped does
/// not count.
fn watch(hall: &Hall, limit: Duration) {
    let mut seen: Vec<(Arc<Crew>, u64, Duration)> = Vec::new();
    loop {
        std::thread::sleep(WATCH);
        let crews = lock(&hall.crews).clone();
        seen.retain(|(crew, ..)| crews.iter().any(|c| Arc::ptr_eq(c, crew)));
        for crew in crews {
            let ended = crew.ended.load(Ordering::Relaxed);
            let sleeps = crew.sleeps.swap(false, Ordering::Relaxed);
            match seen.iter_mut().find(|(c, ..)| Arc::ptr_eq(c, &crew)) {
                None => seen.push((crew, ended, Duration::ZERO)),
                Some((_, before, idle)) if *before != ended || sleeps => {
                    (*before, *idle) = (ended, Duration::ZERO);
                }
                Some((_, _, idle)) => {
                    *idle += WATCH;
                    if *idle >= limit {
                        eprintln!(
                            "hip-sim: kernel {}: no block has ended for {limit:?} (HIP_SIM_SPIN_LIMIT), and none \
                             sleeps: it spins forever, and the process ends",
                            crew.kernel
                        );
                        std::process::abort();
                    }
                }
            }
        }
    }
}
