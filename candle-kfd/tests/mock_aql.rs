//! The mock's compute queues by packets alone: what the hardware does with them, and what it does with wrong ones.

mod raw;

use candle_kfd::driver::{Driver, MappedFile};
use candle_kfd::mock::Mock;
use candle_kfd::uapi::*;
use raw::bench::*;
use raw::packet::Packet;
use raw::{ask, Reserved, KEEP};
use std::time::Duration;

/// Adds its value to the double word of its first argument, once for each thread.
fn register_count(mock: &Mock) {
    mock.kernel("count", |launch| {
        let threads = launch
            .threads
            .iter()
            .map(|&n| u64::from(n))
            .product::<u64>();
        launch
            .memory
            .add64(launch.u64(0), threads * u64::from(launch.u32(8)))?;
        Ok(())
    });
}

#[test]
fn a_kernel_runs_and_its_signal_tells() {
    let bench = Bench::new("gfx1100");
    bench.place(EVENTS, 32768, flags::GTT);
    register_count(bench.mock());
    let (id, doorbell) = bench.aql();
    bench.memory.store64(DATA, DATA + 1024).unwrap();
    bench.memory.store32(DATA + 8, 3).unwrap();
    bench.memory.store64(DONE + 8, 2).unwrap();
    let packet = Packet::dispatch(&bench, 1000);
    // More packets than the ring has slots, some at once.
    for round in 0..50 {
        bench.submit(doorbell, &packet);
        bench.submit(doorbell, &packet);
        until("both have run", || bench.done() == 2 - 2 * (round + 1));
    }
    assert_eq!(bench.read(DATA + 1024), 100 * 3000);
    assert_eq!(bench.read(READ_INDEX), 100);
    let (start, end) = (bench.read(DONE + 32), bench.read(DONE + 40));
    assert!(0 < start && start < end, "{start} {end}");
    assert_eq!(bench.mock().complaints(), [""; 0]);

    // With a mailbox, who waits is woken.
    let event = bench.event(event_type::SIGNAL);
    let map_events = Reserved::new(32768);
    // SAFETY: the reservation is as large.
    unsafe {
        bench
            .mock()
            .map(MappedFile::Kfd, 2 << 62, map_events.0, 32768)
    }
    .unwrap();
    let page = bench.gpu.alloc(9 << 32, 32768, flags::GTT | KEEP).unwrap();
    bench.gpu.map(page.handle, &[bench.gpu.id]).unwrap();
    // The kernel's own page is no GPU's: a mailbox elsewhere says nothing, and the event is not set.
    bench.memory.store64(DONE + 16, 9 << 32).unwrap();
    bench.memory.store32(DONE + 24, event).unwrap();
    bench.submit(doorbell, &packet);
    until("it has run", || bench.done() == -99);
    assert!(bench.wait(event, 20).is_none());
    ask(
        bench.mock(),
        DestroyQueue {
            queue_id: id,
            pad: 0,
        },
    )
    .unwrap();
    assert_eq!(
        ask(
            bench.mock(),
            DestroyQueue {
                queue_id: id,
                pad: 0
            }
        ),
        Err(libc::EINVAL)
    );
}

#[test]
fn interrupts_wake_and_lost_ones_do_not() {
    let bench = Bench::new("gfx1100");
    let page = bench.gpu.alloc(EVENTS, 32768, flags::GTT | KEEP).unwrap();
    bench.gpu.map(page.handle, &[bench.gpu.id]).unwrap();
    let create = CreateEvent {
        event_page_offset: page.handle,
        event_type: event_type::SIGNAL,
        auto_reset: 1,
        ..Default::default()
    };
    let event = ask(bench.mock(), create).unwrap();
    bench
        .memory
        .store64(DONE + 16, EVENTS + 8 * u64::from(event.event_slot_index))
        .unwrap();
    bench.memory.store32(DONE + 24, event.event_id).unwrap();
    let (_, doorbell) = bench.aql();
    let nothing = Packet::new(3 | 1 << 8).with64(56, DONE);
    bench.submit(doorbell, &nothing);
    assert!(bench.wait(event.event_id, 30_000).is_some());
    assert_eq!(bench.done(), -1);
    bench.mock().lose_interrupts(1);
    bench.submit(doorbell, &nothing);
    until("it is done", || bench.done() == -2);
    assert!(bench.wait(event.event_id, 20).is_none());
    // A slot that was written to is found with the next interrupt.
    bench.submit(doorbell, &nothing);
    assert!(bench.wait(event.event_id, 30_000).is_some());
}

