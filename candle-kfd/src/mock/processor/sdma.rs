//! Packets of the copy engines.
//!
//! Fields are those of Linux' `vega10_sdma_pkt_open.h` (4.4), `sdma_v4_4_2` beside it, `navi10_sdma_pkt_open.h` (5.2),
//! `sdma_v6_0_0_pkt_open.h` and `sdma_v7_0` (as `sdma_v7_0.c` writes them). They are decoded here without the crate's
//! own encoder.

use super::{Halt, Processor};
use crate::mock::{clock, lock};
use std::ops::Range;

/// How packets of a version differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mock) struct Dialect {
    /// Whether there is a packet for caches.
    has_gcr: bool,
    /// Whether a copy may have an eighth word, with bit 28 of its header.
    has_compression: bool,
    /// Bits of a fill's count.
    fill_count: u32,
}

impl Dialect {
    /// Of a GPU by its version as the driver tells it.
    pub fn of(gfx_target_version: u32) -> Self {
        let major = gfx_target_version / 10_000;
        Dialect {
            has_gcr: major >= 10,
            has_compression: major >= 12,
            fill_count: if major >= 11 { 0x3fff_ffff } else { 0x3f_ffff },
        }
    }
}

/// Operations.
mod op {
    pub const NOP: u32 = 0;
    pub const COPY: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const FENCE: u32 = 5;
    pub const TRAP: u32 = 6;
    pub const POLL_REGMEM: u32 = 8;
    pub const ATOMIC: u32 = 10;
    pub const CONST_FILL: u32 = 11;
    pub const TIMESTAMP: u32 = 13;
    pub const GCR: u32 = 17;
}

/// Addition of 64 bits without an answer.
const ATOMIC_ADD64: u32 = 47;
/// Bytes that are copied at once.
const STEP: u64 = 1 << 20;

