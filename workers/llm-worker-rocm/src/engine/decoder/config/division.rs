//! How the matrices of a model are divided among shards.

use super::{DecoderConfig, MixerKind};
use crate::engine::shard::{
    deal_heads, deal_rows, deal_width, key_heads, lcm, BlockDivision, ShardPlan,
};
use std::collections::BTreeSet;
use std::ops::Range;
use worker::gguf::{Gguf, TensorInfo};

type Ranges = Vec<Range<usize>>;

impl DecoderConfig {
    /// Divides the matrices of a checked file of this shape among shards, in proportion to `shares`, one for each:
    /// attention by heads, feed-forward parts and experts by their width, the output matrix by rows. Every shard has the
    /// rest whole.
    ///
    /// # Errors
    /// Why nothing of the model can be divided so, in words.
    pub fn divide(&self, header: &Gguf, shares: &[f32]) -> std::result::Result<ShardPlan, String> {
        if shares.is_empty() || !shares.iter().all(|s| s.is_finite() && *s > 0.0) {
            return Err("each GPU's share of a model must be a number above 0".to_string());
        }
        let division = Division {
            config: self,
            header,
            shares,
        };
        division.plan()
    }

    /// The shape of what a shard has.
    pub(in crate::engine::decoder) fn of_shard(&self, plan: &ShardPlan, shard: usize) -> Self {
        let mut own = self.clone();
        let all_blocks = self.blocks + self.predicting;
        if let Some(heads) = plan.heads.as_ref().map(|heads| &heads[shard]) {
            own.heads = heads.len();
            let of = |kv_heads: usize| key_heads(heads, self.heads / kv_heads).len();
            // Of latent vectors there is one for all heads.
            if self.latent.is_none() {
                own.kv_heads = of(self.kv_heads);
                own.sizes.kv_heads = (self.sizes.kv_heads.as_ref())
                    .map(|list| list.iter().map(|kv_heads| of(*kv_heads)).collect());
            }
        }
        if plan.blocks.iter().any(|block| block.hidden.is_some()) {
            let hidden = |block: usize| match &plan.blocks[block].hidden {
                Some(ranges) => ranges[shard].len(),
                None => self.of_block(block).hidden,
            };
            own.sizes.hidden = Some((0..all_blocks).map(hidden).collect());
        }
        if let (Some(ranges), Some(experts)) = (&plan.experts, &mut own.experts) {
            experts.hidden = ranges[shard].len();
        }
        if let Some(ranges) = &plan.vocabulary {
            own.output_rows = ranges[shard].len();
        }
        own
    }

    /// How many heads of queries share a head of keys in a block, and the elements of a head before the matrix behind
    /// attention.
    pub(super) fn heads_of_block(&self, block: usize) -> (usize, usize) {
        match &self.latent {
            Some(latent) => (1, latent.value),
            None => {
                let own = self.of_block(block);
                (self.heads / own.kv_heads, own.v_head_dim)
            }
        }
    }
}

/// What a plan is made from.
struct Division<'a> {
    config: &'a DecoderConfig,
    header: &'a Gguf,
    shares: &'a [f32],
}