#[test]
fn barriers_wait_for_all_or_one() {
    let bench = Bench::new("gfx942");
    let (id, doorbell) = bench.aql();
    let signals = [SIGNALS + 128, SIGNALS + 192];
    let set = |values: [u64; 2]| {
        for (signal, value) in signals.into_iter().zip(values) {
            bench.memory.store64(signal + 8, value).unwrap();
        }
    };
    let barrier = |kind| {
        Packet::new(kind)
            .with64(8, signals[0])
            .with64(24, signals[1])
            .with64(56, DONE)
    };
    set([1, 1]);
    bench.submit(doorbell, &barrier(3));
    std::thread::sleep(Duration::from_millis(5));
    set([0, 1]);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(bench.done(), 0);
    set([0, 0]);
    until("both are 0", || bench.done() == -1);
    set([1, 1]);
    bench.submit(doorbell, &barrier(5));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(bench.done(), -1);
    set([1, 0]);
    until("one is 0", || bench.done() == -2);
    // AMD's own: until the value's lower byte is at least 7.
    let value = Packet::new(2 << 16)
        .with64(8, signals[0])
        .with64(16, 7)
        .with64(24, 0xff)
        .with32(32, 3)
        .with64(56, DONE);
    set([0x106, 1]);
    bench.submit(doorbell, &value);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(bench.done(), -2);
    set([0x107, 1]);
    until("it is 7", || bench.done() == -3);
    // A queue ends while it waits.
    set([1, 1]);
    bench.submit(doorbell, &barrier(3));
    ask(
        bench.mock(),
        DestroyQueue {
            queue_id: id,
            pad: 0,
        },
    )
    .unwrap();
    assert_eq!(bench.mock().complaints(), [""; 0]);
}

#[test]
fn wrong_packets_stop_their_queue() {
    type Change = fn(Packet) -> Packet;
    let cases: [(Change, u64, u32); 11] = [
        (|packet| packet.with32(0, 2), 2, 16),
        (|packet| packet.with32(12, 0), 2, 16),
        (|packet| packet.with32(16, 2), 2, 16),
        (
            |packet| packet.with32(4, 1024 | 1 << 16).with32(8, 2),
            2,
            16,
        ),
        (
            |packet| packet.with32(0, 2 | 3 << 16).with32(4, 1024 | 2 << 16),
            0x40,
            21,
        ),
        (|packet| packet.with64(32, 0), 8, 18),
        (|packet| packet.with32(28, 255), 4, 17),
        (|packet| packet.with32(28, (64 << 10) + 1), 4, 17),
        (|packet| packet.with32(24, 64), 1, 16),
        (|packet| packet.with32(0, 4), 0x20, 20),
        (|packet| packet.with32(0, 7 << 16), 0x100, 23),
    ];
    for (case, (change, bit, code)) in cases.into_iter().enumerate() {
        let bench = Bench::new("gfx1100");
        register_count(bench.mock());
        ask(
            bench.mock(),
            RuntimeEnable {
                mode_mask: RUNTIME_ENABLE_MODE_ENABLE,
                ..Default::default()
            },
        )
        .unwrap();
        let mut payload = 0u64;
        let event = bench.event(event_type::SIGNAL);
        bench
            .memory
            .store64(SAVE + 24, &raw mut payload as u64)
            .unwrap();
        bench.memory.store32(SAVE + 32, event).unwrap();
        bench.memory.store64(DATA, DATA + 1024).unwrap();
        let (_, doorbell) = bench.aql();
        bench.submit(doorbell, &change(Packet::dispatch(&bench, 1000)));
        assert!(bench.wait(event, 30_000).is_some(), "{case}");
        // SAFETY: the queue has stopped, and wrote to it before it set the event.
        assert_eq!(
            unsafe { (&raw const payload).read_volatile() },
            1 << (code - 1),
            "{case}"
        );
        assert_eq!(bench.read(INACTIVE + 8), bit, "{case}");
        assert_eq!((bench.done(), bench.read(READ_INDEX)), (0, 0), "{case}");
    }
}

