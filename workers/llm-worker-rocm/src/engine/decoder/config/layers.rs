//! What blocks differ in.

use super::keys::{ConfigError, Keys, Result};
use super::{DecoderConfig, MixtureConfig};
use crate::engine::decoder::traits::{BlockParts, DecoderTraits, Layers, Recurrence};

/// What a block has that others may not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::decoder) struct LayerKind {
    pub window: Option<usize>,
    pub rotary: Option<Base>,
}

/// Which rotary tables a block uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::decoder) enum Base {
    /// The file's.
    Global,
    /// The architecture's for blocks with a window, not scaled.
    Local,
}

/// What mixes tokens in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::decoder) enum MixerKind {
    Attention,
    Recurrent,
    /// Both, beside each other.
    Both,
    /// Nothing: the feed-forward part is all that the block has.
    FeedForward,
}

/// Every how many blocks there is attention between recurrences, unless the file says.
fn attention_every(recurrence: Recurrence) -> usize {
    match recurrence {
        Recurrence::Lightning => 8,
        _ => 4,
    }
}

/// What mixes tokens in each block.
pub(super) fn mixers(keys: &Keys, traits: &DecoderTraits, blocks: usize) -> Result<Vec<MixerKind>> {
    let with_heads = || -> Result<Vec<bool>> {
        let key = "attention.head_count_kv";
        let heads = keys.of_blocks(key, blocks)?;
        let heads = heads.ok_or_else(|| keys.bad(key, "absent", "each block's is needed"))?;
        Ok(heads.into_iter().map(|heads| heads > 0).collect())
    };
    Ok(match traits.parts {
        BlockParts::Attention => vec![MixerKind::Attention; blocks],
        BlockParts::Recurrent => vec![MixerKind::Recurrent; blocks],
        BlockParts::Beside => vec![MixerKind::Both; blocks],
        BlockParts::RecurrentWithoutHeads => {
            let kind = |attention| match attention {
                true => MixerKind::Attention,
                false => MixerKind::Recurrent,
            };
            with_heads()?.into_iter().map(kind).collect()
        }
        BlockParts::RecurrentBetween => {
            let listed = keys.switches("attention.recurrent_layers", blocks)?;
            let interval = keys.count("full_attention_interval", u32::MAX)?;
            let interval = interval.unwrap_or(attention_every(traits.recurrence));
            let between = || (1..=blocks).map(|block| !block.is_multiple_of(interval));
            let recurrent = listed.unwrap_or_else(|| between().collect());
            let kind = |recurrent| match recurrent {
                true => MixerKind::Recurrent,
                false => MixerKind::Attention,
            };
            recurrent.into_iter().map(kind).collect()
        }
        BlockParts::One => {
            let widths = keys.of_blocks("feed_forward_length", blocks)?;
            let widths = widths.unwrap_or_else(|| vec![0; blocks]);
            let kind = |(attention, width)| match (attention, width) {
                (true, _) => MixerKind::Attention,
                (false, 0) => MixerKind::Recurrent,
                (false, _) => MixerKind::FeedForward,
            };
            with_heads()?.into_iter().zip(widths).map(kind).collect()
        }
    })
}

/// The one number that a key has for blocks; 0 stands for blocks that have none where there are several kinds.
pub(super) fn of_any_block(
    keys: &Keys,
    key: &str,
    traits: &DecoderTraits,
    blocks: usize,
) -> Result<Option<usize>> {
    if traits.parts == BlockParts::Attention {
        return keys.count(key, u32::MAX);
    }
    let numbers = keys.of_blocks(key, blocks)?.unwrap_or_default();
    let mut numbers = numbers.into_iter().filter(|number| *number > 0);
    let first = numbers.next();
    match numbers.find(|number| Some(*number) != first) {
        None => Ok(first),
        Some(_) => Err(ConfigError::Unsupported(format!(
            "metadata {} of several sizes",
            keys.full(key)
        ))),
    }
}

impl DecoderConfig {
    /// What mixes tokens in a block.
    pub(in crate::engine::decoder) fn mixer(&self, block: usize) -> MixerKind {
        // A head that predicts further tokens has attention, whatever the blocks before it have.
        let own = self.mixers.get(block).filter(|_| block < self.blocks);
        own.copied().unwrap_or(MixerKind::Attention)
    }

