//! What part of a model a token or a device has to do with.

use super::DecoderConfig;
use crate::engine::shard::ShardPlan;

impl DecoderConfig {
    /// Of a block's experts, the part that a token is computed with; all where there are none.
    pub(crate) fn part_of_experts(&self, block: usize) -> f64 {
        let mixture = self.experts(block);
        mixture.map_or(1.0, |experts| experts.used as f64 / experts.count as f64)
    }

    /// Of the keys and values of a token, the part that a shard stores.
    pub(crate) fn part_of_keys(&self, plan: &ShardPlan, shard: usize) -> f64 {
        self.of_shard(plan, shard).kv_heads as f64 / self.kv_heads as f64
    }
}
