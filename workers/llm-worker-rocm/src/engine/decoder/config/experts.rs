//! The mixture of experts of a file.

use super::keys::{ConfigError, Keys, Result};
use super::MAX_BLOCKS;
use crate::engine::decoder::experts::{Routing, Scores};
use crate::engine::decoder::traits::{DecoderTraits, Latent};

/// Most experts in use are 512; a kernel chooses among so many.
const MAX_EXPERTS: u32 = 1024;
/// Most experts of a token are 22.
const MAX_USED: u32 = 64;

/// A mixture of experts in place of the feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine::decoder) struct MixtureConfig {
    pub count: usize,
    /// Experts of a token.
    pub used: usize,
    /// Width of an expert.
    pub hidden: usize,
    /// Experts of all tokens that the file says to have, as one of so many times the width.
    pub shared: usize,
    pub routing: Routing,
    pub groups: Option<Groups>,
    pub scale: f64,
    /// Every how many blocks there is a mixture.
    pub period: usize,
    /// Blocks at the beginning that have none.
    pub leading: usize,
}

/// Experts in groups behind each other, of which a token uses the best ones only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::decoder) struct Groups {
    pub count: usize,
    /// Groups of a token.
    pub used: usize,
}

/// Reads it, if there is one.
pub(super) fn experts(keys: &Keys, traits: &DecoderTraits) -> Result<Option<MixtureConfig>> {
    let Some(count) = keys
        .u32("expert_count")?
        .filter(|count| *count > 1)
        .map(|_| keys.require_count("expert_count", MAX_EXPERTS))
        .transpose()?
    else {
        return Ok(None);
    };
    let used = keys.require_count("expert_used_count", MAX_USED.min(count as u32))?;
    let hidden = match keys.count("expert_feed_forward_length", u32::MAX)? {
        Some(hidden) => hidden,
        None => keys.require_count("feed_forward_length", u32::MAX)?,
    };
    let number = |key: &str| Ok::<_, ConfigError>(keys.u32(key)?.unwrap_or(0) as usize);
    Ok(Some(MixtureConfig {
        count,
        used,
        hidden,
        shared: number("expert_shared_count")?,
        routing: routing(keys, traits)?,
        groups: groups(keys, count, used)?,
        scale: keys
            .positive("expert_weights_scale", true)?
            .map_or(1.0, f64::from),
        period: keys
            .count("interleave_moe_layer_step", MAX_BLOCKS)?
            .unwrap_or(1),
        leading: number("leading_dense_block_count")?,
    }))
}

/// The architecture's, as far as the file does not say otherwise.
fn routing(keys: &Keys, traits: &DecoderTraits) -> Result<Routing> {
    let own = traits.routing;
    Ok(Routing {
        // llama.cpp's numbers.
        scores: match keys.u32("expert_gating_func")? {
            None | Some(0) if biased(keys, traits) => Scores::Sigmoid,
            None | Some(0) => own.scores,
            Some(1) => Scores::Softmax,
            Some(2) => Scores::Sigmoid,
            Some(3) => Scores::Chosen,
            Some(_) => {
                return Err(ConfigError::Unsupported(format!(
                    "metadata {}",
                    keys.full("expert_gating_func")
                )))
            }
        },
        normalised: keys.bool("expert_weights_norm")?.unwrap_or(own.normalised),
        ..own
    })
}

/// Whether it is one of the files of DeepSeek-V3's kind that do not say what its scores are: its routers have biases,
/// which those of V2 have not.
fn biased(keys: &Keys, traits: &DecoderTraits) -> bool {
    let mut tensors = keys.gguf.tensors();
    traits.latent != Latent::None && tensors.any(|(name, _)| name.ends_with("exp_probs_b.bias"))
}

fn groups(keys: &Keys, count: usize, used: usize) -> Result<Option<Groups>> {
    let Some(groups) = keys.u32("expert_group_count")?.filter(|groups| *groups > 1) else {
        return Ok(None);
    };
    let groups = groups as usize;
    if !count.is_multiple_of(groups) {
        return Err(keys.bad(
            "expert_group_count",
            groups,
            format!("{count} experts cannot be shared evenly"),
        ));
    }
    let chosen = keys.require_count("expert_group_used_count", groups as u32)?;
    if chosen * (count / groups) < used {
        return Err(keys.bad(
            "expert_group_used_count",
            chosen,
            format!(
                "so many groups of {} have no {used} experts",
                count / groups
            ),
        ));
    }
    Ok((chosen < groups).then_some(Groups {
        count: groups,
        used: chosen,
    }))
}
