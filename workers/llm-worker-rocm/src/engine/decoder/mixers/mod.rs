//! What mixes tokens in a block: attention over what is cached, or a recurrence over a state.

mod attention;
mod convolution;
mod device;
mod host;

pub(super) use attention::Attention;
pub(super) use convolution::{Convolution, Gates, MAX_KERNEL};

use super::config::Base;
use super::input::Input;
use super::memory::{LayerMemory, StateBatch, StatePart};
use candle_core::{Result, Tensor};
use candle_rocm_flash_attn::paged::{PagedBatch, Rotary};

/// What a pass of rows has for all blocks.
pub(super) struct Pass<'a> {
    /// Where keys and values of the rows go.
    pub batch: &'a PagedBatch,
    /// Where states come from and go, if the model has states.
    pub states: Option<&'a StateBatch>,
    /// Rotary tables of the file and of blocks with a base of their own, as far as there are such blocks.
    pub global: Option<&'a Rotary>,
    pub local: Option<&'a Rotary>,
}

impl Pass<'_> {
    pub(super) fn rotary(&self, base: Option<Base>) -> Option<&Rotary> {
        match base? {
            Base::Global => self.global,
            Base::Local => self.local,
        }
    }

    /// What a recurrent block needs.
    pub(super) fn states(&self) -> Result<&StateBatch> {
        match self.states {
            Some(states) => Ok(states),
            None => candle_core::bail!("a step of a recurrent model has no states"),
        }
    }
}

/// Mixes tokens, `(tokens, width)` to the same.
pub(super) enum Mixer {
    Attention(Attention),
    Recurrent(Box<dyn Recurrent>),
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
    /// Whether all that it does first multiplies 8-bit activations on a GPU.
    pub(super) fn takes_quantized(&self) -> bool {
        match self {
            Self::Attention(attention) => attention.projections.takes_quantized(),
            Self::Recurrent(recurrent) => recurrent.takes_quantized(),
        }
    }

    /// What a sequence leaves behind in it besides keys and values.
    pub(super) fn state(&self) -> Vec<StatePart> {
        match self {
            Self::Attention(_) => Vec::new(),
            Self::Recurrent(recurrent) => recurrent.state(),
        }
    }

    pub(super) fn forward(
        &self,
        x: &Input,
        memories: &mut [LayerMemory],
        layer: usize,
        pass: &Pass,
    ) -> Result<Tensor> {
        let memory = &mut memories[layer];
        match self {
            Self::Attention(attention) => attention.forward(x, memory, pass),
            Self::Recurrent(recurrent) => recurrent.forward(x, memory, pass.states()?),
        }
    }
}