#[test]
fn kernels_are_swapped_when_told_to() {
    for (barrier, want) in [(0, 12), (1 << 8, 21)] {
        let bench = Bench::new("gfx1100");
        bench.mock().kernel("count", |launch| {
            let digit = u64::from(launch.threads[0] / 64);
            let old = launch.memory.load64(launch.u64(0))?;
            launch.memory.store64(launch.u64(0), old * 10 + digit)
        });
        bench.mock().swap_kernels(true);
        let (_, doorbell) = bench.aql();
        bench.memory.store64(DATA, DATA + 1024).unwrap();
        let packet = |threads| Packet::dispatch(&bench, threads).with32(0, 2 | barrier | 1 << 16);
        bench.mock().ignore_doorbells(true);
        bench.submit(doorbell, &packet(128));
        bench.submit(doorbell, &packet(64));
        bench.mock().ignore_doorbells(false);
        until("both are done", || bench.done() == -2);
        assert_eq!(bench.read(DATA + 1024), want);
        assert_eq!(bench.read(READ_INDEX), 2);
    }
}

#[test]
fn commands_for_caches_are_taken() {
    const ACQUIRE: u32 = 3 << 30 | 6 << 16 | 0x58 << 8;
    const DISPATCH_DIRECT: u32 = 3 << 30 | 3 << 16 | 0x15 << 8;
    for (first, bit) in [(ACQUIRE, 0), (DISPATCH_DIRECT, 0x100)] {
        let bench = Bench::new("gfx1100");
        let (_, doorbell) = bench.aql();
        bench.memory.store32(DATA, first).unwrap();
        let lead = Packet::new(1 << 16)
            .with32(4, 3 << 30 | 2 << 16 | 0x3f << 8)
            .with64(8, DATA)
            .with32(16, 8 | 1 << 23)
            .with32(20, 10)
            .with64(56, DONE);
        bench.submit(doorbell, &lead);
        until("it is taken or refused", || {
            bench.done() == -1 || bench.read(INACTIVE + 8) != 0
        });
        assert_eq!(bench.read(INACTIVE + 8), bit);
        assert_eq!(bench.mock().complaints().is_empty(), bit == 0);
    }
}

#[test]
fn memory_that_a_gpu_was_not_given_is_a_fault() {
    let bench = Bench::new("gfx1100");
    register_count(bench.mock());
    let memory = bench.event(event_type::MEMORY);
    let (_, doorbell) = bench.aql();
    let missing = (99u64 << 32) + 0x1238;
    bench.memory.store64(DATA, missing).unwrap();
    bench.submit(doorbell, &Packet::dispatch(&bench, 64));
    let told = bench.wait(memory, 30_000).unwrap().memory_exception();
    assert_eq!(
        (told.va, told.gpu_id),
        (missing / 4096 * 4096, bench.gpu.id)
    );
    assert_eq!(
        (told.not_present, told.read_only, told.no_execute),
        (1, 0, 0)
    );
    // Nothing is done any more.
    bench.submit(doorbell, &Packet::new(3).with64(56, DONE));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(bench.done(), 0);
}

#[test]
fn code_must_be_where_code_may_be() {
    let bench = Bench::new("gfx1100");
    register_count(bench.mock());
    let memory = bench.event(event_type::MEMORY);
    let (_, doorbell) = bench.aql();
    let packet = Packet::dispatch(&bench, 64);
    let descriptor = u64::from(packet.word(32)) | u64::from(packet.word(36)) << 32;
    let mut file = vec![0; 16 << 10];
    bench.memory.read(CODE, &mut file).unwrap();
    bench.memory.write(DATA, &file).unwrap();
    bench.submit(doorbell, &packet.with64(32, DATA + descriptor - CODE));
    let told = bench.wait(memory, 30_000).unwrap().memory_exception();
    assert_eq!(
        (told.not_present, told.read_only, told.no_execute),
        (0, 0, 1)
    );
}

