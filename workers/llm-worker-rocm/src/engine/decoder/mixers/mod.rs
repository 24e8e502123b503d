//! What mixes tokens in a block: attention over what is cached, or a recurrence over a state.

mod attention;
mod convolution;
mod delta;
mod device;
mod griffin;
mod host;
mod latent;
mod lightning;
mod rocm;
mod rwkv;
mod scan;
mod short_convolution;
mod state_space;
mod walk;

pub(super) use attention::Attention;
pub(super) use convolution::{Convolution, MAX_KERNEL};
pub(super) use delta::GatedDelta;
pub(super) use griffin::{Blocks, Diagonal, Griffin};
pub(super) use latent::{Indexer, LatentAttention, Query};
pub(super) use lightning::{Lightning, BIAS_OF_ONE};
pub(super) use rwkv::{Channel, FirstValues, LowRank, Rwkv7};
pub(super) use scan::Selective;
pub(super) use short_convolution::ShortConvolution;
pub(super) use state_space::{Mamba, Mamba2};

use super::config::Base;
use super::experts::FeedForward;
use super::input::{Input, Wanted};
use super::media::MediaPass;
use super::memory::{LayerMemory, StateBatch, StatePart};
use super::rotary::TurnedRows;
use crate::engine::api::KvRotation;
use crate::engine::forward::CacheOptions;
use candle_core::{bail, Device, Result, Tensor};
use candle_rocm_flash_attn::paged::{CacheFormat, CacheShape, PagedBatch, PagedCache, Rotary};
use std::cell::RefCell;

/// What a pass of rows has for all blocks.
pub(super) struct Pass<'a> {
    /// Where keys and values of the rows go.
    pub batch: &'a PagedBatch,
    /// The same in blocks with a sliding window, where these have a cache of their own.
    pub windows: Option<&'a PagedBatch>,
    /// Where states come from and go, if the model has states.
    pub states: Option<&'a StateBatch>,
    /// Rotary tables of the file and of blocks with a base of their own, as far as there are such blocks.
    pub global: Option<&'a Rotary>,
    pub local: Option<&'a Rotary>,
    /// What blocks are given of each token besides the stream, `(rows, blocks, size)`.
    pub per_block: Option<Tensor>,
    /// Cosines and sines of the rows where the file's tables turn by a number of elements that no kernel turns.
    pub uneven: Option<TurnedRows>,
    /// What queries are multiplied by, `(rows, 1, 1)`.
    pub temperatures: Option<Tensor>,
    /// What rows have besides their tokens.
    pub media: &'a MediaPass,
    /// The keys that the last indexer chose for each row, if that is not all.
    pub chosen: RefCell<Option<Tensor>>,
}

impl Pass<'_> {
    pub(super) fn rotary(&self, base: Option<Base>) -> Option<&Rotary> {
        match base? {
            Base::Global => self.global,
            Base::Local => self.local,
        }
    }

    /// Where keys and values of a block go that sees `left` keys before a row's own, or all.
    pub(super) fn batch(&self, left: Option<usize>) -> &PagedBatch {
        self.windows
            .filter(|_| left.is_some())
            .unwrap_or(self.batch)
    }

    /// What a recurrent block needs.
    pub(super) fn states(&self) -> Result<&StateBatch> {
        match self.states {
            Some(states) => Ok(states),
            None => bail!("a step of a recurrent model has no states"),
        }
    }
}

/// Mixes tokens, `(tokens, width)` to the same.
pub(super) enum Mixer {
    Attention(Box<Attention>),
    Latent(Box<LatentAttention>),
    Recurrent(Box<dyn Recurrent>),
    /// Both on the same input; what they give is added.
    Both(Box<Both>),
    /// None: the block's feed-forward part stands here.
    FeedForward(Box<FeedForward>),
}

/// Attention beside a recurrence.
pub(super) struct Both {
    pub attention: Attention,
    pub recurrent: Box<dyn Recurrent>,
    /// Whether what the recurrence gives is added here: where GPUs share attention, each has a state, and one adds it.
    pub counts: bool,
}

/// A recurrence: each token changes a state, and what is given for it depends on the state and the token alone.
pub(super) trait Recurrent: Send {
    /// What a sequence carries on, each with a place for each slot in [`LayerMemory::state`].
    fn state(&self) -> Vec<StatePart>;

    /// Whether all that it does first multiplies 8-bit activations on a GPU.
    fn takes_quantized(&self) -> bool {
        false
    }

    /// `(tokens, width)` to the same. Reads each sequence's state and writes those that `states` asks for.
    ///
    /// # Errors
    /// If the device fails.
    fn forward(&self, x: &Input, memory: &LayerMemory, states: &StateBatch) -> Result<Tensor>;
}

