//! SDMA stress: what the engine makes of random copies and fills, and what the host makes of the same.

use super::Rounds;
use crate::lane::Lane;
use crate::random::Random;
use crate::session::Card;
use crate::Result;
use candle_kfd::{Kind, Memory};
use memory_pattern::WORD;
use std::time::Duration;

/// Copies and fills of a round, in one batch.
const STEPS: u64 = 32;

/// See the [module](self).
pub struct Stress<'a> {
    lane: &'a Lane,
    memory: Memory,
    /// What should be in it.
    model: Vec<u8>,
    timeout: Duration,
}

impl<'a> Stress<'a> {
    /// Memory of so many bytes.
    pub fn new(card: &'a Card, bytes: u64) -> Result<Self> {
        let lane = &card.lane;
        let bytes = usize::try_from(bytes)?;
        let memory = card.gpu.allocate(bytes, Kind::Vram)?;
        lane.fill_value(&memory, 0, 0, (bytes / WORD) as u64)?;
        Ok(Stress {
            lane,
            memory,
            model: vec![0; bytes],
            timeout: card.timeout,
        })
    }
}

impl Rounds for Stress<'_> {
    fn round(&mut self, random: &mut Random) -> Result<Option<String>> {
        let size = self.model.len() as u64;
        let half = size / 2;
        let mut packets = self.lane.queue.packets();
        packets.acquire();
        for _ in 0..STEPS {
            if random.below(4) == 0 {
                let words = random.size(half / WORD as u64);
                let at = random.below(size / WORD as u64 - words + 1) * WORD as u64;
                let value = random.next() as u32;
                packets.fill(self.memory.range(at, words * 4)?, value, words);
                let range = at as usize..(at + words * 4) as usize;
                for word in self.model[range].chunks_exact_mut(WORD) {
                    word.copy_from_slice(&value.to_le_bytes());
                }
            } else {
                // From one half into the other, so that they do not overlap.
                let bytes = random.size(half);
                let low = random.below(half - bytes + 1);
                let high = half + random.below(half - bytes + 1);
                let (from, to) = match random.below(2) {
                    0 => (low, high),
                    _ => (high, low),
                };
                let [source, target] = [from, to].map(|at| self.memory.range(at, bytes));
                packets.copy(target?, source?, bytes);
                self.model
                    .copy_within(from as usize..(from + bytes) as usize, to as usize);
            }
            // The next one may read what this one writes.
            packets.barrier();
        }
        packets.release();
        // SAFETY: all ranges were checked to lie in the memory, which outlives the call.
        unsafe { self.lane.queue.run(&packets, self.timeout) }?;
        let mut is = vec![0; self.model.len()];
        self.lane.fetch(&self.memory, 0, &mut is)?;
        let differing = is
            .iter()
            .zip(&self.model)
            .filter(|(is, should)| is != should);
        let count = differing.count();
        let first = is
            .iter()
            .zip(&self.model)
            .position(|(is, should)| is != should);
        let Some(at) = first else {
            return Ok(None);
        };
        let wrong = format!(
            "{count} bytes differ from the host's, the first at byte {at} (address {:#x}): {:#04x} instead of {:#04x}",
            self.memory.address() + at as u64,
            is[at],
            self.model[at]
        );
        // The next rounds tell of what they do themselves.
        self.model = is;
        Ok(Some(wrong))
    }
}