/// An address in two words.
fn address(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Processor {
    /// Executes the packet at the read pointer, if the doorbell has been rung for it.
    pub(super) fn step_sdma(&self) -> Result<bool, Halt> {
        let settings = &self.settings;
        let read = self.view.load64(settings.read_pointer)?;
        let doorbell = self.doorbell();
        if doorbell == read || !self.runs() {
            return Ok(false);
        }
        if doorbell < read || doorbell - read > settings.ring_bytes || !doorbell.is_multiple_of(4) {
            return self.hang(&format!(
                "rung for byte {doorbell}, having read up to {read}"
            ));
        }
        let written = self.view.load64(settings.write_pointer)?;
        if written < doorbell {
            self.complain(&format!(
                "rung for byte {doorbell}, but the write pointer is {written}"
            ));
        }
        if self.shared.injected.stalls() {
            return self.wait(|| Ok(false)).map(|()| false);
        }
        let words = ((doorbell - read) / 4) as usize;
        let reader = Words {
            processor: self,
            read,
            words,
        };
        let count = match self.execute(&reader) {
            Ok(count) => count,
            Err(Wrong::Halt(halt)) => return Err(halt),
            Err(Wrong::Packet(what)) => return self.hang(&what),
        };
        self.view
            .store64(settings.read_pointer, read + 4 * count as u64)?;
        Ok(true)
    }

    /// Engines stop at a packet that is none, and say nothing to the process.
    fn hang(&self, what: &str) -> Result<bool, Halt> {
        self.complain(what);
        Err(Halt::Stopped)
    }

    /// Executes a packet, and returns how many words it has.
    fn execute(&self, words: &Words<'_>) -> Result<usize, Wrong> {
        let dialect = self.shared.dialects[self.settings.gpu];
        let view = &self.view;
        let header = words.get(0)?;
        let (op, sub) = (header & 0xff, header >> 8 & 0xff);
        let extra = header >> 16;
        if !matches!(op, op::COPY | op::CONST_FILL) {
            lock(&self.under_way).clear();
        }
        let wrong = || {
            Err(Wrong::Packet(format!(
                "a packet with header {header:#010x} is none"
            )))
        };
        match (op, sub) {
            (op::NOP, 0) => {
                let count = 1 + (extra & 0x3fff) as usize;
                words.get(count - 1)?;
                Ok(count)
            }
            (op::COPY, 0) => {
                let compressed = dialect.has_compression && header >> 28 & 1 == 1;
                if extra != 0 && !compressed {
                    return wrong();
                }
                let count = words.get(1)?;
                if count >> 30 != 0 {
                    return Err(Wrong::Packet(format!("a copy's count is {count:#x}")));
                }
                let from = address(words.get(3)?, words.get(4)?);
                let to = address(words.get(5)?, words.get(6)?);
                if compressed {
                    words.get(7)?;
                }
                self.copy(to, from, u64::from(count) + 1)?;
                Ok(if compressed { 8 } else { 7 })
            }
            (op::WRITE, 0) => {
                let to = address(words.get(1)?, words.get(2)?);
                let count = (words.get(3)? & 0xf_ffff) as usize + 1;
                for i in 0..count {
                    view.store32(to + 4 * i as u64, words.get(4 + i)?)?;
                }
                Ok(4 + count)
            }
            (op::FENCE, 0) => {
                let to = address(words.get(1)?, words.get(2)?);
                view.store32(to, words.get(3)?)?;
                Ok(4)
            }
            (op::TRAP, 0) => {
                self.interrupt(words.get(1)? & 0x0fff_ffff);
                Ok(2)
            }
            (op::POLL_REGMEM, 0) => {
                let at = address(words.get(1)?, words.get(2)?);
                let (value, mask) = (words.get(3)?, words.get(4)?);
                words.get(5)?;
                // Without the bit for memory it is a register, or a flush of what the host has written.
                if header >> 31 == 1 {
                    let function = header >> 28 & 7;
                    self.wait(|| Ok(compares(function, view.load32(at)? & mask, value)))?;
                }
                Ok(6)
            }
            (op::ATOMIC, 0) => {
                if header >> 25 != ATOMIC_ADD64 {
                    return wrong();
                }
                let at = address(words.get(1)?, words.get(2)?);
                let value = address(words.get(3)?, words.get(4)?);
                words.get(7)?;
                view.add64(at, value)?;
                Ok(8)
            }
            (op::CONST_FILL, 0) => {
                // By words; others fill by bytes of which nobody here makes use.
                if header >> 30 != 2 {
                    return wrong();
                }
                let to = address(words.get(1)?, words.get(2)?);
                let value = words.get(3)?;
                let count = words.get(4)?;
                if count & !dialect.fill_count != 0 || !to.is_multiple_of(4) {
                    return Err(Wrong::Packet(format!(
                        "a fill's count is {count:#x}, its address {to:#x}"
                    )));
                }
                let bytes = (u64::from(count) / 4 + 1) * 4;
                self.overlap(to..to.saturating_add(bytes), true);
                let pattern: Vec<u8> = value.to_le_bytes().repeat((bytes.min(STEP) / 4) as usize);
                for at in (0..bytes).step_by(STEP as usize) {
                    let part = STEP.min(bytes - at) as usize;
                    view.write(to + at, &pattern[..part])?;
                }
                Ok(5)
            }
            (op::TIMESTAMP, 1 | 2) => {
                let at = address(words.get(1)?, words.get(2)?);
                if !at.is_multiple_of(32) {
                    return Err(Wrong::Packet(format!("a timestamp's address is {at:#x}")));
                }
                view.store64(at, clock::now())?;
                Ok(3)
            }
            (op::GCR, 0 | 1) if dialect.has_gcr => {
                words.get(4)?;
                Ok(5)
            }
            _ => wrong(),
        }
    }

    /// Notes that a copy or fill is under way, and that an earlier one may still be that it depends on: engines have
    /// several at once until a packet that waits.
    fn overlap(&self, range: Range<u64>, writes: bool) {
        let mut under_way = lock(&self.under_way);
        let conflict = (under_way.iter()).any(|(other, written)| {
            (writes || *written) && range.start < other.end && other.start < range.end
        });
        under_way.push((range.clone(), writes));
        drop(under_way);
        if conflict {
            self.complain(&format!(
                "memory at {:#x} is used while a copy before may not be done",
                range.start
            ));
        }
    }

    /// Copies; where a test wants it, with a wrong byte.
    fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), Halt> {
        self.overlap(from..from.saturating_add(bytes), false);
        self.overlap(to..to.saturating_add(bytes), true);
        let wrong = self.shared.injected.spoils();
        let mut buffer = vec![0; bytes.min(STEP) as usize];
        for at in (0..bytes).step_by(STEP as usize) {
            let part = &mut buffer[..STEP.min(bytes - at) as usize];
            self.view.read(from + at, part)?;
            if let Some(wrong) = wrong
                .map(|wrong| wrong % bytes)
                .filter(|wrong| (at..at + STEP).contains(wrong))
            {
                part[(wrong - at) as usize] ^= 0x10;
            }
            self.view.write(to + at, part)?;
        }
        Ok(())
    }
}

/// `SDMA_PKT_POLL_REGMEM_HEADER_FUNC`.
fn compares(function: u32, memory: u32, value: u32) -> bool {
    match function {
        1 => memory < value,
        2 => memory <= value,
        3 => memory == value,
        4 => memory != value,
        5 => memory >= value,
        6 => memory > value,
        _ => true,
    }
}

/// Why a packet is not executed.
enum Wrong {
    Halt(Halt),
    /// It is none; what is said about it.
    Packet(String),
}

impl<E: Into<Halt>> From<E> for Wrong {
    fn from(halt: E) -> Self {
        Wrong::Halt(halt.into())
    }
}

/// The words from the read pointer on.
struct Words<'a> {
    processor: &'a Processor,
    read: u64,
    words: usize,
}

impl Words<'_> {
    /// A word of the ring, if the doorbell was rung for it.
    fn get(&self, index: usize) -> Result<u32, Wrong> {
        if index >= self.words {
            let what = format!(
                "a packet at byte {} ends behind what the doorbell was rung for",
                self.read
            );
            return Err(Wrong::Packet(what));
        }
        let settings = &self.processor.settings;
        let at = (self.read + 4 * index as u64) % settings.ring_bytes;
        Ok(self.processor.view.load32(settings.ring + at)?)
    }
}
