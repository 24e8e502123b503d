//! Packets, as words.
//!
//! Sources: Linux's `vega10_sdma_pkt_open.h`, `navi10_sdma_pkt_open.h` and `sdma_v6_0_0_pkt_open.h` for fields, its
//! `sdma_v4_4_2.c` to `sdma_v7_0.c` for how they are used; ROCr's `amd_blit_sdma.cpp` and `sdma_registers.h` for what a
//! user's queue needs of caches and host memory.

use crate::generation::SdmaVersion;

/// Bytes of a copy's packet at most, a multiple of what engines align to. Engines count to 2^30; smaller pieces let one
/// turn to its other queues, and AMD's emulator counts 26 bits.
pub const COPY_BYTES: u64 = (1 << 26) - 32;
/// Bytes of a fill's packet at most: ROCr's, for a count of 22 bits.
pub const FILL_BYTES: u64 = (1 << 22) - 32;
/// What the address of a timestamp is a multiple of.
pub const TIMESTAMP_ALIGNMENT: u64 = 32;

/// `SDMA_OP_…`.
mod op {
    pub const NOP: u32 = 0;
    pub const COPY: u32 = 1;
    pub const FENCE: u32 = 5;
    pub const TRAP: u32 = 6;
    pub const POLL_REGMEM: u32 = 8;
    pub const ATOMIC: u32 = 10;
    pub const CONST_FILL: u32 = 11;
    pub const TIMESTAMP: u32 = 13;
    pub const GCR: u32 = 17;
}

/// `SDMA_SUBOP_TIMESTAMP_GET_GLOBAL`.
const TIMESTAMP_GET_GLOBAL: u32 = 2;
/// `SDMA_SUBOP_USER_GCR`: the form of the packet that a user's queue may have.
const USER_GCR: u32 = 1;
/// `SDMA_ATOMIC_ADD64`: no value is returned.
const ATOMIC_ADD64: u32 = 47;
/// A fill by words of 32 bits.
const FILL_WORDS: u32 = 2;
/// `SDMA_PKT_POLL_REGMEM_DW5`: retried for ever, in intervals of 4.
const POLL_FOR_EVER: u32 = 0xfff << 16 | 4;
/// Controls of a GCR packet: write back and invalidate before a copy, write back after it.
mod gcr {
    const GLK_WB: u32 = 1 << 6;
    const GLK_INV: u32 = 1 << 7;
    const GLV_INV: u32 = 1 << 8;
    const GL1_INV: u32 = 1 << 9;
    const GL2_INV: u32 = 1 << 14;
    const GL2_WB: u32 = 1 << 15;

    pub const RELEASE: u32 = GL2_WB | GLK_WB;
    pub const ACQUIRE: u32 = RELEASE | GL2_INV | GL1_INV | GLV_INV | GLK_INV;
}

/// Bits of a fence's header beside the operation.
fn fence_bits(version: SdmaVersion) -> u32 {
    /// `SDMA_PKT_FENCE_HEADER_MTYPE(3)`: not cached, as Linux writes it from `sdma_v5_0.c` on.
    const UNCACHED: u32 = 3 << 16;
    /// `sys` of ROCr's `SDMA_PKT_FENCE_GFX12`: the fence is in host memory, where all fences of this crate are.
    const SYSTEM: u32 = 1 << 20;
    match version {
        SdmaVersion::V4_4 | SdmaVersion::V4_4_2 => 0,
        SdmaVersion::V5_2 | SdmaVersion::V6 => UNCACHED,
        SdmaVersion::V7 => UNCACHED | SYSTEM,
    }
}

/// Whether caches are flushed by packets around copies. The engines of gfx9 leave that to the packets of kernels. For
/// gfx115x Linux writes the packet (its file for 6.0 is that for 6.1), ROCr's newest does not.
fn flushes_caches(version: SdmaVersion) -> bool {
    match version {
        SdmaVersion::V4_4 | SdmaVersion::V4_4_2 => false,
        SdmaVersion::V5_2 | SdmaVersion::V6 | SdmaVersion::V7 => true,
    }
}

/// How a poll compares what is in memory, behind its mask, with its value: `SDMA_PKT_POLL_REGMEM_HEADER_FUNC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Compare {
    /// Memory is less.
    Less = 1,
    /// Memory is less or the same.
    LessOrEqual = 2,
    /// Memory is the same.
    Equal = 3,
    /// Memory differs.
    NotEqual = 4,
    /// Memory is the same or greater.
    GreaterOrEqual = 5,
    /// Memory is greater.
    Greater = 6,
}

/// Packets for one engine, in the order in which it takes them.
///
/// Addresses are the GPU's and are written down as they are: whoever submits the packets promises what is there.
#[derive(Clone, Debug)]
pub struct Packets {
    version: SdmaVersion,
    words: Vec<u32>,
    /// The index of the word after each packet.
    ends: Vec<usize>,
}

