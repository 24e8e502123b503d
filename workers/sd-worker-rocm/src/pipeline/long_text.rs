//! Prompts of many tokens through a language model: T5's encoder, or a decoder of any kind.

use super::language::{last_but_one, LanguageModel, LanguageText, Question, Show, Sight};
use super::module::Module;
use super::preparation::Preparation;
use super::text::Prompt;
use crate::models::change::Change;
use crate::models::language::seeing::SeeingConfig;
use crate::models::language::LanguageConfig;
use crate::models::processor;
use crate::models::t5::{self, T5Encoder};
use crate::prompt::tokenizer::library_tokenizer;
use crate::prompt::{parse, Segment};
use crate::weights::folder::Folder;
use crate::weights::{language, packed, Weights};
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_transformers::models::t5::Config as T5Config;
use serde_json::{json, Value};
use std::path::Path;
use tokenizers::Tokenizer;
use worker::{Error, Result};

/// How Z-Image asks Qwen3.
pub const Z_IMAGE: Question = Question {
    before: "<|im_start|>user\n",
    after: "<|im_end|>\n<|im_start|>assistant\n",
    dropped: 0,
    // As in its training.
    longest: 512,
    filled: None,
    states: last_but_one,
};

/// What follows a prompt that is shorter than T5's longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// Padding to the full length, which is read as if it were text.
    Full,
    /// One token of padding, which sees the text and is not seen by it.
    One,
    /// Rows of zeros behind the encoder, which sees the text alone.
    Zeros,
    /// Padding to the full length, which sees the text and is not seen by it.
    Unseen,
    /// Padding to the full length, which is read as if it were text and then left out.
    Cut,
    /// None: the text alone is read.
    None,
}

/// A language model's files.
// A model has a few of them.
#[allow(clippy::large_enum_variant)]
pub enum LongModel {
    /// T5's encoder.
    T5 {
        /// Sizes.
        config: T5Config,
        /// Tensors.
        weights: Weights,
        /// Its tokenizer.
        tokenizer: Tokenizer,
        /// Most tokens of a prompt.
        length: usize,
        /// What follows shorter ones.
        padding: Padding,
    },
    /// A decoder of any kind.
    Language(Box<LanguageModel>),
}

impl LongModel {
    /// Its tensors.
    pub fn weights(&self) -> &Weights {
        match self {
            Self::T5 { weights, .. } => weights,
            Self::Language(model) => &model.weights,
        }
    }

    /// The same, of which what is in 8-bit floats is loaded as wider numbers.
    #[must_use]
    pub fn expanded(mut self) -> Self {
        let weights = match &mut self {
            Self::T5 { weights, .. } => weights,
            Self::Language(model) => &mut model.weights,
        };
        *weights = std::mem::take(weights).expanded();
        self
    }

    /// T5's encoder from a part of a model.
    ///
    /// # Errors
    /// If configuration, tokenizer or weights are missing or damaged.
    pub fn t5(folder: &Folder, encoder: &str, tokenizer: &str, length: usize) -> Result<Self> {
        let part = folder.part(encoder);
        let config = t5::read_config(&part.config()?).map_err(|e| part.bad_config(e))?;
        Ok(Self::T5 {
            config,
            weights: part.weights()?,
            tokenizer: open_tokenizer(folder, &format!("{tokenizer}/tokenizer.json"))?,
            length,
            padding: Padding::Full,
        })
    }

    /// T5's encoder without a configuration; `tokenizer` is a file of `folder`.
    ///
    /// # Errors
    /// If its tensors make no model, or the tokenizer is missing or damaged.
    pub fn t5_alone(
        path: &Path,
        weights: Weights,
        folder: &Folder,
        tokenizer: &str,
        length: usize,
    ) -> Result<Self> {
        let config = packed::t5_config(&weights)
            .and_then(|config| t5::check_config(&config).map(|()| config))
            .map_err(|reason| Error::BadModel {
                path: path.to_path_buf(),
                reason: format!("T5: {reason}"),
            })?;
        Ok(Self::T5 {
            config,
            weights,
            tokenizer: open_tokenizer(folder, tokenizer)?,
            length,
            padding: Padding::Full,
        })
    }

