//! A process that was forked from one with GPUs: it is refused, and takes nothing from its parent.
#![cfg(target_os = "linux")]

mod common;
mod through;

use candle_kfd::driver::Driver;
use candle_kfd::mock::Mock;
use candle_kfd::sdma::{Engine, SdmaQueue};
use candle_kfd::{
    ComputeQueue, Displays, Error, Event, Gpu, Kfd, Kind, Memory, Signal, Wake, Woken,
};
use common::SOON;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use through::Through;

/// What a process has of a GPU.
struct Parents {
    gpu: Arc<Gpu>,
    memory: Memory,
    queue: ComputeQueue,
    copies: SdmaQueue,
    signal: Signal,
    event: Event,
}

impl Parents {
    fn new(driver: Arc<dyn Driver>) -> Self {
        let kfd = Kfd::with(driver).unwrap();
        let gpu = kfd.gpu(0, Displays::Refuse).unwrap();
        Parents {
            memory: gpu.allocate(4096, Kind::Gtt).unwrap(),
            queue: ComputeQueue::new(&gpu, 64).unwrap(),
            copies: SdmaQueue::new(&gpu, Engine::Any).unwrap(),
            signal: Signal::with_event(&gpu, 1).unwrap(),
            event: Event::new(&gpu).unwrap(),
            gpu,
        }
    }

    /// In the child: the name of the first thing that is not refused, if there is one.
    fn what_is_not_refused(&self) -> Option<&'static str> {
        let Parents { gpu, .. } = self;
        let fill = self.copies.fill((&self.memory, 0), 1, 4, SOON);
        let forked: [(&str, Result<(), Error>); 12] = [
            ("open", gpu.kfd().gpu(0, Displays::Refuse).map(drop)),
            ("memory", gpu.allocate(4096, Kind::Gtt).map(drop)),
            ("event", Event::new(gpu).map(drop)),
            ("set", self.event.set()),
            ("wait", gpu.kfd().wait(&[], Wake::Any, SOON).map(drop)),
            ("queue", ComputeQueue::new(gpu, 64).map(drop)),
            ("barrier", self.queue.barrier(&[], None)),
            ("idle", self.queue.idle(SOON)),
            ("fill", fill),
            ("signal", self.signal.wait(SOON)),
            ("clocks", gpu.clocks().map(drop)),
            ("faults", gpu.check_faults()),
        ];
        (forked.into_iter())
            .find(|(_, outcome)| *outcome != Err(Error::Forked))
            .map(|(what, _)| what)
    }
}

#[test]
fn a_forked_process_is_refused_and_takes_nothing_from_its_parent() {
    let mock = Mock::new(&["gfx1100"]);
    // How often the mock was asked: without a lock, which another thread may have held when the child was made.
    let counter = Arc::new(AtomicUsize::new(0));
    let counted = counter.clone();
    let driver = Through {
        mock: mock.clone(),
        ioctl: move |mock: &Mock, number: u32, argument: &mut [u8]| {
            counted.fetch_add(1, Ordering::SeqCst);
            // SAFETY: the promise of who calls the driver.
            unsafe { mock.ioctl(number, argument) }
        },
    };
    let parents = Parents::new(Arc::new(driver));
    let requests = || counter.load(Ordering::SeqCst);
    let before = requests();
    // SAFETY: the child has this thread alone; it touches nothing that another one may have locked, and never returns.
    match unsafe { libc::fork() } {
        0 => {
            let address = parents.memory.address();
            let wrong = parents.what_is_not_refused().is_some();
            drop(parents);
            // The address is no longer the parent's to give back: whatever the child has there stays.
            // SAFETY: it asks whether a page is mapped.
            let mapped = unsafe { libc::msync(address as *mut libc::c_void, 4096, libc::MS_ASYNC) };
            let status = i32::from(wrong)
                | i32::from(requests() != before) << 1
                | i32::from(mapped != 0) << 2;
            // SAFETY: it ends the child.
            unsafe { libc::_exit(status) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: it waits for the child and writes to `status`.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert!(libc::WIFEXITED(status), "{status}");
            // Not refused, requests to the driver, memory unmapped.
            assert_eq!(libc::WEXITSTATUS(status), 0);
        }
    }
    // The parent goes on.
    parents
        .copies
        .fill((&parents.memory, 0), 7, 4, SOON)
        .unwrap();
    parents.queue.idle(SOON).unwrap();
    parents.event.set().unwrap();
    let woken = (parents.gpu.kfd()).wait(&[&parents.event], Wake::Any, SOON);
    assert_eq!(woken, Ok(Woken::Signalled));
    drop(parents);
    assert!(mock.left().is_nothing(), "{:?}", mock.left());
    // Nor does a new driver mind.
    Kfd::with(Mock::new(&["gfx1100"])).unwrap();
}
