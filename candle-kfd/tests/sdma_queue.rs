//! Copy queues on the mock: data, order, rings, failures.

use candle_kfd::generation::GENERATIONS;
use candle_kfd::mock::{Mock, Setup};
use candle_kfd::sdma::{Compare, Engine, SdmaQueue};
use candle_kfd::{Displays, Error, Event, Gpu, Kfd, Kind, Memory, Wake, Woken};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

fn gpu(mock: &Arc<Mock>) -> Arc<Gpu> {
    let kfd = Kfd::with(mock.clone()).unwrap();
    kfd.gpu(0, Displays::Refuse).unwrap()
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.host().unwrap().read(0, &mut bytes).unwrap();
    bytes
}

fn numbered(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 256) as u8).collect()
}

#[test]
fn every_generation_copies_to_device_memory_and_back() {
    for generation in GENERATIONS {
        let mock = Mock::new(&[generation.arch]);
        {
            let gpu = gpu(&mock);
            let queue = SdmaQueue::new(&gpu, Engine::Any).unwrap();
            let there = gpu.allocate(20_000, Kind::Vram).unwrap();
            let host = gpu.allocate(20_000, Kind::Gtt).unwrap();
            let sent = numbered(20_000);
            host.host().unwrap().write(0, &sent).unwrap();
            queue
                .copy((&there, 0), (&host, 0), 20_000, TIMEOUT)
                .unwrap();
            queue.fill((&host, 0), 0, 5000, TIMEOUT).unwrap();
            // Odd lengths and places.
            queue.copy((&host, 5), (&there, 7), 1001, TIMEOUT).unwrap();
            let is = bytes(&host);
            assert_eq!(is[5..1006], sent[7..1008], "{}", generation.arch);
            assert!(is[..5].iter().chain(&is[1006..]).all(|&byte| byte == 0));
        }
        assert_eq!(mock.complaints(), [""; 0], "{}", generation.arch);
        assert!(mock.left().is_nothing(), "{:?}", mock.left());
    }
}

#[test]
fn a_small_ring_wraps_many_times_from_many_threads() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = gpu(&mock);
    let queue = SdmaQueue::with_ring(&gpu, Engine::Any, 4096).unwrap();
    let memory = gpu.allocate(64 << 10, Kind::Gtt).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (queue, memory) = (&queue, &memory);
            scope.spawn(move || {
                for i in 0..100u32 {
                    // 57 packets of 20 bytes and what ends them: a few fit into the ring.
                    let mut packets = queue.packets();
                    for part in 0..57 {
                        let at = memory.address() + thread * 16384 + part * 4;
                        packets.fill(at, i, 1);
                    }
                    // SAFETY: the words lie in the memory, which outlives the scope.
                    let ticket = unsafe { queue.submit(&packets) }.unwrap();
                    queue.wait(ticket, TIMEOUT).unwrap();
                    assert!(queue.is_done(ticket).unwrap());
                    let word = memory
                        .host()
                        .unwrap()
                        .word(thread as usize * 16384)
                        .unwrap();
                    assert_eq!(word.load(Ordering::Acquire), i);
                }
            });
        }
    });
    queue.idle(TIMEOUT).unwrap();
    assert_eq!(mock.complaints(), [""; 0]);
}

#[test]
fn a_batch_longer_than_the_ring_is_executed_in_order() {
    let mock = Mock::new(&["gfx942"]);
    let gpu = gpu(&mock);
    let queue = SdmaQueue::with_ring(&gpu, Engine::Any, 4096).unwrap();
    let memory = gpu.allocate(4096, Kind::Uncached).unwrap();
    memory.host().unwrap().fill(0, 4096, 0).unwrap();
    let mut packets = queue.packets();
    for _ in 0..2000 {
        packets.add(memory.address() + 8, 3);
    }
    packets.fence_growing(memory.address() + 16, 0x5_0000_0007);
    packets.timestamp(memory.address() + 32);
    // SAFETY: the words lie in the memory, which outlives the call.
    unsafe { queue.run(&packets, TIMEOUT) }.unwrap();
    let host = memory.host().unwrap();
    assert_eq!(host.long(8).unwrap().load(Ordering::Acquire), 6000);
    assert_eq!(
        host.long(16).unwrap().load(Ordering::Acquire),
        0x5_0000_0007
    );
    assert!(host.long(32).unwrap().load(Ordering::Acquire) > 0);
    assert_eq!(mock.complaints(), [""; 0]);
}

