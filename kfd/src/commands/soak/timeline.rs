//! Timeline semaphores: two queues of a GPU hand a value, and data, to and fro; the second is told to wait first.

use super::Rounds;
use crate::random::Random;
use crate::session::Card;
use crate::Result;
use candle_kfd::sdma::{Compare, Engine, SdmaQueue};
use candle_kfd::{Kind, Memory};
use std::time::Duration;

/// Bytes that are handed on.
const BYTES: usize = 64 << 10;
/// How often in a round.
const HANDS: u32 = 16;
/// Where the value is, in memory of its own.
const VALUE_BYTES: usize = 4096;

/// See the [module](self).
pub struct Chain {
    queues: [SdmaQueue; 2],
    /// What is handed on goes from one to the next.
    stations: Vec<Memory>,
    value: Memory,
    reached: u32,
    timeout: Duration,
}

impl Chain {
    /// On one GPU.
    pub fn new(card: &Card, timeout: Duration) -> Result<Self> {
        let queue = || SdmaQueue::new(&card.gpu, Engine::Any);
        // The first and the last are the host's.
        let stations = (0..=HANDS).map(|i| {
            let kind = match i {
                0 | HANDS => Kind::Gtt,
                _ => Kind::Vram,
            };
            card.gpu.allocate(BYTES, kind)
        });
        let chain = Chain {
            queues: [queue()?, queue()?],
            stations: stations.collect::<candle_kfd::Result<_>>()?,
            value: card.gpu.allocate(VALUE_BYTES, Kind::Uncached)?,
            reached: 0,
            timeout,
        };
        if let Some(host) = chain.value.host() {
            host.fill(0, VALUE_BYTES, 0)?;
        }
        Ok(chain)
    }
}

impl Rounds for Chain {
    fn round(&mut self, random: &mut Random) -> Result<Option<String>> {
        // A poll compares 32 bits: begin anew before they are full.
        if self.reached > u32::MAX - 2 * HANDS {
            if let Some(host) = self.value.host() {
                host.fill(0, VALUE_BYTES, 0)?;
            }
            self.reached = 0;
        }
        let mut data = vec![0; BYTES];
        let salt = random.next();
        for (i, bytes) in data.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&(salt ^ i as u64).to_le_bytes());
        }
        if let (Some(first), Some(last)) = (
            self.stations[0].host(),
            self.stations[HANDS as usize].host(),
        ) {
            first.write(0, &data)?;
            last.fill(0, BYTES, 0)?;
        }
        let value = self.value.address();
        let mut batches = [self.queues[0].packets(), self.queues[1].packets()];
        for (hand, pair) in self.stations.windows(2).enumerate() {
            let before = self.reached + hand as u32;
            // They take turns.
            batches[hand % 2]
                .poll(value, u32::MAX, Compare::GreaterOrEqual, before)
                .acquire()
                .copy(pair[1].address(), pair[0].address(), BYTES as u64)
                .release()
                .fence(value, before + 1);
        }
        // The second queue has to wait for what the first was not even told yet.
        //
        // SAFETY: the stations and the value live as long as the queues, which are dropped first.
        let second = unsafe { self.queues[1].submit(&batches[1]) }?;
        // SAFETY: likewise.
        let first = unsafe { self.queues[0].submit(&batches[0]) }?;
        self.queues[0].wait(first, self.timeout)?;
        self.queues[1].wait(second, self.timeout)?;
        self.reached += HANDS;
        let mut arrived = vec![0; BYTES];
        let mut is = 0;
        if let (Some(last), Some(value)) = (self.stations[HANDS as usize].host(), self.value.host())
        {
            last.read(0, &mut arrived)?;
            is = value.word(0)?.load(std::sync::atomic::Ordering::Acquire);
        }
        if is != self.reached {
            return Ok(Some(format!(
                "the value is {is} instead of {}",
                self.reached
            )));
        }
        let wrong = arrived
            .iter()
            .zip(&data)
            .position(|(is, should)| is != should);
        Ok(wrong.map(|at| {
            format!(
                "byte {at} of what was handed on is {:#04x} instead of {:#04x}",
                arrived[at], data[at]
            )
        }))
    }
}
