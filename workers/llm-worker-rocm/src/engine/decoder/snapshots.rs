//! The decoder's memory as bytes.

use super::block::Block;
use super::model::Decoder;
use super::network::Network;
use crate::engine::api::KvTypes;
use crate::engine::snapshots::{Place, Snapshots};
use candle_core::{bail, DType, Result, Tensor, WithDType};
use candle_rocm_flash_attn::paged::PagedCache;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

impl Network {
    /// The caches that have blocks of a kind; heads have those of full caches.
    fn caches(&self, of_windows: bool) -> impl Iterator<Item = &PagedCache> {
        let blocks = self.blocks.iter().zip(&self.memories);
        let of_kind = blocks.filter(move |(block, _)| self.is_of(block, of_windows));
        let heads = self.heads.iter().filter(move |_| !of_windows);
        let memories = of_kind.map(|(_, memory)| memory);
        memories
            .chain(heads.flat_map(|head| &head.memory))
            .flat_map(|memory| memory.cache.iter().chain(&memory.index))
    }

    /// Whether a block's caches have blocks of a kind.
    fn is_of(&self, block: &Block, of_windows: bool) -> bool {
        (self.window_blocks > 0 && block.mixer.window().is_some()) == of_windows
    }

    fn states(&self) -> impl Iterator<Item = &Tensor> {
        self.memories.iter().flat_map(|memory| &memory.state)
    }
}

/// How memory is laid out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Layout {
    kv_dtype: KvTypes,
    block_size: usize,
    on_cpu: bool,
    has_windows: bool,
    /// The dtype of recurrent states, if there are some.
    states: Option<String>,
    heads: usize,
    /// Bytes of a block, of one of windows, and of a slot of states.
    bytes: [usize; 3],
}

impl Layout {
    /// That of a model of several parts, in their order.
    pub(crate) fn of_all<'a>(parts: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let join = |all: Self, part: &Self| Self {
            states: all.states.or_else(|| part.states.clone()),
            heads: all.heads.max(part.heads),
            bytes: std::array::from_fn(|kind| all.bytes[kind] + part.bytes[kind]),
            ..all
        };
        let mut parts = parts.into_iter();
        let first = parts.next()?.clone();
        Some(parts.fold(first, join))
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let kind = if self.on_cpu { "CPU" } else { "GPU" };
        let states = match &self.states {
            Some(dtype) => format!(", states of {dtype}"),
            None => String::new(),
        };
        let windows = match self.has_windows {
            false => "",
            true => ", windows by themselves",
        };
        let heads = match self.heads {
            0 => String::new(),
            count => format!(", {count} heads"),
        };
        format!(
            "{} in blocks of {} on a {kind}{windows}{states}{heads}",
            self.kv_dtype, self.block_size
        )
    }

    /// Bytes of a place of this kind.
    pub(crate) fn bytes(&self, place: Place) -> usize {
        let [block, window, state] = self.bytes;
        match place {
            Place::Block(_) => block,
            Place::WindowBlock(_) => window,
            Place::State(_) => state,
        }
    }
}

impl Decoder {
    /// How its memory is laid out.
    pub(crate) fn layout(&self) -> Layout {
        let network = &self.network;
        let of = |windows| network.caches(windows).map(PagedCache::block_bytes).sum();
        Layout {
            kv_dtype: network.kv_dtype,
            block_size: network.block_size,
            on_cpu: network.device.is_cpu(),
            has_windows: network.window_blocks > 0,
            states: (network.states().next()).map(|state| format!("{:?}", state.dtype())),
            heads: network.heads.len(),
            bytes: [
                of(false),
                of(true),
                network.states().map(bytes_of_slot).sum(),
            ],
        }
    }
}

impl Snapshots for Decoder {
    fn model(&self) -> [u8; 32] {
        self.network.notes.fingerprint(&self.network.config)
    }

    fn format(&self) -> String {
        self.layout().describe()
    }

