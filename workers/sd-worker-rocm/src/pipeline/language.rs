//! Language models as a family asks them: what stands around a prompt, and which of the model's states are read.

use super::module::Module;
use super::preparation::Preparation;
use super::text::Prompt;
use crate::models::language::seeing::{Seeing, SeeingConfig};
use crate::models::language::{Language, LanguageConfig};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor, D};
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

/// How a family shows its language model the pictures of a request.
#[derive(Debug, Clone, Copy)]
pub struct Show {
    /// How it is asked where there are some.
    pub question: Question,
    /// What stands for each before the prompt, around the token of pictures; `{}` is its number.
    pub around: [&'static str; 2],
    /// The token that stands for a picture.
    pub token: &'static str,
    /// The width and height at which one of this width and height is shown, which may have to keep its size.
    pub size: fn(picture: (usize, usize), keep: bool) -> (usize, usize),
}

/// A tower for pictures of a language model, and how it is used.
// A model has one.
#[allow(clippy::large_enum_variant)]
pub enum Sight {
    /// The model should have one, and its file has none.
    Missing,
    /// The tower.
    There {
        /// The whole model's settings.
        config: Box<SeeingConfig>,
        /// How pictures are prepared.
        preparation: Preparation,
        /// How they are shown.
        show: Show,
    },
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
    /// What stands before a negative prompt instead, where that is something else.
    pub before_negative: Option<&'static str>,
    /// Whether prompts are read in lower case, and of what stands before them the first and the last token only.
    pub instructed: bool,
    /// How it sees, if it does.
    pub sight: Option<Sight>,
}

/// The network.
#[derive(Clone)]
pub(super) enum Network {
    Blind(Box<Language>),
    Seeing(Box<Seeing>),
}

/// A language model at work.
pub struct LanguageText {
    pub(super) module: Module<Network>,
    tokenizer: Tokenizer,
    question: Question,
    before_negative: Option<&'static str>,
    instructed: bool,
    sight: Option<Sight>,
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
            before_negative,
            instructed,
            sight,
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
        let seeing = match &sight {
            Some(Sight::There { config, .. }) => Some((**config).clone()),
            _ => None,
        };
        let build = move |vb: VarBuilder| {
            let states = (question.states)(config.layers);
            Ok(match &seeing {
                Some(config) => Network::Seeing(Box::new(Seeing::new(vb, config, &states)?)),
                None => Network::Blind(Box::new(Language::new(vb, &config, &states)?)),
            })
        };
        Ok(Self {
            module: Module::new("the language model", weights, dtype, device, offload, build)?,
            tokenizer,
            question,
            before_negative,
            instructed,
            sight,
            fill,
        })
    }

    /// `(1, tokens, width)`, f32; the width is that of all states that are read.
    ///
    /// # Errors
    /// For prompts that cannot be tokenised, and if the device fails.
    pub fn encode(&mut self, prompt: &str, about: &Prompt) -> Result<Tensor> {
        let sight = self.sight.as_ref().filter(|_| !about.pictures.is_empty());
        let show = match sight {
            None => None,
            Some(Sight::There { show, .. }) => Some(show),
            Some(Sight::Missing) => {
                return Err(Error::Usage(
                    "the text encoder's file has no tower to look at references with; give the model's own text_encoder folder with --text-encoders"
                        .to_string(),
                ))
            }
        };
        let question = show.map_or(self.question, |show| show.question);
        let Question {
            before,
            after,
            dropped,
            longest,
            ..
        } = question;
        let before = match self.before_negative {
            Some(other) if about.negative => other,
            _ => before,
        };
        let mut text = before.to_string();
        for (i, _) in about.pictures.iter().enumerate() {
            if let Some(show) = show {
                let [left, right] = show.around;
                let left = left.replace("{}", &(i + 1).to_string());
                text.push_str(&format!("{left}{}{right}", show.token));
            }
        }
        match self.instructed {
            true => text.push_str(prompt.to_lowercase().trim()),
            false => text.push_str(prompt),
        }
        text.push_str(after);
        let tokens = |text: &str| {
            let encoding = self.tokenizer.encode(text, true);
            let encoding = encoding
                .map_err(|e| Error::Usage(format!("the prompt cannot be tokenised: {e}")))?;
            Ok::<_, Error>(encoding.get_ids().to_vec())
        };
        let mut ids = tokens(&text)?;
        // Of an instruction the first and the last token count among those that are read.
        let skipped = match self.instructed && !before.is_empty() {
            true => tokens(before)?.len().saturating_sub(2),
            false => 0,
        };
        ids.truncate(dropped + skipped + longest);
        if let Some(sight) = sight {
            if let Sight::There { config, .. } = sight {
                let places = ids.iter().filter(|id| **id == config.picture_token);
                if places.count() != about.pictures.len() {
                    return Err(Error::Usage(
                        "the prompt has the text encoder's token for pictures in it; leave it out"
                            .to_string(),
                    ));
                }
            }
            let network = self.module.network()?;
            let looked = look(&network, &ids, about, sight);
            let read = looked.and_then(|states| read(&states, dropped));
            return read.map_err(Error::candle("encoding the prompt"));
        }
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
            let states = match &*network {
                Network::Blind(language) => language.forward(&ids, Some(&seen)),
                Network::Seeing(seeing) => seeing.language().forward(&ids, Some(&seen)),
            };
            let rows = read(&states?, dropped)?;
            if skipped == 0 {
                return Ok(rows);
            }
            let behind = rows.dim(1)? - 1 - skipped;
            let ends = [rows.narrow(1, 0, 1)?, rows.narrow(1, 1 + skipped, behind)?];
            Tensor::cat(&ends, 1)
        };
        encode().map_err(Error::candle("encoding the prompt"))
    }

    /// Whether it looks at pictures.
    pub fn sees(&self) -> bool {
        self.sight.is_some()
    }

    /// Not needed for now.
    pub fn rest(&mut self) {
        self.module.rest();
    }
}

/// The states of a text with pictures.
fn look(
    network: &Network,
    ids: &[u32],
    about: &Prompt,
    sight: &Sight,
) -> CandleResult<Vec<Tensor>> {
    let (
        Network::Seeing(seeing),
        Sight::There {
            config,
            preparation,
            show,
        },
    ) = (network, sight)
    else {
        candle_core::bail!("the model does not see")
    };
    let patches = about.pictures.iter().map(|picture| {
        let (width, height) = picture.dimensions();
        let size = (show.size)((width as usize, height as usize), about.keep_size);
        preparation.patches(picture, size, &config.vision)
    });
    seeing.forward(ids, &patches.collect::<CandleResult<Vec<_>>>()?)
}

/// States side by side, without the tokens at the beginning: `(1, tokens, width)`, f32.
fn read(states: &[Tensor], dropped: usize) -> CandleResult<Tensor> {
    let both = Tensor::cat(states, D::Minus1)?;
    let tokens = both.dim(1)?;
    let dropped = dropped.min(tokens.saturating_sub(1));
    let read = both.narrow(1, dropped, tokens - dropped)?;
    read.contiguous()?.to_dtype(DType::F32)
}
