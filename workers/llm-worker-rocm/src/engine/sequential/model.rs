//! What the register of architectures says of a model of candle-transformers, and what loading one gives.

use super::settings::Settings;
use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

/// An architecture that candle-transformers runs.
#[derive(Debug, Clone, Copy)]
pub struct SequentialModel {
    /// Whether the output matrix is the embedding table unless the file says otherwise.
    pub(crate) tied: bool,
    /// Whether its code computes in f16 and bf16; else weights become f32.
    pub(crate) halves: bool,
    /// A tensor that the model's code asks for, and the file's that stands for it if there is none of its name.
    pub(crate) stand_ins: &'static [(&'static str, &'static str)],
    /// Makes it of a folder.
    pub(crate) load: fn(&Settings, VarBuilder) -> LoadResult,
}

impl SequentialModel {
    /// One that is loaded so, and is as usual otherwise.
    pub(crate) const fn of(load: fn(&Settings, VarBuilder) -> LoadResult) -> Self {
        Self {
            tied: false,
            halves: false,
            stand_ins: &[],
            load,
        }
    }
}

/// What loading a folder gives.
pub(crate) type LoadResult = std::result::Result<Loaded, LoadError>;

/// Why a model was not made.
pub(crate) enum LoadError {
    /// The configuration is at fault.
    Settings(String),
    /// candle or the file is.
    Candle(candle_core::Error),
}

impl From<String> for LoadError {
    fn from(reason: String) -> Self {
        Self::Settings(reason)
    }
}

impl From<candle_core::Error> for LoadError {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(error)
    }
}

/// Logits behind the last of `(1, tokens)`, whose first has the given position; vocabulary elements in any shape.
/// Position 0 begins another sequence.
pub(crate) type ForwardFn = Box<dyn FnMut(&Tensor, usize) -> Result<Tensor> + Send>;

/// How many tokens a model takes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pieces {
    /// Any number, at any position.
    Any,
    /// Any number at position 0, then one: its masks or its state are made for whole prompts.
    First,
}

/// A loaded model with what the engine asks.
pub(crate) struct Loaded {
    pub forward: ForwardFn,
    pub vocab_size: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Elements that each token adds to the state.
    pub token_elements: usize,
    pub pieces: Pieces,
}

impl Loaded {
    /// A model whose state is the keys and values of attention, as the configuration has them.
    pub(super) fn of_attention(
        settings: &Settings,
        context: usize,
        pieces: Pieces,
        forward: ForwardFn,
    ) -> LoadResult {
        Ok(Self {
            forward,
            vocab_size: settings.number("vocab_size")?,
            context,
            token_elements: settings.attention_elements()?,
            pieces,
        })
    }
}

/// A model that is told to forget its sequence.
pub(super) fn forgetting<M: Send + 'static>(
    mut model: M,
    forget: fn(&mut M),
    forward: fn(&mut M, &Tensor, usize) -> Result<Tensor>,
) -> ForwardFn {
    Box::new(move |tokens, position| {
        if position == 0 {
            forget(&mut model);
        }
        forward(&mut model, tokens, position)
    })
}
