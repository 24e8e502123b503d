//! The mixture of experts of a file.

use super::keys::{ConfigError, Keys, Result};
use super::MAX_BLOCKS;
use crate::engine::decoder::traits::{DecoderTraits, Routing};

/// Most experts in use are 512.
const MAX_EXPERTS: u32 = 4096;

/// A mixture of experts in place of the feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine::decoder) struct MixtureConfig {
    pub count: usize,
    /// Experts of a token.
    pub used: usize,
    /// Width of an expert.
    pub hidden: usize,
    pub scale: f64,
    /// Every how many blocks there is a mixture.
    pub period: usize,
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
    let used = keys.require_count("expert_used_count", count as u32)?;
    // llama.cpp's numbers: 1 is softmax, 2 the sigmoid.
    let own = match traits.routing {
        Routing::Input => 2,
        _ => 1,
    };
    if keys
        .u32("expert_gating_func")?
        .is_some_and(|kind| kind != 0 && kind != own)
    {
        return Err(ConfigError::Unsupported(format!(
            "metadata {}",
            keys.full("expert_gating_func")
        )));
    }
    let hidden = match keys.count("expert_feed_forward_length", u32::MAX)? {
        Some(hidden) => hidden,
        None => keys.require_count("feed_forward_length", u32::MAX)?,
    };
    Ok(Some(MixtureConfig {
        count,
        used,
        hidden,
        scale: keys
            .positive("expert_weights_scale", true)?
            .map_or(1.0, f64::from),
        period: keys
            .count("interleave_moe_layer_step", MAX_BLOCKS)?
            .unwrap_or(1),
    }))
}