    /// The same with other padding, where it is T5.
    #[must_use]
    pub fn padded(mut self, with: Padding) -> Self {
        if let Self::T5 { padding, .. } = &mut self {
            *padding = with;
        }
        self
    }

    /// A decoder from a part of a model; `tokenizer` is the folder that has its `tokenizer.json`.
    ///
    /// # Errors
    /// If configuration, tokenizer or weights are missing or damaged, or the configuration is not implemented.
    pub fn language(
        folder: &Folder,
        encoder: &str,
        tokenizer: &str,
        question: Question,
    ) -> Result<Self> {
        let part = folder.part(encoder);
        let json: Value = part.config()?;
        Ok(Self::Language(Box::new(LanguageModel {
            config: LanguageConfig::from_json(&json).map_err(|e| part.bad_config(e))?,
            weights: language::decoder(&part.weights()?),
            tokenizer: open_tokenizer(folder, &format!("{tokenizer}/tokenizer.json"))?,
            question,
            before_negative: None,
            instructed: false,
            sight: None,
        })))
    }

    /// The same of a decoder that sees; `processor` is the folder that has its `preprocessor_config.json`.
    ///
    /// # Errors
    /// Those of [`LongModel::language`].
    pub fn seeing(
        folder: &Folder,
        encoder: &str,
        tokenizer: &str,
        processor: &str,
        question: Question,
        show: Show,
    ) -> Result<Self> {
        let part = folder.part(encoder);
        let json: Value = part.config()?;
        let config = SeeingConfig::from_json(&json).map_err(|e| part.bad_config(e))?;
        let name = format!("{processor}/preprocessor_config.json");
        let check = |preparation: &Preparation| preparation.check(&config.vision);
        let preparation = processor::of_folder(folder, &name, Preparation::default(), check)?;
        Ok(Self::Language(Box::new(LanguageModel {
            config: config.language.clone(),
            weights: language::seeing(&part.weights()?),
            tokenizer: open_tokenizer(folder, &format!("{tokenizer}/tokenizer.json"))?,
            question,
            before_negative: None,
            instructed: false,
            sight: Some(Sight::There {
                config: Box::new(config),
                preparation,
                show,
            }),
        })))
    }

    /// The same, before whose negative prompts something else stands.
    #[must_use]
    pub fn with_before_negative(mut self, before: &'static str) -> Self {
        if let Self::Language(model) = &mut self {
            model.before_negative = Some(before);
        }
        self
    }

    /// The same, which reads prompts in lower case, and of what stands before them the first and the last token only.
    #[must_use]
    pub fn instructed(mut self) -> Self {
        if let Self::Language(model) = &mut self {
            model.instructed = true;
        }
        self
    }

    /// A decoder without a configuration, of which this much is known; `tokenizer` is a file of `folder`. With `show` it
    /// sees, if the file has a tower for pictures.
    ///
    /// # Errors
    /// If its tensors make no model, or the tokenizer is missing or damaged.
    pub fn language_alone(
        path: &Path,
        weights: &Weights,
        known: &Value,
        folder: &Folder,
        tokenizer: &str,
        question: Question,
        show: Option<Show>,
    ) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason: format!("the language model: {reason}"),
        };
        let decoder = language::decoder(weights);
        let config = language::config(&decoder, known).map_err(bad)?;
        let vision = language::vision_config(weights).map_err(bad)?;
        let (weights, sight) = match (show, vision) {
            (None, _) => (decoder, None),
            (Some(_), None) => (decoder, Some(Sight::Missing)),
            (Some(show), Some(vision)) => {
                let config = SeeingConfig::new(config.clone(), vision, None).map_err(bad)?;
                let sight = Sight::There {
                    config: Box::new(config),
                    preparation: Preparation::default(),
                    show,
                };
                (language::seeing(weights), Some(sight))
            }
        };
        Ok(Self::Language(Box::new(LanguageModel {
            config,
            weights,
            tokenizer: open_tokenizer(folder, tokenizer)?,
            question,
            before_negative: None,
            instructed: false,
            sight,
        })))
    }
}

