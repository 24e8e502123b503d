//! The mock's queues by packets alone: what the hardware does with them, and what it does with wrong ones.

mod raw;

use candle_kfd::driver::{Driver, MappedFile};
use candle_kfd::mock::{object, Mock, MockKernel, Setup, View};
use candle_kfd::uapi::*;
use raw::{ask, Opened, Reserved, KEEP};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

// Where things are in the GPU's addresses.
const RING: u64 = 1 << 32;
const QUEUE: u64 = 2 << 32;
const END_OF_PIPE: u64 = 3 << 32;
const SAVE: u64 = 4 << 32;
const CODE: u64 = 5 << 32;
const DATA: u64 = 6 << 32;
const SIGNALS: u64 = 7 << 32;
const EVENTS: u64 = 8 << 32;
const DATA_BYTES: u64 = 4 << 20;
// Places in `amd_queue_t`.
const WRITE_INDEX: u64 = QUEUE + 56;
const READ_INDEX: u64 = QUEUE + 128;
/// The signal that a queue tells errors by, and that of the tests' packets.
const INACTIVE: u64 = SIGNALS;
const DONE: u64 = SIGNALS + 64;
const RING_BYTES: u32 = 4096;

/// A GPU with memory for a queue and its tests.
struct Bench {
    gpu: Opened,
    memory: View,
    doorbells: Reserved,
    model: Vec<(String, u64)>,
}

impl Bench {
    fn new(arch: &str) -> Self {
        Self::with(Setup::of(&[arch]))
    }

    fn with(mut setup: Setup) -> Self {
        setup.tells_areas = true;
        let mock = Mock::with(setup);
        let gpu = Opened::new(&mock, 0);
        let path = mock
            .root()
            .join("sys/class/kfd/kfd/topology/nodes/1/properties");
        let lines = std::fs::read_to_string(path).unwrap();
        let model = (lines.lines())
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, value)| (name.to_string(), value.parse().unwrap()))
            .collect();
        let bench = Bench {
            memory: mock.memory(0),
            gpu,
            doorbells: Reserved::new(8192),
            model,
        };
        bench.place(RING, RING_BYTES.into(), flags::GTT);
        bench.place(QUEUE, 4096, flags::GTT);
        bench.place(END_OF_PIPE, 4096, flags::VRAM);
        bench.place(SAVE, bench.save_bytes(), flags::GTT);
        bench.place(CODE, 64 << 10, flags::VRAM | flags::EXECUTABLE);
        bench.place(DATA, DATA_BYTES, flags::VRAM);
        bench.place(SIGNALS, 4096, flags::GTT);
        for signal in [INACTIVE, DONE] {
            // The kind USER.
            bench.memory.store64(signal, 1).unwrap();
        }
        bench
    }

    fn mock(&self) -> &Arc<Mock> {
        &self.gpu.mock
    }

    fn property(&self, name: &str) -> u64 {
        self.model.iter().find(|(key, _)| key == name).unwrap().1
    }

    fn save_bytes(&self) -> u64 {
        let one = self.property("cwsr_size") + self.property("debug_memory_size");
        (one * self.property("num_xcc")).next_multiple_of(4096)
    }

    fn place(&self, address: u64, bytes: u64, kind: u32) {
        let memory = self.gpu.alloc(address, bytes, kind | KEEP).unwrap();
        self.gpu.map(memory.handle, &[self.gpu.id]).unwrap();
    }

    fn request(&self, queue_type: u32) -> CreateQueue {
        CreateQueue {
            ring_base_address: RING,
            write_pointer_address: WRITE_INDEX,
            read_pointer_address: READ_INDEX,
            ring_size: RING_BYTES,
            gpu_id: self.gpu.id,
            queue_type,
            queue_percentage: 100,
            queue_priority: 7,
            eop_buffer_address: END_OF_PIPE,
            eop_buffer_size: 4096,
            ctx_save_restore_address: SAVE,
            ctx_save_restore_size: self.property("cwsr_size") as u32,
            ctl_stack_size: self.property("ctl_stack_size") as u32,
            ..Default::default()
        }
    }

    /// A queue for packets of HSA, and its doorbell.
    fn aql(&self) -> (u32, &AtomicU64) {
        for (at, value) in [
            (QUEUE + 8, RING),
            (READ_INDEX + 8, 128),
            (QUEUE + 192, INACTIVE),
        ] {
            self.memory.store64(at, value).unwrap();
        }
        self.memory.store32(QUEUE + 24, RING_BYTES / 64).unwrap();
        for slot in 0..u64::from(RING_BYTES / 64) {
            self.memory.store32(RING + 64 * slot, 1).unwrap();
        }
        self.create(queue_type::COMPUTE_AQL)
    }

    fn create(&self, queue_type: u32) -> (u32, &AtomicU64) {
        let made = ask(self.mock(), self.request(queue_type)).unwrap();
        let page = made.doorbell_offset & !8191;
        // SAFETY: the reservation is as large.
        unsafe {
            self.mock()
                .map(MappedFile::Kfd, page, self.doorbells.0, 8192)
        }
        .unwrap();
        let doorbell = self.doorbells.0 + (made.doorbell_offset & 8191) as usize;
        // SAFETY: doorbells were mapped there, as long as the reservation lives.
        (made.queue_id, unsafe {
            AtomicU64::from_ptr(doorbell as *mut u64)
        })
    }

    /// Puts a packet into the ring and rings the doorbell.
    fn submit(&self, doorbell: &AtomicU64, packet: &Packet) {
        let index = self.memory.add64(WRITE_INDEX, 1).unwrap();
        let at = RING + index % u64::from(RING_BYTES / 64) * 64;
        self.memory.write(at + 4, &packet.0[4..]).unwrap();
        self.memory.store32(at, packet.word(0)).unwrap();
        doorbell.store(index, Ordering::SeqCst);
    }

    /// Puts words into a ring of a copy engine and rings the doorbell.
    fn submit_words(&self, doorbell: &AtomicU64, words: &[u32]) {
        let start = self.memory.load64(WRITE_INDEX).unwrap();
        for (at, &word) in (start..).step_by(4).zip(words) {
            self.memory
                .store32(RING + at % u64::from(RING_BYTES), word)
                .unwrap();
        }
        let end = start + 4 * words.len() as u64;
        self.memory.store64(WRITE_INDEX, end).unwrap();
        doorbell.store(end, Ordering::SeqCst);
    }

    fn done(&self) -> i64 {
        self.memory.load64(DONE + 8).unwrap() as i64
    }

    fn read(&self, at: u64) -> u64 {
        self.memory.load64(at).unwrap()
    }

    fn event(&self, event_type: u32) -> u32 {
        let event = CreateEvent {
            event_type,
            ..Default::default()
        };
        ask(self.mock(), event).unwrap().event_id
    }

    /// Waits for an event and returns what it tells; none if it has not come by then.
    fn wait(&self, event_id: u32, milliseconds: u32) -> Option<EventData> {
        let mut data = [EventData {
            event_id,
            ..Default::default()
        }];
        let request = WaitEvents {
            events_ptr: data.as_mut_ptr() as u64,
            num_events: 1,
            timeout: milliseconds,
            ..Default::default()
        };
        let answer = ask(self.mock(), request).unwrap();
        (answer.wait_result == wait_result::COMPLETE).then(|| data[0])
    }
}

