//! Sums over the GPUs that share a block's matrices.

use super::norm::Norm;
use crate::engine::shard::{key_heads, BlockDivision, Shard};
use candle_core::{bail, DType, Result, Tensor};

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

/// Norms of queries and keys that divide by the root mean square of all heads, of which a GPU has some.
pub(super) struct NormsOfAll {
    shard: Shard,
    /// Elements of all heads of queries, and of keys.
    elements: [usize; 2],
    /// Whether this GPU's keys count: not where the one before has the same.
    has_own_keys: bool,
}

impl NormsOfAll {
    /// Those of a block, if it has such.
    pub(super) fn of_block(shard: Option<&Shard>, block: usize) -> Option<Self> {
        let shard = shard?;
        let elements = shard.plan.blocks.get(block)?.normed?;
        let [queries, keys] = elements;
        let keys = |number: usize| {
            let heads = shard.plan.heads.as_ref()?.get(number)?;
            Some(key_heads(heads, queries / keys))
        };
        let number = shard.number();
        Some(Self {
            shard: shard.clone(),
            elements,
            has_own_keys: number == 0 || keys(number) != keys(number - 1),
        })
    }

    /// `(tokens, heads, size)` of queries and of keys behind their norms.
    pub(super) fn forward(
        &self,
        parts: [Tensor; 2],
        norms: [&Option<Norm>; 2],
    ) -> Result<[Tensor; 2]> {
        let [Some(of_queries), Some(of_keys)] = norms else {
            bail!("norms of all heads are of queries and of keys")
        };
        let squares = |x: &Tensor| {
            let wide = x.flatten_from(1)?.to_dtype(DType::F32)?;
            wide.sqr()?.sum_keepdim(1)
        };
        let [queries, keys] = parts;
        let of_own_keys = squares(&keys)?;
        let of_own_keys = match self.has_own_keys {
            true => of_own_keys,
            false => of_own_keys.zeros_like()?,
        };
        let own = Tensor::cat(&[squares(&queries)?, of_own_keys], 1)?;
        let all = self.shard.sum(&own)?;
        let normed = |x: &Tensor, part: usize, norm: &Norm| {
            let mean = all.narrow(1, part, 1)?;
            let mean = mean.affine(1.0 / self.elements[part] as f64, norm.epsilon.into())?;
            let rows = x.flatten_from(1)?.to_dtype(DType::F32)?;
            let rows = rows.broadcast_div(&mean.sqrt()?)?;
            let rows = rows.to_dtype(x.dtype())?.broadcast_mul(&norm.weight)?;
            let rows = match &norm.bias {
                Some(bias) => rows.broadcast_add(bias)?,
                None => rows,
            };
            rows.reshape(x.shape())
        };
        Ok([normed(&queries, 0, of_queries)?, normed(&keys, 1, of_keys)?])
    }
}
