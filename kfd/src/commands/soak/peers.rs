//! Multi-GPU: copies between random pairs of GPUs.

use super::Rounds;
use crate::random::Random;
use crate::session::Card;
use crate::Result;
use candle_kfd::{Gpu, Kind, Memory};
use memory_pattern::{Pattern, WORD};
use std::sync::Arc;
use std::time::Duration;

/// See the [module](self).
pub struct Pairs<'a> {
    cards: &'a [Card],
    /// What is sent, and where it arrives, of each GPU; all GPUs see the latter.
    sent: Vec<Memory>,
    arrived: Vec<Memory>,
    timeout: Duration,
}

impl<'a> Pairs<'a> {
    /// Of all GPUs.
    pub fn new(cards: &'a [Card], bytes: u64, timeout: Duration) -> Result<Self> {
        let bytes = usize::try_from(bytes)?;
        let gpus: Vec<Arc<Gpu>> = cards.iter().map(|card| card.gpu.clone()).collect();
        let mut pairs = Pairs {
            cards,
            sent: Vec::new(),
            arrived: Vec::new(),
            timeout,
        };
        for (i, card) in cards.iter().enumerate() {
            let sent = card.gpu.allocate(bytes, Kind::Vram)?;
            card.lane.fill(&sent, Pattern::Random, i as u32, 0)?;
            let arrived = card.gpu.allocate(bytes, Kind::Vram)?;
            arrived.map_to(&gpus)?;
            pairs.sent.push(sent);
            pairs.arrived.push(arrived);
        }
        Ok(pairs)
    }
}

impl Rounds for Pairs<'_> {
    fn round(&mut self, random: &mut Random) -> Result<Option<String>> {
        let count = self.cards.len() as u64;
        let from = random.below(count) as usize;
        let to = (from + 1 + random.below(count - 1) as usize) % self.cards.len();
        let most = (self.sent[from].len() / WORD) as u64;
        let words = random.size(most);
        let first = random.below(most - words + 1);
        let (at, bytes) = (first * WORD as u64, words * WORD as u64);
        let lane = &self.cards[to].lane;
        lane.fill_value(&self.arrived[to], at, 0, words)?;
        let (target, source) = ((&self.arrived[to], at), (&self.sent[from], at));
        let queue = &self.cards[from].lane.queue;
        queue.copy(target, source, bytes, self.timeout)?;
        let mut arrived = vec![0; usize::try_from(bytes)?];
        lane.fetch(&self.arrived[to], at, &mut arrived)?;
        let wrong = Pattern::Random.compare(from as u32, first, &arrived);
        Ok(wrong.map(|wrong| {
            let [from, to] = [from, to].map(|card| self.cards[card].name());
            format!("{from} to {to}: {wrong}")
        }))
    }
}
