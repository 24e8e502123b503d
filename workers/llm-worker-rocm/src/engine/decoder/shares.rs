//! Sums over the GPUs that share a block's matrices.

use crate::engine::shard::{BlockDivision, Shard};
use candle_core::{Result, Tensor};

/// What adds up what several GPUs give of a block's parts, if they share these.
pub(super) struct Shares {
    division: BlockDivision,
    shard: Shard,
}

impl Shares {
    /// Those of a block, if anything of it is divided.
    pub(super) fn of_block(shard: Option<&Shard>, block: usize) -> Option<Self> {
        let shard = shard?;
        let division = shard.plan.blocks.get(block)?;
        let divided = division.mixer || division.feed_forward || division.beside;
        divided.then(|| Self {
            division: division.clone(),
            shard: shard.clone(),
        })
    }

    /// Whether what this GPU computes whole beside its share of the mixer counts: where the mixer is divided, that of the
    /// first one does.
    pub(super) fn counts_beside_mixer(&self) -> bool {
        self.shard.number() == 0 || !self.division.mixer
    }

    /// Whether one sum will do for both parts of a block.
    pub(super) fn are_both(&self) -> bool {
        self.division.mixer && self.division.feed_forward
    }

    /// What the mixer gives, from this GPU's share of it.
    pub(super) fn mixed(&self, share: Tensor) -> Result<Tensor> {
        self.sum(self.division.mixer, share)
    }

    /// The same of the feed-forward part.
    pub(super) fn fed(&self, share: Tensor) -> Result<Tensor> {
        self.sum(self.division.feed_forward, share)
    }

    /// The same of experts beside it.
    pub(super) fn beside(&self, share: Tensor) -> Result<Tensor> {
        self.sum(self.division.beside, share)
    }

    fn sum(&self, divided: bool, share: Tensor) -> Result<Tensor> {
        match divided {
            true => self.shard.sum(&share),
            false => Ok(share),
        }
    }
}