#[test]
fn queues_wait_for_each_others_values() {
    let mock = Mock::new(&["gfx1201"]);
    let gpu = gpu(&mock);
    let [first, second] = [0, 1].map(|_| SdmaQueue::new(&gpu, Engine::Any).unwrap());
    let memory = gpu.allocate(4096, Kind::Uncached).unwrap();
    memory.host().unwrap().fill(0, 4096, 0).unwrap();
    let (value, data) = (memory.address(), memory.address() + 64);
    let mut later = second.packets();
    later
        .poll(value, u32::MAX, Compare::GreaterOrEqual, 2)
        .fill(data, 9, 1);
    // SAFETY: the words lie in the memory, which outlives the queues' work.
    let ticket = unsafe { second.submit(&later) }.unwrap();
    assert!(matches!(
        second.wait(ticket, SHORT),
        Err(Error::SdmaTimeout { .. })
    ));
    assert!(!second.is_done(ticket).unwrap());
    let mut sooner = first.packets();
    sooner.fence(value, 2);
    // SAFETY: likewise.
    unsafe { first.run(&sooner, TIMEOUT) }.unwrap();
    // The wait that ran out has not hurt the queue.
    second.wait(ticket, TIMEOUT).unwrap();
    assert_eq!(
        memory
            .host()
            .unwrap()
            .word(64)
            .unwrap()
            .load(Ordering::Acquire),
        9
    );
}

#[test]
fn what_is_not_within_memory_is_refused() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = gpu(&mock);
    let queue = SdmaQueue::new(&gpu, Engine::Any).unwrap();
    let memory = gpu.allocate(4096, Kind::Gtt).unwrap();
    let other = gpu.allocate(4096, Kind::Gtt).unwrap();
    let copy = |to, from, bytes| queue.copy((&memory, to), (&other, from), bytes, TIMEOUT);
    for (to, from, bytes) in [(1, 0, 4096), (0, 1, 4096), (4097, 0, 0), (u64::MAX, 0, 2)] {
        assert!(matches!(copy(to, from, bytes), Err(Error::Range { .. })));
    }
    assert!(copy(4096, 4096, 0).is_ok());
    let within = queue.copy((&memory, 0), (&memory, 10), 11, TIMEOUT);
    assert_eq!(within, Err(Error::Overlap { bytes: 11 }));
    assert!(queue.copy((&memory, 0), (&memory, 11), 11, TIMEOUT).is_ok());
    let fill = |at, words| queue.fill((&memory, at), 0, words, TIMEOUT);
    assert!(matches!(fill(2, 1), Err(Error::Alignment { .. })));
    assert!(matches!(fill(0, 1025), Err(Error::Range { .. })));
    assert!(matches!(fill(0, u64::MAX), Err(Error::Range { .. })));
    for bytes in [0, 2048, 5000] {
        let ring = SdmaQueue::with_ring(&gpu, Engine::Any, bytes);
        assert_eq!(ring.err(), Some(Error::SdmaRing { bytes }));
    }
}

#[test]
fn an_engine_that_stands_still_ends_in_an_error_and_a_new_queue_works() {
    let mock = Mock::new(&["gfx1100"]);
    {
        let gpu = gpu(&mock);
        let memory = gpu.allocate(4096, Kind::Gtt).unwrap();
        let queue = SdmaQueue::new(&gpu, Engine::Any).unwrap();
        mock.ignore_doorbells(true);
        let stuck = queue.fill((&memory, 0), 7, 4, SHORT);
        assert!(matches!(stuck, Err(Error::SdmaTimeout { .. })), "{stuck:?}");
        mock.ignore_doorbells(false);
        // The queue was taken from the engine: nothing may write to the memory any more.
        let closed = queue.fill((&memory, 0), 7, 4, TIMEOUT);
        assert!(
            matches!(closed, Err(Error::SdmaClosed { .. })),
            "{closed:?}"
        );
        drop(queue);
        let queue = SdmaQueue::new(&gpu, Engine::Any).unwrap();
        queue.fill((&memory, 0), 7, 4, TIMEOUT).unwrap();
        assert_eq!(bytes(&memory)[..4], [7, 0, 0, 0]);
    }
    assert!(mock.left().is_nothing(), "{:?}", mock.left());
}

