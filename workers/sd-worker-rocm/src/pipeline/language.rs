//! Language models as a family asks them: what stands around a prompt, and which of the model's states are read.

use super::module::Module;
use crate::models::language::{Language, LanguageConfig};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Device, Tensor, D};
use tokenizers::Tokenizer;
use worker::{Error, Result};

/// On which side padding stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Before the prompt.
    Left,
    /// After it.
    Right,
}

/// How a family asks its language model.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// What stands before the prompt.
    pub before: &'static str,
    /// What stands after it.
    pub after: &'static str,
    /// Tokens at the beginning that are asked and not read.
    pub dropped: usize,
    /// Most tokens that are read: what is longer is cut off at its end.
    pub longest: usize,
    /// With what shorter prompts are filled up to that, and where: then padding is read, too.
    pub filled: Option<(&'static str, Side)>,
    /// The states that are read of a model of so many layers, as [`Language::new`] counts; they come side by side.
    pub states: fn(layers: usize) -> Vec<usize>,
}

/// The state before the last layer, as many families read it.
pub fn last_but_one(layers: usize) -> Vec<usize> {
    vec![layers.saturating_sub(1)]
}

/// The last state, which has gone through the last norm.
pub fn last(layers: usize) -> Vec<usize> {
    vec![layers]
}

/// A language model's files, and what it is asked.
pub struct LanguageModel {
    /// Its settings.
    pub config: LanguageConfig,
    /// Its tensors, under the names of [`crate::weights::language`].
    pub weights: Weights,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// How it is asked.
    pub question: Question,
}

/// A language model at work.
pub struct LanguageText {
    pub(super) module: Module<Language>,
    tokenizer: Tokenizer,
    question: Question,
    /// The token that fills prompts up.
    fill: Option<(u32, Side)>,
}

impl LanguageText {
    /// Loads the network.
    ///
    /// # Errors
    /// If weights do not fit the configuration, the vocabulary lacks the token of padding, or the device has no room.
    pub fn new(model: LanguageModel, dtype: DType, device: &Device, offload: bool) -> Result<Self> {
        let LanguageModel {
            config,
            weights,
            tokenizer,
            question,
        } = model;
        let dtype = match dtype {
            DType::F16 if config.kind.exceeds_f16() => DType::BF16,
            other => other,
        };
        let fill = match question.filled {
            None => None,
            Some((token, side)) => match tokenizer.token_to_id(token) {
                Some(id) => Some((id, side)),
                None => {
                    return Err(Error::Usage(format!(
                        "the text encoder's tokenizer has no token {token} to fill prompts up with"
                    )))
                }
            },
        };
        let build = move |vb: VarBuilder| {
            let states = (question.states)(config.num_hidden_layers);
            Language::new(vb, &config, &states)
        };
        Ok(Self {
            module: Module::new("the language model", weights, dtype, device, offload, build)?,
            tokenizer,
            question,
            fill,
        })
    }

    /// `(1, tokens, width)`, f32; the width is that of all states that are read.
    ///
    /// # Errors
    /// For prompts that cannot be tokenised, and if the device fails.
    pub fn encode(&mut self, prompt: &str) -> Result<Tensor> {
        let Question {
            before,
            after,
            dropped,
            longest,
            ..
        } = self.question;
        let encoding = self
            .tokenizer
            .encode(format!("{before}{prompt}{after}"), true)
            .map_err(|e| Error::Usage(format!("the prompt cannot be tokenised: {e}")))?;
        let mut ids = encoding.get_ids().to_vec();
        ids.truncate(dropped + longest);
        let padding = match self.fill {
            Some((id, side)) => {
                let missing = dropped + longest - ids.len();
                let padding = std::iter::repeat_n(id, missing);
                let at = if side == Side::Left { 0 } else { ids.len() };
                ids.splice(at..at, padding);
                at..at + missing
            }
            None => 0..0,
        };
        let seen: Vec<bool> = (0..ids.len()).map(|at| !padding.contains(&at)).collect();
        let network = self.module.network()?;
        let encode = || {
            let states = network.forward(&ids, Some(&seen))?;
            let both = Tensor::cat(&states, D::Minus1)?;
            let dropped = dropped.min(ids.len().saturating_sub(1));
            let read = both.narrow(1, dropped, ids.len() - dropped)?;
            read.contiguous()?.to_dtype(DType::F32)
        };
        encode().map_err(Error::candle("encoding the prompt"))
    }

    /// Not needed for now.
    pub fn rest(&mut self) {
        self.module.rest();
    }
}