#[test]
fn a_gpu_that_is_reset_does_nothing_more() {
    let bench = Bench::new("gfx1201");
    let reset = bench.event(event_type::HW_EXCEPTION);
    let (_, doorbell) = bench.aql();
    bench.mock().reset(0);
    let told = bench.wait(reset, 0).unwrap().hw_exception();
    assert_eq!((told.memory_lost, told.gpu_id), (1, bench.gpu.id));
    bench.submit(doorbell, &Packet::new(3).with64(56, DONE));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(bench.done(), 0);
}

#[test]
fn queues_stall_and_doorbells_are_not_taken_when_told_to() {
    let bench = Bench::new("gfx1100");
    let (_, doorbell) = bench.aql();
    let nothing = Packet::new(3).with64(56, DONE);
    bench.mock().ignore_doorbells(true);
    bench.submit(doorbell, &nothing);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(bench.done(), 0);
    bench.mock().ignore_doorbells(false);
    until("it is taken", || bench.done() == -1);
    bench.mock().stall_after(2);
    for _ in 0..3 {
        bench.submit(doorbell, &nothing);
    }
    until("two are done", || bench.done() == -3);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!((bench.done(), bench.read(READ_INDEX)), (-3, 3));
}

#[test]
fn queues_are_checked_as_the_kernel_checks_them() {
    let bench = Bench::new("gfx1100");
    let right = bench.request(queue_type::COMPUTE_AQL);
    let create = |change: &dyn Fn(&mut CreateQueue)| {
        let mut request = right;
        change(&mut request);
        ask(bench.mock(), request).map(|made| made.queue_id)
    };
    bench.place(10 << 32, 8192, flags::GTT);
    type Change = fn(&mut CreateQueue);
    let wrong: [(Change, i32); 17] = [
        (|q| q.gpu_id += 1, libc::EINVAL),
        (|q| q.queue_percentage = 101, libc::EINVAL),
        (|q| q.queue_priority = 16, libc::EINVAL),
        (|q| q.queue_type = 9, 524),
        (|q| q.ring_size = 4096 - 64, libc::EINVAL),
        (|q| q.ring_size = 8192, libc::EINVAL),
        (|q| q.ring_base_address = DATA, libc::EINVAL),
        (|q| q.write_pointer_address = 10 << 32, libc::EINVAL),
        (|q| q.read_pointer_address = 11 << 32, libc::EINVAL),
        (|q| q.read_pointer_address = 1 << 63, libc::EFAULT),
        (|q| q.eop_buffer_size = 8192, libc::EINVAL),
        (|q| q.eop_buffer_address += 4096, libc::EINVAL),
        (|q| q.ctl_stack_size += 4096, libc::EINVAL),
        (|q| q.ctx_save_restore_size -= 4096, libc::EINVAL),
        (|q| q.ctx_save_restore_size += 4096, libc::EINVAL),
        (|q| q.ctx_save_restore_address = 0, libc::EINVAL),
        (|q| q.ctx_save_restore_address += 4096, libc::EINVAL),
    ];
    for (case, (change, errno)) in wrong.into_iter().enumerate() {
        assert_eq!(create(&change), Err(errno), "{case}");
    }
    let id = create(&|_| {}).unwrap();
    assert_eq!(bench.mock().left().queues, 1);
    // What a queue uses stays mapped, and it is halted and goes on.
    let ids = [bench.gpu.id];
    let handle = u64::from(bench.gpu.id) << 32;
    assert_eq!(bench.gpu.unmap(handle, &ids), Err(libc::EBUSY));
    let update = |queue_id, percentage| {
        let update = UpdateQueue {
            ring_base_address: RING,
            queue_id,
            ring_size: RING_BYTES,
            queue_percentage: percentage,
            queue_priority: 7,
        };
        ask(bench.mock(), update).map(drop)
    };
    assert_eq!(update(id + 1, 100), Err(libc::EFAULT));
    assert_eq!(update(id, 101), Err(libc::EINVAL));
    update(id, 0).unwrap();
    update(id, 100).unwrap();
    ask(
        bench.mock(),
        DestroyQueue {
            queue_id: id,
            pad: 0,
        },
    )
    .unwrap();
    bench.gpu.unmap(handle, &ids).unwrap();
}
