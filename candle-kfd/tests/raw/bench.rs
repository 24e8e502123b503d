//! A GPU with memory for a queue and its tests.

use super::packet::Packet;
use super::{ask, Opened, Reserved, KEEP};
use candle_kfd::driver::{Driver, MappedFile};
use candle_kfd::mock::{Mock, Setup, View};
use candle_kfd::uapi::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

// Where things are in the GPU's addresses.
pub const RING: u64 = 1 << 32;
pub const QUEUE: u64 = 2 << 32;
pub const END_OF_PIPE: u64 = 3 << 32;
pub const SAVE: u64 = 4 << 32;
pub const CODE: u64 = 5 << 32;
pub const DATA: u64 = 6 << 32;
pub const SIGNALS: u64 = 7 << 32;
pub const EVENTS: u64 = 8 << 32;
pub const DATA_BYTES: u64 = 4 << 20;
// Places in `amd_queue_t`.
pub const WRITE_INDEX: u64 = QUEUE + 56;
pub const READ_INDEX: u64 = QUEUE + 128;
/// The signal that a queue tells errors by, and that of the tests' packets.
pub const INACTIVE: u64 = SIGNALS;
pub const DONE: u64 = SIGNALS + 64;
pub const RING_BYTES: u32 = 4096;

/// A GPU with memory for a queue and its tests.
pub struct Bench {
    pub gpu: Opened,
    pub memory: View,
    pub doorbells: Reserved,
    pub model: Vec<(String, u64)>,
}

impl Bench {
    pub fn new(arch: &str) -> Self {
        Self::with(Setup::of(&[arch]))
    }

    pub fn with(mut setup: Setup) -> Self {
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

    pub fn mock(&self) -> &Arc<Mock> {
        &self.gpu.mock
    }

    pub fn property(&self, name: &str) -> u64 {
        self.model.iter().find(|(key, _)| key == name).unwrap().1
    }

    pub fn save_bytes(&self) -> u64 {
        let one = self.property("cwsr_size") + self.property("debug_memory_size");
        (one * self.property("num_xcc")).next_multiple_of(4096)
    }

    pub fn place(&self, address: u64, bytes: u64, kind: u32) {
        let memory = self.gpu.alloc(address, bytes, kind | KEEP).unwrap();
        self.gpu.map(memory.handle, &[self.gpu.id]).unwrap();
    }

    pub fn request(&self, queue_type: u32) -> CreateQueue {
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
    pub fn aql(&self) -> (u32, &AtomicU64) {
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

    pub fn create(&self, queue_type: u32) -> (u32, &AtomicU64) {
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
    pub fn submit(&self, doorbell: &AtomicU64, packet: &Packet) {
        let index = self.memory.add64(WRITE_INDEX, 1).unwrap();
        let at = RING + index % u64::from(RING_BYTES / 64) * 64;
        self.memory.write(at + 4, &packet.0[4..]).unwrap();
        self.memory.store32(at, packet.word(0)).unwrap();
        doorbell.store(index, Ordering::SeqCst);
    }

    /// Puts words into a ring of a copy engine and rings the doorbell.
    pub fn submit_words(&self, doorbell: &AtomicU64, words: &[u32]) {
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

    pub fn done(&self) -> i64 {
        self.memory.load64(DONE + 8).unwrap() as i64
    }

    pub fn read(&self, at: u64) -> u64 {
        self.memory.load64(at).unwrap()
    }

    pub fn event(&self, event_type: u32) -> u32 {
        let event = CreateEvent {
            event_type,
            ..Default::default()
        };
        ask(self.mock(), event).unwrap().event_id
    }

    /// Waits for an event and returns what it tells; none if it has not come by then.
    pub fn wait(&self, event_id: u32, milliseconds: u32) -> Option<EventData> {
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
pub fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The words of a packet with addresses.
pub fn words<const N: usize>(parts: [u64; N]) -> Vec<u32> {
    parts
        .iter()
        .flat_map(|&part| [part as u32, (part >> 32) as u32])
        .collect()
}