impl Division<'_> {
    fn plan(&self) -> std::result::Result<ShardPlan, String> {
        let c = self.config;
        let mut whole = BTreeSet::new();
        let mut noted = |found: std::result::Result<Option<Ranges>, String>| {
            found.unwrap_or_else(|reason| {
                whole.insert(reason);
                None
            })
        };
        let heads = noted(self.heads());
        let experts = noted(self.experts());
        let blocks: Vec<BlockDivision> = (0..c.blocks + c.predicting)
            .map(|block| {
                let hidden = noted(self.hidden(block));
                let shared = experts.is_some().then(|| noted(self.shared(block)));
                let has_experts = experts.is_some() && self.has(block, "ffn_down_exps");
                let beside = has_experts && c.traits.experts_beside;
                let feed_forward = hidden.is_some() || (has_experts && !beside);
                let mixer = match c.mixer(block) {
                    MixerKind::Attention | MixerKind::Both => {
                        heads.is_some() && self.has(block, "attn_output")
                    }
                    MixerKind::FeedForward => feed_forward,
                    MixerKind::Recurrent => false,
                };
                BlockDivision {
                    normed: match mixer {
                        true => self.normed(block),
                        false => None,
                    },
                    mixer,
                    feed_forward,
                    beside,
                    hidden,
                    shared: shared.flatten(),
                }
            })
            .collect();
        if (0..c.blocks).any(|b| matches!(c.mixer(b), MixerKind::Recurrent | MixerKind::Both)) {
            whole.insert("recurrent mixers, whose states are not divided".to_string());
        }
        let whole: Vec<String> = whole.into_iter().collect();
        if !blocks
            .iter()
            .any(|block| block.mixer || block.feed_forward || block.beside)
        {
            return Err(format!(
                "nothing of this model of architecture {} can be divided among {} GPUs: {}; take --split layers",
                c.architecture,
                self.shares.len(),
                match whole.is_empty() {
                    true => "it has no matrices that are known to divide".to_string(),
                    false => whole.join("; "),
                }
            ));
        }
        let mut plan = ShardPlan {
            shards: self.shares.len(),
            heads,
            blocks,
            experts,
            vocabulary: deal_rows(c.vocab_size, self.shares),
            cuts: Vec::new(),
            whole,
        };
        let cuts = (0..plan.shards).map(|shard| c.cuts(self.header, &plan, shard));
        plan.cuts = cuts.collect();
        Ok(plan)
    }

    fn tensor(&self, block: usize, part: &str) -> Option<&TensorInfo> {
        self.header.tensor(&format!("blk.{block}.{part}.weight"))
    }

    fn has(&self, block: usize, part: &str) -> bool {
        self.tensor(block, part).is_some()
    }

    /// Refuses to divide what a matrix multiplies whose columns are in an order of their own.
    fn ordered(&self, what: &str, block: usize, part: &str) -> std::result::Result<(), String> {
        let name = format!("blk.{block}.{part}.order");
        match self.header.tensor(&name) {
            Some(_) => Err(format!(
                "{what} behind which columns are in another order (act-order)"
            )),
            None => Ok(()),
        }
    }

    /// The heads of each shard, the same in all blocks.
    fn heads(&self) -> std::result::Result<Option<Ranges>, String> {
        let c = self.config;
        let attends = |block: &usize| {
            matches!(c.mixer(*block), MixerKind::Attention | MixerKind::Both)
                && self.has(*block, "attn_output")
        };
        let mut unit = 1;
        let mut groups = Vec::new();
        for block in (0..c.blocks + c.predicting).filter(attends) {
            self.ordered("attention", block, "attn_output")?;
            let (group, size) = c.heads_of_block(block);
            let format = self
                .tensor(block, "attn_output")
                .map_or(1, |t| t.format.block_size());
            unit = lcm(unit, lcm(format, size) / size);
            groups.push(group);
        }
        groups.sort_unstable();
        groups.dedup();
        let Some(least) = groups.first() else {
            return Ok(None);
        };
        match deal_heads(c.heads, unit, &groups, self.shares) {
            Some(heads) => Ok(Some(heads)),
            None => Err(format!(
                "attention, whose {} heads, {} of keys, have no part for each of {} GPUs that is a multiple of {unit}",
                c.heads,
                c.heads / least,
                self.shares.len()
            )),
        }
    }

    /// Elements of all heads of queries and of keys, where their norms are of all of them.
    fn normed(&self, block: usize) -> Option<[usize; 2]> {
        let c = self.config;
        let own = c.of_block(block);
        match self.tensor(block, "attn_q_norm").map(|t| &t.dims[..]) {
            Some(&[size]) if c.latent.is_none() && size as usize != own.head_dim => {
                Some([c.heads, own.kv_heads].map(|heads| heads * own.head_dim))
            }
            _ => None,
        }
    }

    /// The width of a feed-forward part.
    fn hidden(&self, block: usize) -> std::result::Result<Option<Ranges>, String> {
        let Some(down) = self.tensor(block, "ffn_down") else {
            return Ok(None);
        };
        if self.config.closed_gates(block).is_some() {
            return Err(
                "feed-forward parts whose gates close by the mean of all of them".to_string(),
            );
        }
        self.ordered("feed-forward parts", block, "ffn_down")?;
        self.width("feed-forward parts", &[down])
    }

    /// That of experts, the same in all blocks.
    fn experts(&self) -> std::result::Result<Option<Ranges>, String> {
        let blocks = 0..self.config.blocks + self.config.predicting;
        let down = blocks.filter_map(|block| self.tensor(block, "ffn_down_exps"));
        self.width("experts", &down.collect::<Vec<_>>())
    }

    /// That of the expert of all tokens.
    fn shared(&self, block: usize) -> std::result::Result<Option<Ranges>, String> {
        match self.tensor(block, "ffn_down_shexp") {
            Some(down) => {
                self.ordered("experts of all tokens", block, "ffn_down_shexp")?;
                self.width("experts of all tokens", &[down])
            }
            None => Ok(None),
        }
    }

    /// A width in blocks of the formats of all matrices that have it inside.
    fn width(
        &self,
        what: &str,
        down: &[&TensorInfo],
    ) -> std::result::Result<Option<Ranges>, String> {
        let Some(width) = down.first().map(|info| info.dims[0] as usize) else {
            return Ok(None);
        };
        let block = down
            .iter()
            .fold(1, |all, info| lcm(all, info.format.block_size()));
        let dealt = match down.iter().all(|info| info.dims[0] as usize == width) {
            true => deal_width(width, block, self.shares),
            false => None,
        };
        match dealt {
            Some(ranges) => Ok(Some(ranges)),
            None => Err(format!(
                "{what}, whose {width} elements have no multiple of {block} for each of {} GPUs",
                self.shares.len()
            )),
        }
    }
}
