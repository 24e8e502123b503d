//! What blocks differ in.

use super::{DecoderConfig, MixtureConfig};
use crate::engine::decoder::traits::Layers;

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

impl DecoderConfig {
    /// The mixture of a block that has one.
    pub(in crate::engine::decoder) fn experts(&self, block: usize) -> Option<&MixtureConfig> {
        let experts = self.experts.as_ref();
        experts.filter(|experts| {
            block >= experts.leading && (block + 1).is_multiple_of(experts.period)
        })
    }

    /// Whether a block has norms of queries and keys that have no weights.
    pub(in crate::engine::decoder) fn plain_qk_norms(&self, block: usize) -> bool {
        // Llama 4's largest, which only its number of experts tells, has none.
        let largest = self.experts.is_some_and(|experts| experts.count == 128);
        self.traits.plain_qk_norms && !largest && self.layer(block).rotary.is_some()
    }

    /// What a block differs in from others.
    pub(in crate::engine::decoder) fn layer(&self, block: usize) -> LayerKind {
        let every = |period: u32| (block + 1).is_multiple_of(period.max(1) as usize);
        let of_file = |switches: &Option<Vec<bool>>| switches.as_ref().map(|all| all[block]);
        let is_global = |period: u32| match of_file(&self.window_blocks) {
            Some(window) => !window,
            None => every(self.window_period.unwrap_or(period)),
        };
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
                local_base: Some(base),
                ..
            } => base as f32,
            _ => self.rope.base,
        }
    }
}