impl Mixer {
    /// The shape of its cache of keys and values, if it has one of its own.
    pub(super) fn cache_shape(&self, blocks: usize, block_size: usize) -> Option<CacheShape> {
        let attention = match self {
            Self::Attention(attention) => attention,
            Self::Both(both) => &both.attention,
            Self::Latent(latent) => return Some(latent.cache_shape(blocks, block_size)),
            _ => return None,
        };
        let own = attention.source.is_none();
        own.then(|| attention.cache_shape(blocks, block_size))
    }

    /// Whether all that it does first multiplies 8-bit activations on a GPU.
    pub(super) fn takes_quantized(&self) -> bool {
        match self {
            Self::Attention(attention) => attention.projections.takes_quantized(),
            Self::Latent(latent) => latent.takes_quantized(),
            Self::Recurrent(recurrent) => recurrent.takes_quantized(),
            Self::Both(both) => {
                both.attention.projections.takes_quantized() && both.recurrent.takes_quantized()
            }
            Self::FeedForward(feed_forward) => feed_forward.takes_quantized(),
        }
    }

    /// The 8 bits that all that it does first takes so many rows in.
    pub(super) fn wants(&self, rows: usize) -> Result<Wanted> {
        let float8 = match self {
            Self::Attention(attention) => attention.projections.takes_float8(rows)?,
            Self::FeedForward(feed_forward) => return feed_forward.wants(rows),
            Self::Latent(_) | Self::Recurrent(_) | Self::Both(_) => false,
        };
        Ok(match float8 {
            true => Wanted::Floats,
            false => Wanted::integers(self.takes_quantized()),
        })
    }

    /// Bytes of what a token leaves in its caches.
    pub(super) fn token_bytes(&self, format: CacheFormat) -> usize {
        match (self, self.cache_shape(1, 1)) {
            (_, None) => 0,
            (Self::Latent(attention), Some(shape)) => {
                let index = attention.index_shape(shape);
                let shapes = index.iter().chain([&shape]);
                shapes.map(|shape| shape.latent_bytes(format.keys)).sum()
            }
            (_, Some(shape)) => shape.bytes(format),
        }
    }

    /// Reserves what it keeps.
    pub(super) fn reserve(&self, cache: &CacheOptions, device: &Device) -> Result<LayerMemory> {
        let format = CacheFormat::from(cache.dtype);
        let latent = |shape| {
            if format.keys != format.values {
                bail!("this model's keys and values are one latent vector, which has one type, not {}", cache.dtype)
            }
            if format.turn_keys && cache.dtype.rotation == KvRotation::On {
                bail!("latent vectors do not turn before they are rounded; use --kv-rotation off")
            }
            PagedCache::latent(shape, format.keys, device)
        };
        let shape = self.cache_shape(cache.blocks, cache.block_size);
        let (paged, index) = match (self, shape) {
            (_, None) => (None, None),
            (Self::Latent(attention), Some(shape)) => {
                let index = attention.index_shape(shape).map(latent).transpose()?;
                (Some(latent(shape)?), index)
            }
            (_, Some(shape)) => (Some(PagedCache::new(shape, format, device)?), None),
        };
        Ok(LayerMemory {
            cache: paged,
            index,
            state: LayerMemory::states(&self.state(), cache.states, device)?,
        })
    }

    /// What a sequence leaves behind in it besides keys and values.
    pub(super) fn state(&self) -> Vec<StatePart> {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::FeedForward(_) => Vec::new(),
            Self::Recurrent(recurrent) => recurrent.state(),
            Self::Both(both) => both.recurrent.state(),
        }
    }

    /// Keys before its own that a row sees, where it has a cache and a sliding window.
    pub(super) fn window(&self) -> Option<usize> {
        match self {
            Self::Attention(attention) => attention.left,
            Self::Both(both) => both.attention.left,
            Self::Latent(_) | Self::Recurrent(_) | Self::FeedForward(_) => None,
        }
    }

    pub(super) fn forward(
        &self,
        x: &Input,
        memories: &mut [LayerMemory],
        layer: usize,
        pass: &Pass,
    ) -> Result<Tensor> {
        let source = match self {
            Self::Attention(attention) => attention.source,
            _ => None,
        };
        let memory = &mut memories[source.unwrap_or(layer)];
        match self {
            Self::Attention(attention) => attention.forward(x, memory, pass),
            Self::Latent(latent) => latent.forward(x, memory, pass),
            Self::Recurrent(recurrent) => recurrent.forward(x, memory, pass.states()?),
            Self::Both(both) => {
                let attended = both.attention.forward(x, memory, pass)?;
                let carried = both.recurrent.forward(x, memory, pass.states()?)?;
                match both.counts {
                    true => attended + carried,
                    false => Ok(attended),
                }
            }
            Self::FeedForward(feed_forward) => feed_forward.forward(x),
        }
    }
}