    fn bytes(&self, place: Place) -> usize {
        self.layout().bytes(place)
    }

    fn read(&self, place: Place, out: &mut Vec<u8>) -> Result<()> {
        let network = &self.network;
        let mut read = |of_windows: bool, block: u32| {
            let mut caches = network.caches(of_windows);
            caches.try_for_each(|cache| cache.read_block(block as usize, out))
        };
        match place {
            Place::Block(block) => read(false, block),
            Place::WindowBlock(block) => read(true, block),
            Place::State(slot) => network
                .states()
                .try_for_each(|state| read_slot(state, slot, out)),
        }
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.bytes(place) {
            bail!(
                "{} bytes for {place:?}, which has {}",
                bytes.len(),
                self.bytes(place)
            )
        }
        let network = &mut self.network;
        let mut rest = bytes;
        let mut next = |count: usize| {
            let (first, after) = rest.split_at(count);
            rest = after;
            first
        };
        let (of_windows, block) = match place {
            Place::State(slot) => {
                let mut states = network.states();
                return states
                    .try_for_each(|state| write_slot(state, slot, next(bytes_of_slot(state))));
            }
            Place::Block(block) => (false, block),
            Place::WindowBlock(block) => (true, block),
        };
        let windows = network.window_blocks > 0;
        let blocks = network.blocks.iter().zip(&mut network.memories);
        let of_kind =
            blocks.filter(|(own, _)| (windows && own.mixer.window().is_some()) == of_windows);
        let heads = network.heads.iter_mut().filter(|_| !of_windows);
        let memories = of_kind.map(|(_, memory)| memory);
        for memory in memories.chain(heads.flat_map(|head| &mut head.memory)) {
            for cache in memory.cache.iter_mut().chain(&mut memory.index) {
                let bytes = next(cache.block_bytes());
                cache.write_block(block as usize, bytes)?;
            }
        }
        Ok(())
    }
}

/// Bytes of a slot of one tensor.
fn bytes_of_slot(state: &Tensor) -> usize {
    state.elem_count() / state.dims()[0].max(1) * state.dtype().size_in_bytes()
}

fn read_slot(state: &Tensor, slot: u32, out: &mut Vec<u8>) -> Result<()> {
    let state = state.narrow(0, slot as usize, 1)?.flatten_all()?;
    match state.dtype() {
        DType::F32 => out.extend(state.to_vec1::<f32>()?.iter().flat_map(|x| x.to_le_bytes())),
        DType::F16 => out.extend(state.to_vec1::<f16>()?.iter().flat_map(|x| x.to_le_bytes())),
        DType::BF16 => out.extend(
            state
                .to_vec1::<bf16>()?
                .iter()
                .flat_map(|x| x.to_le_bytes()),
        ),
        other => bail!("saving states of {other:?} is not implemented"),
    }
    Ok(())
}

fn write_slot(state: &Tensor, slot: u32, bytes: &[u8]) -> Result<()> {
    fn numbers<T: WithDType, const N: usize>(
        state: &Tensor,
        bytes: &[u8],
        number: fn([u8; N]) -> T,
    ) -> Result<Tensor> {
        let chunks = bytes
            .chunks_exact(N)
            .filter_map(|chunk| chunk.try_into().ok());
        let mut shape = state.dims().to_vec();
        shape[0] = 1;
        Tensor::from_vec(
            chunks.map(number).collect::<Vec<T>>(),
            shape,
            state.device(),
        )
    }
    let new = match state.dtype() {
        DType::F32 => numbers(state, bytes, f32::from_le_bytes)?,
        DType::F16 => numbers(state, bytes, f16::from_le_bytes)?,
        DType::BF16 => numbers(state, bytes, bf16::from_le_bytes)?,
        other => bail!("restoring states of {other:?} is not implemented"),
    };
    state.slice_set(&new, 0, slot as usize)
}