    /// Whether blocks mix the values of the first one into their own.
    pub(in crate::engine::decoder) fn has_first_values(&self) -> bool {
        self.traits.recurrence == Recurrence::Rwkv7
    }

    /// Whether a block has a feed-forward part behind its mixer.
    pub(in crate::engine::decoder) fn has_feed_forward(&self) -> bool {
        !matches!(self.traits.parts, BlockParts::Recurrent | BlockParts::One)
    }

    /// The mixture of a block that has one.
    pub(in crate::engine::decoder) fn experts(&self, block: usize) -> Option<&MixtureConfig> {
        let experts = self.experts.as_ref();
        experts.filter(|experts| match &self.routed_blocks {
            Some(routed) => routed.get(block).copied().unwrap_or(false),
            None => block >= experts.leading && (block + 1).is_multiple_of(experts.period),
        })
    }

    /// Whether a block has norms of queries and keys that have no weights.
    pub(in crate::engine::decoder) fn plain_qk_norms(&self, block: usize) -> bool {
        // Llama 4's largest, which only its number of experts tells, has none.
        let largest = self.experts.is_some_and(|experts| experts.count == 128);
        self.traits.plain_qk_norms && !largest && self.layer(block).rotary.is_some()
    }

    /// Positions of a chunk, in a block whose rows see keys of their own chunk only.
    pub(in crate::engine::decoder) fn chunk(&self, block: usize) -> Option<usize> {
        let turns = self.layer(block).rotary.is_some();
        self.chunk.filter(|_| turns)
    }

    /// What a block differs in from others.
    pub(in crate::engine::decoder) fn layer(&self, block: usize) -> LayerKind {
        let every = |period: u32| (block + 1).is_multiple_of(period.max(1) as usize);
        let of_file = |switches: &Option<Vec<bool>>| switches.as_ref()?.get(block).copied();
        let is_global = |period: u32| match of_file(&self.window_blocks) {
            Some(window) => !window,
            None => every(self.window_period.unwrap_or(period)),
        };
        let attends = matches!(self.mixer(block), MixerKind::Attention | MixerKind::Both);
        if self.positionless || !attends {
            return LayerKind {
                window: self.window,
                rotary: None,
            };
        }
        match self.traits.layers {
            Layers::Same => LayerKind {
                window: self.window,
                rotary: Some(Base::Global),
            },
            Layers::Positionless { period } => LayerKind {
                window: self.window,
                rotary: of_file(&self.rotary_blocks)
                    .unwrap_or(!every(period))
                    .then_some(Base::Global),
            },
            Layers::Windowed {
                period,
                local_base,
                positionless,
            } => {
                let global = is_global(period);
                LayerKind {
                    window: if global { None } else { self.window },
                    rotary: match (global, local_base) {
                        (true, _) if positionless => None,
                        (false, Some(_)) => Some(Base::Local),
                        _ => Some(Base::Global),
                    },
                }
            }
            Layers::MaybeWindowed { .. } if !self.windowed => LayerKind {
                window: None,
                rotary: Some(Base::Global),
            },
            Layers::MaybeWindowed {
                period,
                unscaled,
                positionless,
            } => match is_global(period) {
                true => LayerKind {
                    window: None,
                    rotary: (!positionless).then_some(Base::Global),
                },
                false => LayerKind {
                    window: self.window,
                    rotary: Some(if unscaled { Base::Local } else { Base::Global }),
                },
            },
        }
    }

    /// The rotary base of blocks that do not use the file's.
    pub(in crate::engine::decoder) fn local_base(&self) -> f32 {
        match self.traits.layers {
            Layers::Windowed {
                local_base: Some(_),
                ..
            } if self.sizes.local_base.is_some() => self.sizes.local_base.unwrap_or(self.rope.base),
            Layers::Windowed {
                local_base: Some(base),
                ..
            } => base as f32,
            _ => self.sizes.local_base.unwrap_or(self.rope.base),
        }
    }
}
