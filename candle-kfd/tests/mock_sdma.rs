//! The mock's copy engines by packets alone.

mod raw;

use candle_kfd::uapi::*;
use raw::bench::*;
use raw::{ask, KEEP};
use std::time::Duration;

#[test]
fn copy_engines_have_so_many_queues() {
    let bench = Bench::new("gfx1100");
    let create = |kind, engine| {
        let request = CreateQueue {
            sdma_engine_id: engine,
            ..bench.request(kind)
        };
        ask(bench.mock(), request).map(|made| made.queue_id)
    };
    let no_such_engine = create(queue_type::SDMA_XGMI, 0);
    assert_eq!(no_such_engine, Err(libc::ENOMEM));
    assert_eq!(create(queue_type::SDMA_BY_ENG_ID, 2), Err(libc::EINVAL));
    for id in 0..6 {
        assert_eq!(create(queue_type::SDMA_BY_ENG_ID, 1), Ok(id));
    }
    assert_eq!(create(queue_type::SDMA_BY_ENG_ID, 1), Err(libc::ENOMEM));
    // The other engine has room.
    for id in 6..12 {
        assert_eq!(create(queue_type::SDMA, 0), Ok(id));
    }
    assert_eq!(create(queue_type::SDMA, 0), Err(libc::ENOMEM));
}

#[test]
fn copy_engines_copy_fill_and_tell() {
    for arch in ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201"] {
        let bench = Bench::new(arch);
        let page = bench.gpu.alloc(EVENTS, 32768, flags::GTT | KEEP).unwrap();
        bench.gpu.map(page.handle, &[bench.gpu.id]).unwrap();
        let create = CreateEvent {
            event_page_offset: page.handle,
            event_type: event_type::SIGNAL,
            ..Default::default()
        };
        let event = ask(bench.mock(), create).unwrap().event_id;
        let (_, doorbell) = bench.create(queue_type::SDMA);
        let bytes: Vec<u8> = (0..1_500_000u32)
            .map(|i| (i * 7 + (i >> 8)) as u8)
            .collect();
        bench.memory.write(DATA, &bytes).unwrap();
        let to = DATA + (2 << 20) + 3;
        // Waits until the word at DONE + 8 behind the mask is 5, copies, fills, adds, tells the time, writes and traps.
        let mut ring = vec![8 | 3 << 28 | 1 << 31];
        ring.extend(words([DONE + 8]));
        ring.extend([5, 0xff, 0xfff << 16 | 4]);
        ring.extend([1, bytes.len() as u32 - 1, 0]);
        ring.extend(words([DATA, to]));
        ring.push(11 | 2 << 30);
        ring.extend(words([DATA + (3 << 20) + (1 << 19)]));
        ring.extend([0xdead_beef, 40 - 4]);
        ring.push(10 | 47 << 25);
        ring.extend(words([SIGNALS + 256, u64::MAX, 0]));
        ring.push(0);
        ring.push(13 | 2 << 8);
        ring.extend(words([SIGNALS + 288]));
        if arch.starts_with("gfx1") {
            ring.extend([17 | 1 << 8, 0, 0xc000 << 16, 0, 0]);
        }
        ring.extend([2 << 16, 7, 7]);
        ring.push(5);
        ring.extend(words([EVENTS + 8 * u64::from(event)]));
        ring.extend([event, 6, event]);
        bench.submit_words(doorbell, &ring);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(bench.read(READ_INDEX), 0, "{arch} waits");
        bench.memory.store64(DONE + 8, 0x705).unwrap();
        assert!(bench.wait(event, 30_000).is_some(), "{arch}");
        until("all is read", || {
            bench.read(READ_INDEX) == bench.read(WRITE_INDEX)
        });
        let mut copied = vec![0; bytes.len()];
        bench.memory.read(to, &mut copied).unwrap();
        assert!(copied == bytes, "{arch}");
        let mut filled = [0; 48];
        bench
            .memory
            .read(DATA + (3 << 20) + (1 << 19), &mut filled)
            .unwrap();
        assert_eq!(filled[..40], 0xdead_beefu32.to_le_bytes().repeat(10));
        assert_eq!(filled[40..], [0; 8]);
        assert_eq!(bench.read(SIGNALS + 256) as i64, -1);
        assert!(bench.read(SIGNALS + 288) > 0);
        assert_eq!(bench.mock().complaints(), [""; 0], "{arch}");
    }
}

#[test]
fn copy_engines_wrap_and_stop_at_what_is_no_packet() {
    let bench = Bench::new("gfx90a");
    let (id, doorbell) = bench.create(queue_type::SDMA);
    for round in 1..=600u32 {
        let mut fence = vec![5];
        fence.extend(words([DATA]));
        fence.push(round);
        bench.submit_words(doorbell, &fence);
        if round.is_multiple_of(100) {
            until("all is read", || {
                bench.memory.load32(DATA).unwrap() == round
            });
        }
    }
    until("all is read", || bench.read(READ_INDEX) == 600 * 16);
    assert_eq!(bench.mock().complaints(), [""; 0]);
    // Caches have no packet there.
    bench.submit_words(doorbell, &[17 | 1 << 8, 0, 0, 0, 0]);
    until("it complains", || !bench.mock().complaints().is_empty());
    ask(
        bench.mock(),
        DestroyQueue {
            queue_id: id,
            pad: 0,
        },
    )
    .unwrap();
}

#[test]
fn a_copy_is_spoiled_when_told_to() {
    let bench = Bench::new("gfx942");
    let (_, doorbell) = bench.create(queue_type::SDMA);
    bench.mock().spoil_copy(1, 5000);
    for to in [1, 2, 3] {
        let mut copy = vec![1, 1023, 0];
        copy.extend(words([DATA, DATA + 4096 * to]));
        bench.submit_words(doorbell, &copy);
    }
    until("all is read", || bench.read(READ_INDEX) == 3 * 28);
    let wrong = |to: u64| {
        let mut bytes = [0; 1024];
        bench.memory.read(DATA + 4096 * to, &mut bytes).unwrap();
        bytes.iter().position(|&byte| byte != 0)
    };
    assert_eq!([1, 2, 3].map(wrong), [None, Some(5000 % 1024), None]);
}

#[test]
fn copies_that_depend_on_each_other_wait() {
    for (between, complaints) in [(vec![], 1), (vec![0], 0)] {
        let bench = Bench::new("gfx1100");
        let (_, doorbell) = bench.create(queue_type::SDMA);
        let copy = |from, to| {
            let mut copy = vec![1, 1023, 0];
            copy.extend(words([from, to]));
            copy
        };
        let [first, second] = [
            copy(DATA, DATA + 4096),
            copy(DATA + 4096 + 1000, DATA + 8192),
        ];
        bench.submit_words(doorbell, &[first, between, second].concat());
        until("all is read", || {
            bench.read(READ_INDEX) == bench.read(WRITE_INDEX)
        });
        assert_eq!(bench.mock().complaints().len(), complaints);
    }
}

#[test]
fn a_copy_from_nowhere_is_a_fault() {
    let bench = Bench::new("gfx1100");
    let memory = bench.event(event_type::MEMORY);
    let (_, doorbell) = bench.create(queue_type::SDMA);
    let mut copy = vec![1, 8191, 0];
    copy.extend(words([DATA + DATA_BYTES - 4096, DATA]));
    bench.submit_words(doorbell, &copy);
    let told = bench.wait(memory, 30_000).unwrap().memory_exception();
    assert_eq!((told.va, told.not_present), (DATA + DATA_BYTES, 1));
}