#[test]
fn a_fault_is_told_as_one() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = gpu(&mock);
    let queue = SdmaQueue::new(&gpu, Engine::Any).unwrap();
    let mut packets = queue.packets();
    packets.fill(0x1234_5000, 1, 1);
    // SAFETY: nothing is at the address, which is the test's point.
    let lost = unsafe { queue.run(&packets, TIMEOUT) };
    match lost {
        Err(Error::Lost { fault, .. }) => {
            assert!(fault.to_string().contains("0x12345000"), "{fault}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_driver_refuses_leaves_nothing_behind() {
    for request in [
        "AMDKFD_IOC_CREATE_QUEUE",
        "AMDKFD_IOC_ALLOC_MEMORY_OF_GPU",
        "mmap",
    ] {
        for nth in 0..3 {
            let mock = Mock::new(&["gfx1100"]);
            {
                let gpu = gpu(&mock);
                mock.fail(request, nth, libc::ENOMEM);
                let queue = SdmaQueue::new(&gpu, Engine::Any);
                if let Ok(queue) = queue {
                    queue.idle(TIMEOUT).unwrap();
                }
            }
            assert!(
                mock.left().is_nothing(),
                "{request} {nth}: {:?}",
                mock.left()
            );
        }
    }
}

#[test]
fn an_engine_ends_a_wait_for_an_event() {
    for arch in ["gfx942", "gfx1100", "gfx1201"] {
        let mock = Mock::new(&[arch]);
        let gpu = gpu(&mock);
        let queue = SdmaQueue::new(&gpu, Engine::Any).unwrap();
        let (event, other) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
        let memory = gpu.allocate(4096, Kind::Uncached).unwrap();
        memory.host().unwrap().fill(0, 4096, 0).unwrap();
        let wait = |event: &Event, timeout| gpu.kfd().wait(&[event], Wake::Any, timeout);
        assert_eq!(wait(&event, SHORT), Ok(Woken::TimedOut));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let woken = wait(&event, TIMEOUT);
                // What came before the interrupt has arrived.
                let word = memory.host().unwrap().word(64).unwrap();
                (woken, word.load(Ordering::Acquire))
            });
            let mut packets = queue.packets();
            // Not before the host says so: the thread sleeps by then.
            packets
                .poll(memory.address(), u32::MAX, Compare::Equal, 1)
                .fence(memory.address() + 64, 7)
                .fence(event.mailbox(), event.id())
                .trap(event.id());
            // SAFETY: the words lie in memory that outlives the queue's work.
            let ticket = unsafe { queue.submit(&packets) }.unwrap();
            std::thread::sleep(SHORT);
            let go = memory.host().unwrap().word(0).unwrap();
            go.store(1, Ordering::Release);
            assert_eq!(sleeper.join().unwrap(), (Ok(Woken::Signalled), 7), "{arch}");
            queue.wait(ticket, TIMEOUT).unwrap();
        });
        // Once, and for that event alone.
        assert_eq!(wait(&event, Duration::ZERO), Ok(Woken::TimedOut));
        assert_eq!(wait(&other, Duration::ZERO), Ok(Woken::TimedOut));
        assert_eq!(mock.complaints(), [""; 0], "{arch}");
    }
}

