//! A model whose matrices several GPUs share: which part each has, and the view of a file that shows nothing else.
//!
//! What is divided are matrices, not the decoder: a shard's decoder is that of a model with fewer heads, narrower
//! feed-forward parts and experts, and fewer rows of the output matrix ("Megatron-LM: Training Multi-Billion Parameter
//! Language Models Using Model Parallelism", Shoeybi et al., 2019). Behind the matrices that are divided by columns, and
//! behind the output matrix, the shards' results become one: [`Shard`] has what they meet in.
//!
//! | Module    | Gives                                                              |
//! |-----------|--------------------------------------------------------------------|
//! | `deal`    | heads, widths and rows dealt in whole units                        |
//! | `cut`     | parts of tensors, as bytes                                         |
//! | `weights` | [`ShardedWeights`]: a shard's part of a file, seen as a file       |
//! | `adapter` | the parts of adapters                                              |
//!
//! Which tensors a plan cuts, and how, stands with the configuration: `DecoderConfig::divide`.

mod adapter;
mod cut;
mod deal;
mod weights;

pub(crate) use cut::{Cut, Part};
pub(crate) use deal::{deal_heads, deal_rows, deal_width, key_heads, lcm};
pub use weights::ShardedWeights;

use candle_core::{Result, Tensor};
use candle_rocm_collective::{Communicator, Reduce};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// How the matrices of a model are divided among shards.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardPlan {
    pub(super) shards: usize,
    /// The heads of queries of each shard; none where all compute attention whole.
    pub(super) heads: Option<Vec<Range<usize>>>,
    /// What is divided of each block, those of heads that predict further tokens included.
    pub(super) blocks: Vec<BlockDivision>,
    /// The part of each expert's width that each shard has.
    pub(super) experts: Option<Vec<Range<usize>>>,
    /// The rows of the output matrix of each shard.
    pub(super) vocabulary: Option<Vec<Range<usize>>>,
    /// What each shard has of tensors that it does not have whole.
    pub(super) cuts: Vec<HashMap<String, Cut>>,
    pub(super) whole: Vec<String>,
}

/// What is divided of a block.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BlockDivision {
    /// What mixes tokens.
    pub mixer: bool,
    /// What stands behind it: the feed-forward part, or the experts in its place.
    pub feed_forward: bool,
    /// Experts beside the feed-forward part.
    pub beside: bool,
    /// The part of the feed-forward part's width that each shard has.
    pub hidden: Option<Vec<Range<usize>>>,
    /// The same of the expert of all tokens.
    pub shared: Option<Vec<Range<usize>>>,
    /// Elements of all heads of queries and of keys, where one norm is of all of them.
    pub normed: Option<[usize; 2]>,
}

impl ShardPlan {
    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// What every shard computes whole, and why, in words; empty if everything that can be divided is.
    pub fn whole(&self) -> &[String] {
        &self.whole
    }

    /// Bytes of the tensors that a shard has, of the file that the plan was made for.
    pub fn bytes(&self, shard: usize, header: &worker::gguf::Gguf) -> u64 {
        let of_file = header
            .tensors()
            .map(|(name, info)| match self.cut(shard, name) {
                Some(Cut::Part(part)) => part.info(info).bytes,
                Some(Cut::Nothing) => 0,
                Some(Cut::Zeros) | None => info.bytes,
            });
        let tied = (self.parts(shard))
            .filter(|(name, _)| header.tensor(name).is_none())
            .filter_map(|(_, part)| Some(part.info(header.tensor(&part.of)?).bytes));
        of_file.sum::<u64>() + tied.sum::<u64>()
    }

    /// What a shard has of a tensor, if not all.
    pub(crate) fn cut(&self, shard: usize, name: &str) -> Option<&Cut> {
        self.cuts[shard].get(name)
    }

    /// The tensors of which a shard has a part.
    pub(crate) fn parts(&self, shard: usize) -> impl Iterator<Item = (&str, &Part)> {
        self.cuts[shard].iter().filter_map(|(name, cut)| match cut {
            Cut::Part(part) => Some((name.as_str(), part)),
            Cut::Zeros | Cut::Nothing => None,
        })
    }
}

/// One of the shards of a model, and what it meets the others in.
#[derive(Debug, Clone)]
pub struct Shard {
    /// How the model is divided.
    pub plan: Arc<ShardPlan>,
    /// Its rank is the shard's number.
    pub communicator: Communicator,
}

impl Shard {
    /// Its number, from 0.
    pub fn number(&self) -> usize {
        self.communicator.rank()
    }

    /// Its part of a file.
    pub fn weights<'a>(&'a self, file: &'a dyn worker::gguf::Weights) -> ShardedWeights<'a> {
        ShardedWeights::new(file, &self.plan, self.number())
    }

    /// The sum of what the shards have.
    pub(crate) fn sum(&self, share: &Tensor) -> Result<Tensor> {
        self.communicator.all_reduce(share, Reduce::Sum)
    }

    /// Logits of the whole vocabulary, f32 `(rows, vocabulary)`, from those of the shards' rows of the output matrix.
    pub(crate) fn gather(&self, logits: Tensor) -> Result<Tensor> {
        let Some(ranges) = &self.plan.vocabulary else {
            return Ok(logits);
        };
        let sizes: Vec<usize> = ranges.iter().map(|range| range.len()).collect();
        self.communicator.all_gather_uneven(&logits, 1, &sizes)
    }

    /// The largest of the shards' numbers, so that all do the same.
    pub(crate) fn largest(&self, own: u16) -> Result<u16> {
        let own = Tensor::new(&[f32::from(own)], self.communicator.device())?;
        let largest = self.communicator.all_reduce(&own, Reduce::Max)?;
        Ok(largest.to_vec1::<f32>()?[0] as u16)
    }
}