/// Waits until something is so; a test that waits in vain fails.
fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// A packet of HSA.
#[derive(Clone)]
struct Packet([u8; 64]);

impl Packet {
    fn new(kind: u32) -> Self {
        Packet([0; 64]).with32(0, kind)
    }

    /// Of a kernel with arguments at the beginning of the data: one dimension of blocks of 64.
    fn dispatch(bench: &Bench, threads: u32) -> Self {
        let file = object(
            "gfx1100",
            &[
                MockKernel::new("unused"),
                MockKernel::new("count").buffer().value(4).lds(256),
            ],
        );
        bench.memory.write(CODE, &file).unwrap();
        let read = code_object::CodeObject::parse(&file).unwrap();
        assert_eq!(read.kernels[1].argument_bytes, 12);
        // The second of the objects in `.rodata`, which begins at a multiple of 64 behind the strings.
        let descriptor = (0..file.len() as u64 - 64)
            .step_by(64)
            .filter(|&at| {
                file[at as usize..][8..12] == [12, 0, 0, 0]
                    && file[at as usize..][..4] == [0, 1, 0, 0]
            })
            .next()
            .unwrap();
        Packet::new(2 | 1 << 8 | 1 << 16)
            .with32(4, 64 | 1 << 16)
            .with32(8, 1)
            .with32(12, threads)
            .with32(16, 1)
            .with32(20, 1)
            .with32(28, 1024)
            .with64(32, CODE + descriptor)
            .with64(40, DATA)
            .with64(56, DONE)
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn with32(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn with64(mut self, at: usize, value: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }
}

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

/// Each wrong packet, the bit that tells in the queue's inactive signal, and the driver's number of the exception.
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

/// Kernels are done in another order where they did not ask for one.
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

/// A packet of AMD's own may lead to commands that keep caches in order, and to no others.
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

#[test]
fn copy_engines_have_so_many_queues() {
    let bench = Bench::new("gfx1100");
    let create = |kind| ask(bench.mock(), bench.request(kind)).map(|made| made.queue_id);
    assert_eq!(
        create(queue_type::SDMA_XGMI),
        Err(libc::ENOMEM),
        "no such engine"
    );
    for id in 0..12 {
        assert_eq!(create(queue_type::SDMA), Ok(id));
    }
    assert_eq!(create(queue_type::SDMA), Err(libc::ENOMEM));
}

/// The words of a packet with addresses.
fn words<const N: usize>(parts: [u64; N]) -> Vec<u32> {
    parts
        .iter()
        .flat_map(|&part| [part as u32, (part >> 32) as u32])
        .collect()
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
    for round in 1..=600 {
        let mut fence = vec![5];
        fence.extend(words([DATA]));
        fence.push(round);
        bench.submit_words(doorbell, &fence);
        if round % 100 == 0 {
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

/// A copy from where the one before wrote to wants a packet between them.
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
