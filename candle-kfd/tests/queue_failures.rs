//! What goes wrong on a queue, and what is said of it; nothing waits for ever.

mod common;

use candle_kfd::mock::{object, Mock, MockKernel};
use candle_kfd::{ComputeQueue, Error, Gpu, Kernel, Program, Signal, Timeline};
use common::{launch, open, SOON};
use std::sync::Arc;
use std::time::Duration;

/// Long enough to see that nothing happens.
const SHORT: Duration = Duration::from_millis(30);

fn kernel(gpu: &Arc<Gpu>, name: &str) -> Kernel {
    let file = object("gfx1100", &[MockKernel::new(name)]);
    Program::load(gpu, &file).unwrap().kernel(name).unwrap()
}

#[test]
fn a_kernel_that_fails_is_named() {
    let mock = Mock::new(&["gfx1100"]);
    mock.kernel("sound", |_| Ok(()));
    let gpu = open(&mock);
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    let sound = kernel(&gpu, "sound");
    launch(&queue, &sound, &[]).unwrap();
    // The mock has no such kernel: an illegal instruction.
    let done = Signal::with_event(&gpu, 1).unwrap();
    let broken = kernel(&gpu, "broken");
    launch(&queue, &broken, &[]).unwrap();
    queue.barrier(&[], Some(&done)).unwrap();
    let error = queue.wait(&done, SOON).unwrap_err();
    match &error {
        Error::Queue { kernel, reason, .. } => {
            assert_eq!(kernel.as_deref(), Some("broken"));
            assert!(reason.contains("illegal"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    // From then on the queue says so, and others go on.
    assert_eq!(queue.check(), Err(error.clone()));
    assert_eq!(launch(&queue, &sound, &[]), Err(error.clone()));
    assert_eq!(queue.idle(SOON), Err(error));
    let another = ComputeQueue::new(&gpu, 64).unwrap();
    launch(&another, &sound, &[]).unwrap();
    another.idle(SOON).unwrap();
}

#[test]
fn memory_that_is_not_there_loses_the_gpu() {
    let mock = Mock::new(&["gfx1100"]);
    mock.kernel("wild", |launch| launch.memory.store32(0x1234_5000, 1));
    let gpu = open(&mock);
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    let wild = kernel(&gpu, "wild");
    launch(&queue, &wild, &[]).unwrap();
    let error = queue.idle(SOON).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert!(error.to_string().contains("0x12345000"), "{error}");
    assert!(ComputeQueue::new(&gpu, 64).is_err());
}

#[test]
fn a_doorbell_that_nobody_hears_is_an_error() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = open(&mock);
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    mock.ignore_doorbells(true);
    let stalled = |error: Error, want: u64| match error {
        Error::Stalled { taken, written, .. } => assert_eq!((taken, written), (0, want)),
        other => panic!("{other:?}"),
    };
    stalled(queue.idle(SHORT).unwrap_err(), 1);
    // The ring fills, and whoever comes then waits for as long as was said.
    queue.set_patience(SHORT);
    for _ in 1..64 {
        queue.barrier(&[], None).unwrap();
    }
    stalled(queue.barrier(&[], None).unwrap_err(), 64);
    // Nothing was lost.
    mock.ignore_doorbells(false);
    queue.idle(SOON).unwrap();
    assert_eq!(queue.taken(), Ok(65));
}

#[test]
fn a_queue_that_stops_in_the_middle_is_an_error() {
    let mock = Mock::new(&["gfx1100"]);
    mock.kernel("sound", |_| Ok(()));
    let gpu = open(&mock);
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    let sound = kernel(&gpu, "sound");
    launch(&queue, &sound, &[]).unwrap();
    queue.idle(SOON).unwrap();
    mock.stall_after(2);
    for _ in 0..5 {
        launch(&queue, &sound, &[]).unwrap();
    }
    match queue.idle(Duration::from_millis(200)).unwrap_err() {
        Error::Stalled {
            taken,
            written,
            kernel,
            ..
        } => {
            // Commands, a kernel, a barrier, and two more kernels.
            assert_eq!((taken, written), (5, 9));
            assert_eq!(kernel.as_deref(), Some("sound"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_interrupt_costs_a_moment_only() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = open(&mock);
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    mock.lose_interrupts(1000);
    for _ in 0..3 {
        let go = Signal::new(&gpu, 1).unwrap();
        let done = Signal::with_event(&gpu, 1).unwrap();
        queue.barrier(&[&go], Some(&done)).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| done.wait(SOON));
            // So that it sleeps already.
            std::thread::sleep(Duration::from_millis(5));
            go.store(0);
            waiter.join().unwrap().unwrap();
        });
        queue.idle(SOON).unwrap();
    }
}

#[test]
fn a_signal_that_never_comes_ends_by_the_timeout() {
    let mock = Mock::new(&["gfx1100"]);
    {
        let gpu = open(&mock);
        let polled = Signal::new(&gpu, 7).unwrap();
        let woken = Signal::with_event(&gpu, 7).unwrap();
        for signal in [&polled, &woken] {
            let error = signal.wait_below(7, SHORT).unwrap_err();
            assert_eq!(
                error,
                Error::Timeout {
                    what: "a signal",
                    after: SHORT
                }
            );
            assert_eq!(signal.wait_below(8, Duration::ZERO), Ok(7));
            signal.store(-3);
            assert_eq!((signal.load(), signal.wait_below(0, SHORT)), (-3, Ok(-3)));
        }
    }
    assert!(mock.left().is_nothing(), "{:?}", mock.left());
}

#[test]
fn timelines_move_on_with_every_completion() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = open(&mock);
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    let timeline = Timeline::new(&gpu).unwrap();
    assert_eq!(
        (timeline.value(), timeline.wait_for(0, Duration::ZERO)),
        (0, Ok(0))
    );
    for _ in 0..100 {
        queue.barrier(&[], Some(timeline.signal())).unwrap();
    }
    assert!(timeline.wait_for(40, SOON).unwrap() >= 40);
    assert_eq!(timeline.wait_for(100, SOON), Ok(100));
    assert!(matches!(
        timeline.wait_for(101, SHORT),
        Err(Error::Timeout {
            what: "a timeline",
            ..
        })
    ));
    // What an SDMA queue compares: the lower word is no larger than the reference once the value is there.
    let low = timeline.signal().load() as u32;
    assert!(low <= timeline.reference(100).unwrap() && low > timeline.reference(101).unwrap());
    assert!(timeline.reference(u64::from(u32::MAX)).is_err());
}

#[test]
fn a_full_chunk_of_arguments_is_closed_once_however_often_room_is_asked_for() {
    /// Where the second argument is, which begins at a multiple of 16.
    const VALUE: usize = 16;
    let mock = Mock::new(&["gfx1100"]);
    mock.kernel("many", |launch| {
        launch.memory.store32(launch.u64(0), launch.u32(VALUE))
    });
    let gpu = open(&mock);
    let memory = gpu.allocate(4096, candle_kfd::Kind::Gtt).unwrap();
    let queue = ComputeQueue::new(&gpu, 64).unwrap();
    queue.set_patience(SHORT);
    // Four launches to a chunk of 64 KiB.
    let large = MockKernel::new("many").buffer().value(16 * 1024 - 16);
    let file = object("gfx1100", &[large]);
    let program = Program::load(&gpu, &file).unwrap();
    let many = program.kernel("many").unwrap();
    let mut arguments = vec![0; 16 * 1024];
    arguments[..8].copy_from_slice(&memory.address().to_le_bytes());
    mock.ignore_doorbells(true);
    let mut launched = 0u32;
    let mut next = || {
        arguments[VALUE..VALUE + 4].copy_from_slice(&launched.to_le_bytes());
        launch(&queue, &many, &arguments).map(|()| launched += 1)
    };
    while next().is_ok() {}
    let written = queue.written().unwrap();
    for _ in 0..2 {
        let stalled = next().unwrap_err();
        assert!(matches!(stalled, Error::Stalled { .. }), "{stalled:?}");
        assert_eq!(queue.written(), Ok(written));
    }
    mock.ignore_doorbells(false);
    queue.idle(SOON).unwrap();
    queue.set_patience(SOON);
    for _ in 0..20 {
        next().unwrap();
    }
    queue.idle(SOON).unwrap();
    // Sixteen before nothing went on.
    assert_eq!(launched, 36);
    let last = memory.host().unwrap().word(0).unwrap();
    assert_eq!(last.load(std::sync::atomic::Ordering::Acquire), 35);
}