#[test]
fn a_queue_is_of_the_engine_that_was_chosen() {
    let mock = Mock::new(&["gfx942", "gfx1100"]);
    let kfd = Kfd::with(mock.clone()).unwrap();
    let [large, small] = [0, 1].map(|at| kfd.gpu(at, Displays::Refuse).unwrap());
    let own = large.node().sdma_engines;
    let all = own + large.node().sdma_xgmi_engines;
    assert!(all > own && own > 1);
    let wanted = [1, all - 1, 0, 1];
    let queues = wanted.map(|engine| SdmaQueue::new(&large, Engine::Id(engine)).unwrap());
    assert_eq!(mock.engines(0), wanted);
    let memory = large.allocate(4096, Kind::Gtt).unwrap();
    for (at, queue) in queues.iter().enumerate() {
        queue.fill((&memory, 0), at as u32, 1, TIMEOUT).unwrap();
        assert_eq!(bytes(&memory)[0], at as u8);
    }
    drop(queues);
    let xgmi = SdmaQueue::new(&large, Engine::Xgmi).unwrap();
    assert!(mock.engines(0)[0] >= own);
    drop(xgmi);
    // Those that a GPU does not have, by name, without a request.
    let requests = mock.calls("AMDKFD_IOC_CREATE_QUEUE");
    let engines = small.node().sdma_engines;
    for (gpu, engine, names) in [
        (
            &large,
            Engine::Id(all),
            format!("engine {all}: its engines are 0 to"),
        ),
        (&small, Engine::Id(engines), format!("engine {engines}:")),
        (
            &small,
            Engine::Id(u32::MAX),
            "engine 4294967295".to_string(),
        ),
        (
            &small,
            Engine::Xgmi,
            "engine for xGMI: it has none".to_string(),
        ),
    ] {
        let refused = SdmaQueue::new(gpu, engine).unwrap_err();
        assert!(matches!(refused, Error::NoEngine { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(
            text.contains(&names) && text.contains(&gpu.node().pci_id),
            "{text}"
        );
    }
    assert_eq!(mock.calls("AMDKFD_IOC_CREATE_QUEUE"), requests);
    // An older driver takes no engine's number.
    let old = Mock::with(Setup {
        version: (1, 16),
        ..Setup::of(&["gfx942"])
    });
    let refused = SdmaQueue::new(&self::gpu(&old), Engine::Id(0)).unwrap_err();
    assert!(
        matches!(refused, Error::TooOld { since: (1, 17), .. }),
        "{refused:?}"
    );
}

#[test]
fn an_engine_that_keeps_its_queue_keeps_the_memory() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = gpu(&mock);
    let before = mock.left();
    let queue = SdmaQueue::new(&gpu, Engine::Any).unwrap();
    mock.fail("AMDKFD_IOC_DESTROY_QUEUE", 0, libc::EIO);
    drop(queue);
    let frees = mock.calls("AMDKFD_IOC_FREE_MEMORY_OF_GPU");
    let left = mock.left();
    // The ring and the page of pointers, of which nobody has asked for the return.
    assert_eq!(
        (left.queues, left.allocations),
        (before.queues + 1, before.allocations + 2)
    );
    assert_eq!(gpu.kfd().failed_releases(), 1);
    // Nor is it taken for another.
    let other = SdmaQueue::new(&gpu, Engine::Any).unwrap();
    let memory = gpu.allocate(4096, Kind::Gtt).unwrap();
    other.fill((&memory, 0), 7, 4, TIMEOUT).unwrap();
    drop((other, memory));
    assert_eq!(mock.calls("AMDKFD_IOC_FREE_MEMORY_OF_GPU"), frees + 3);
}

#[test]
fn who_waits_does_not_wait_for_who_wants_room() {
    let mock = Mock::new(&["gfx1100"]);
    let gpu = gpu(&mock);
    let queue = SdmaQueue::with_ring(&gpu, Engine::Any, 4096).unwrap();
    let memory = gpu.allocate(4096, Kind::Uncached).unwrap();
    memory.host().unwrap().fill(0, 4096, 0).unwrap();
    let mut first = queue.packets();
    first.poll(memory.address(), u32::MAX, Compare::Equal, 1);
    // SAFETY: the words lie in the memory, which outlives the queue's work.
    let ticket = unsafe { queue.submit(&first) }.unwrap();
    std::thread::scope(|scope| {
        let much = scope.spawn(|| {
            let mut packets = queue.packets();
            for _ in 0..1000 {
                packets.add(memory.address() + 8, 1);
            }
            // SAFETY: likewise.
            unsafe { queue.run(&packets, TIMEOUT) }
        });
        // The ring is full by then, and the thread has the queue to itself.
        std::thread::sleep(SHORT);
        let waited = queue.wait(ticket, SHORT);
        assert!(
            matches!(waited, Err(Error::SdmaTimeout { .. })),
            "{waited:?}"
        );
        assert_eq!(queue.is_done(ticket), Ok(false));
        let go = memory.host().unwrap().word(0).unwrap();
        go.store(1, Ordering::Release);
        much.join().unwrap().unwrap();
    });
    queue.wait(ticket, TIMEOUT).unwrap();
    let sum = memory.host().unwrap().long(8).unwrap();
    assert_eq!(sum.load(Ordering::Acquire), 1000);
}