impl Packets {
    /// None yet.
    pub fn new(version: SdmaVersion) -> Self {
        Packets {
            version,
            words: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// All words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The words of each packet.
    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.words[start..end])
    }

    fn push<const N: usize>(&mut self, packet: [u32; N]) -> &mut Self {
        self.words.extend(packet);
        self.ends.push(self.words.len());
        self
    }

    /// Copies `bytes` from `from` to `to`, which do not overlap: as many packets as it takes.
    pub fn copy(&mut self, to: u64, from: u64, bytes: u64) -> &mut Self {
        for (at, part) in parts(bytes, COPY_BYTES) {
            let [from_low, from_high] = halves(from.wrapping_add(at));
            let [to_low, to_high] = halves(to.wrapping_add(at));
            self.push([op::COPY, part - 1, 0, from_low, from_high, to_low, to_high]);
        }
        self
    }

    /// Writes `value` to each of `words` words of 32 bits from `to` on, which is a multiple of 4.
    pub fn fill(&mut self, to: u64, value: u32, words: u64) -> &mut Self {
        for (at, part) in parts(words.saturating_mul(4), FILL_BYTES) {
            let [low, high] = halves(to.wrapping_add(at));
            // The count is the bytes before the last word.
            self.push([
                op::CONST_FILL | FILL_WORDS << 30,
                low,
                high,
                value,
                part - 4,
            ]);
        }
        self
    }

    /// Writes `value` to host memory at `address`, a multiple of 4, when all before it has arrived.
    pub fn fence(&mut self, address: u64, value: u32) -> &mut Self {
        let [low, high] = halves(address);
        self.push([op::FENCE | fence_bits(self.version), low, high, value])
    }

    /// Writes a value of 64 bits that only grows, in two halves: the lower one first, so that whoever waits for a value
    /// may see one that is too small for a moment, never one that is too large.
    pub fn fence_growing(&mut self, address: u64, value: u64) -> &mut Self {
        let [low, high] = halves(value);
        self.fence(address, low)
            .fence(address.wrapping_add(4), high)
    }

    /// Adds to the 64 bits at `address`, a multiple of 8; what is there wraps. A signal is lowered by -1.
    pub fn add(&mut self, address: u64, value: i64) -> &mut Self {
        let [low, high] = halves(address);
        let [value_low, value_high] = halves(value as u64);
        self.push([
            op::ATOMIC | ATOMIC_ADD64 << 25,
            low,
            high,
            value_low,
            value_high,
            0,
            0,
            0,
        ])
    }

    /// Waits until the 32 bits at `address` behind `mask` compare with `value`; for ever if they never do.
    pub fn poll(&mut self, address: u64, mask: u32, compare: Compare, value: u32) -> &mut Self {
        let [low, high] = halves(address);
        self.push([
            op::POLL_REGMEM | (compare as u32) << 28 | 1 << 31,
            low,
            high,
            value,
            mask,
            POLL_FOR_EVER,
        ])
    }

    /// Writes the GPU's clock, 64 bits, to `address`, a multiple of [`TIMESTAMP_ALIGNMENT`].
    pub fn timestamp(&mut self, address: u64) -> &mut Self {
        let [low, high] = halves(address);
        self.push([op::TIMESTAMP | TIMESTAMP_GET_GLOBAL << 8, low, high])
    }

    /// Interrupts the host for an event, which has the lower 28 bits of the word.
    pub fn trap(&mut self, event: u32) -> &mut Self {
        self.push([op::TRAP, event & 0x0fff_ffff])
    }

    /// Has what follows wait for the copies and fills before it: an engine may have several under way at once. Mesa's
    /// `ac_emit_sdma_nop`: a packet without effect does that. Polls, fences and timestamps need none.
    pub fn barrier(&mut self) -> &mut Self {
        self.push([op::NOP])
    }

    /// Before what is read: host writes to device memory arrive, and stale lines of caches are dropped.
    pub fn acquire(&mut self) -> &mut Self {
        // ROCr's `hdp_flush_cmd`: a poll without address that the engine's firmware knows.
        self.push([op::POLL_REGMEM, 0, 1 << 31, 0, 0, 0]);
        self.caches(gcr::ACQUIRE)
    }

    /// After what was written: caches hold nothing of it that others do not see.
    pub fn release(&mut self) -> &mut Self {
        self.caches(gcr::RELEASE)
    }

    fn caches(&mut self, control: u32) -> &mut Self {
        if !flushes_caches(self.version) {
            return self;
        }
        // No range: all of the caches.
        self.push([op::GCR | USER_GCR << 8, 0, control << 16, 0, 0])
    }
}

/// The lower and the upper half.
fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Cuts `bytes` into parts of at most `most`: where each begins, and how long it is.
fn parts(bytes: u64, most: u64) -> impl Iterator<Item = (u64, u32)> {
    let count = bytes.div_ceil(most);
    (0..count).map(move |i| {
        let at = i * most;
        (at, most.min(bytes - at) as u32)
    })
}