/// What configuration files of Qwen3 say beside sizes.
pub fn qwen3() -> Value {
    json!({"model_type": "qwen3", "rope_theta": 1e6, "rms_norm_eps": 1e-6})
}

/// A language model that reads prompts.
// A model has a few of them.
#[allow(clippy::large_enum_variant)]
pub enum LongText {
    /// T5's encoder.
    T5 {
        /// The network.
        module: Module<T5Encoder>,
        /// Its tokenizer.
        tokenizer: Tokenizer,
        /// Most tokens of a prompt.
        length: usize,
        /// What follows shorter ones.
        padding: Padding,
        /// The token with which they are.
        pad: u32,
        /// The token that ends a prompt.
        end: u32,
    },
    /// A decoder.
    Language(Box<LanguageText>),
}

impl LongText {
    /// Loads the network.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(model: LongModel, dtype: DType, device: &Device, offload: bool) -> Result<Self> {
        Ok(match model {
            LongModel::T5 {
                config,
                weights,
                tokenizer,
                length,
                padding,
            } => {
                let (pad, end) = (config.pad_token_id as u32, config.eos_token_id as u32);
                // It exceeds f16 in its feed-forward layers.
                let dtype = match dtype {
                    DType::F16 => DType::BF16,
                    other => other,
                };
                let build = move |vb: crate::models::VarBuilder| T5Encoder::new(vb, &config);
                // Files of whole models have a decoder, too.
                let weights = weights
                    .renamed(|name| (!name.starts_with("decoder.")).then(|| name.to_string()));
                Self::T5 {
                    module: Module::new("T5", weights, dtype, device, offload, build)?,
                    tokenizer,
                    length,
                    padding,
                    pad,
                    end,
                }
            }
            LongModel::Language(model) => {
                Self::Language(Box::new(LanguageText::new(*model, dtype, device, offload)?))
            }
        })
    }

    /// `(1, tokens, width)`, f32.
    ///
    /// # Errors
    /// For prompts that cannot be tokenised, for weights where the model takes none, and if the device fails.
    pub fn encode(&mut self, prompt: &Prompt, device: &Device) -> Result<Tensor> {
        let segments = match prompt.weighted {
            true => parse(prompt.text),
            false => vec![Segment::Text(prompt.text.to_string(), 1.0)],
        };
        let weighted = |segment: &Segment| matches!(segment, Segment::Text(_, w) if *w != 1.0);
        let weighted = segments.iter().any(weighted);
        let segments: Vec<(String, f32)> = segments
            .into_iter()
            .map(|segment| match segment {
                Segment::Text(text, weight) => (text, weight),
                Segment::Break => (" ".to_string(), 1.0),
            })
            .collect();
        let text: String = segments.iter().map(|(text, _)| text.as_str()).collect();
        let (module, tokenizer, length, padding, pad, end) = match self {
            Self::Language(_) if weighted => {
                return Err(Error::Usage(
                    "this model's text encoder takes no weights in prompts; leave prompt_weights out, so that brackets are text"
                        .to_string(),
                ))
            }
            Self::Language(language) => return language.encode(&text, prompt),
            Self::T5 {
                module,
                tokenizer,
                length,
                padding,
                pad,
                end,
            } => (module, tokenizer, *length, *padding, *pad, *end),
        };
        let failed = |e| Error::Usage(format!("the prompt cannot be tokenised: {e}"));
        let mut tokens: Vec<(u32, f32)> = Vec::new();
        if weighted {
            for (text, weight) in segments {
                let encoding = tokenizer.encode(text, false).map_err(failed)?;
                tokens.extend(encoding.get_ids().iter().map(|id| (*id, weight)));
            }
            tokens.push((end, 1.0));
        } else {
            let encoding = tokenizer.encode(text, true).map_err(failed)?;
            tokens.extend(encoding.get_ids().iter().map(|id| (*id, 1.0)));
        }
        if tokens.len() > length {
            tokens.truncate(length - 1);
            tokens.push((end, 1.0));
        }
        let used = tokens.len();
        let kept = used;
        let (unseen, count) = match padding {
            Padding::Full | Padding::Cut => (false, length),
            Padding::One => (true, length.min(used + 1)),
            Padding::Unseen => (true, length),
            Padding::Zeros | Padding::None => (true, used),
        };
        tokens.resize(count, (pad, 1.0));
        let network = module.network()?;
        let encode = |ids: Vec<u32>, used: usize| {
            let seen = if unseen { used } else { count };
            let ids = Tensor::from_vec(ids, (1, count), device)?;
            let rows = network.forward_seeing(&ids, seen)?.to_dtype(DType::F32)?;
            match padding {
                Padding::Zeros => rows.pad_with_zeros(1, 0, length - count),
                Padding::Full | Padding::One | Padding::Unseen | Padding::None => Ok(rows),
                Padding::Cut => rows.narrow(1, 0, kept)?.contiguous(),
            }
        };
        let (ids, weights): (Vec<u32>, Vec<f32>) = tokens.into_iter().unzip();
        let text = || -> CandleResult<Tensor> {
            let text = encode(ids, used)?;
            if !weighted {
                return Ok(text);
            }
            // As ComfyUI weights: away from what an empty prompt says in the same place.
            let mut nothing = vec![pad; count];
            nothing[0] = end;
            let nothing = encode(nothing, 1)?;
            // What is behind the encoder's rows is zero in both.
            let mut weights = weights;
            weights.resize(text.dim(1)?, 1.0);
            let count = weights.len();
            let weights = Tensor::from_vec(weights, (1, count, 1), device)?;
            &nothing + (text - &nothing)?.broadcast_mul(&weights)?
        };
        text().map_err(Error::candle("encoding the prompt"))
    }

    /// Names of the tensors.
    pub fn names(&self) -> Vec<String> {
        let names = |names: &mut dyn Iterator<Item = &str>| names.map(String::from).collect();
        match self {
            Self::T5 { module, .. } => names(&mut module.names()),
            Self::Language(text) => names(&mut text.module.names()),
        }
    }

    /// As [`Module::add`].
    ///
    /// # Errors
    /// Those of [`Module::add`].
    pub fn add(&mut self, name: &str, change: &Change) -> candle_core::Result<()> {
        match self {
            Self::T5 { module, .. } => module.add(name, change),
            Self::Language(text) => text.module.add(name, change),
        }
    }

    /// As [`Module::restore`].
    ///
    /// # Errors
    /// Those of [`Module::restore`].
    pub fn restore(&mut self) -> Result<()> {
        match self {
            Self::T5 { module, .. } => module.restore(),
            Self::Language(text) => text.module.restore(),
        }
    }

    /// Whether it looks at pictures.
    pub fn sees(&self) -> bool {
        matches!(self, Self::Language(language) if language.sees())
    }

    /// Not needed for now.
    pub fn rest(&mut self) {
        match self {
            Self::T5 { module, .. } => module.rest(),
            Self::Language(language) => language.rest(),
        }
    }
}

fn open_tokenizer(folder: &Folder, name: &str) -> Result<Tokenizer> {
    let bad = |reason: String| Error::BadModel {
        path: folder.path(name),
        reason,
    };
    let bytes = folder.bytes(name)?;
    library_tokenizer(&bytes).map_err(bad)
}
