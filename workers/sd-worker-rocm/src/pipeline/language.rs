//! Language models as a family asks them: what stands around a prompt, and which of the model's states are read.

use super::module::Module;
use super::text::Prompt;
use crate::editing::resize::Filter;
use crate::models::language::seeing::{Seeing, SeeingConfig};
use crate::models::language::vision::{Patches, VisionConfig};
use crate::models::language::{Language, LanguageConfig};
use crate::models::VarBuilder;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor, D};
use image::RgbImage;
use serde::Deserialize;
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

/// How pictures are prepared: `preprocessor_config.json`, as far as it is followed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Preparation {
    image_mean: [f32; 3],
    image_std: [f32; 3],
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    size: Edges,
    rescale_factor: f64,
    do_resize: bool,
    do_rescale: bool,
    do_normalize: bool,
    resample: u8,
}

/// Least and most pixels, under names that once meant something else.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Edges {
    shortest_edge: Option<usize>,
    longest_edge: Option<usize>,
}

impl Default for Preparation {
    fn default() -> Self {
        Self {
            image_mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            image_std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
            min_pixels: None,
            max_pixels: None,
            size: Edges::default(),
            rescale_factor: 1.0 / 255.0,
            do_resize: true,
            do_rescale: true,
            do_normalize: true,
            resample: 3,
        }
    }
}

impl Preparation {
    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> std::result::Result<(), String> {
        for (name, set) in [
            ("do_resize", self.do_resize),
            ("do_rescale", self.do_rescale),
            ("do_normalize", self.do_normalize),
        ] {
            if !set {
                return Err(format!("{name} false is not implemented"));
            }
        }
        if self.resample != 3 {
            return Err(format!(
                "resample {} is not implemented; 3, bicubic, is",
                self.resample
            ));
        }
        if (self.rescale_factor * 255.0 - 1.0).abs() > 1e-3 {
            return Err("rescale_factor other than 1/255 is not implemented".to_string());
        }
        if !self.image_std.iter().all(|deviation| *deviation > 0.0) {
            return Err("image_std is not positive".to_string());
        }
        let (least, most) = self.pixels();
        match least <= most && most > 0 {
            true => Ok(()),
            false => Err(format!("{least} to {most} pixels are not possible")),
        }
    }

    fn pixels(&self) -> (usize, usize) {
        let least = self.min_pixels.or(self.size.shortest_edge);
        let most = self.max_pixels.or(self.size.longest_edge);
        (least.unwrap_or(56 * 56), most.unwrap_or(28 * 28 * 1280))
    }

    /// A picture's size in whole rows of `unit` pixels, within the limits.
    fn rows(&self, (width, height): (usize, usize), unit: usize) -> (usize, usize) {
        let (least, most) = self.pixels();
        let per_unit = |side: usize, factor: f64| side as f64 * factor / unit as f64;
        let whole = |side| (per_unit(side, 1.0).round_ties_even() as usize) * unit;
        let (wide, high) = (whole(width), whole(height));
        let area = (width * height).max(1) as f64;
        if wide * high > most {
            let factor = (most as f64 / area).sqrt();
            let fit = |side| (per_unit(side, factor).floor() as usize).max(1) * unit;
            (fit(width), fit(height))
        } else if wide * high < least {
            let factor = (least as f64 / area).sqrt();
            let fit = |side| (per_unit(side, factor).ceil() as usize) * unit;
            (fit(width), fit(height))
        } else {
            (wide.max(unit), high.max(unit))
        }
    }

    /// A picture cut into patches.
    fn patches(
        &self,
        picture: &RgbImage,
        size: (usize, usize),
        config: &VisionConfig,
    ) -> CandleResult<Patches> {
        let shown = Filter::Lanczos.resize(picture, size.0 as u32, size.1 as u32);
        let (width, height) = self.rows(size, config.unit());
        let whole = Filter::Bicubic.resize(&shown, width as u32, height as u32);
        Patches::new(&whole, self.image_mean, self.image_std, config)
    }
}

/// A tower for pictures of a language model, and how it is used.
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
            let states = (question.states)(config.num_hidden_layers);
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
        text.push_str(prompt);
        text.push_str(after);
        let encoding = self
            .tokenizer
            .encode(text, true)
            .map_err(|e| Error::Usage(format!("the prompt cannot be tokenised: {e}")))?;
        let mut ids = encoding.get_ids().to_vec();
        ids.truncate(dropped + longest);
        if let Some(sight) = sight {
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
            read(&states?, dropped)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers' `smart_resize` says so.
    #[test]
    fn pictures_in_whole_rows_within_limits() {
        let usual = Preparation::default();
        for (size, rows) in [
            ((48, 32), (84, 56)),
            ((2000, 3000), (812, 1204)),
            ((352, 384), (364, 392)),
            ((90, 10), (168, 28)),
        ] {
            assert_eq!(usual.rows(size, 28), rows, "{size:?}");
        }
        let wide: Preparation = serde_json::from_str(r#"{"max_pixels": 12845056}"#).unwrap();
        assert_eq!(wide.rows((1024, 1024), 28), (1036, 1036));
    }

    #[test]
    fn preparations_that_are_not_followed_are_refused() {
        assert_eq!(Preparation::default().check(), Ok(()));
        for (json, reason) in [
            (r#"{"do_resize": false}"#, "do_resize"),
            (r#"{"do_rescale": false}"#, "do_rescale"),
            (r#"{"do_normalize": false}"#, "do_normalize"),
            (r#"{"resample": 2}"#, "resample 2"),
            (r#"{"rescale_factor": 1.0}"#, "rescale_factor"),
            (r#"{"image_std": [0, 1, 1]}"#, "image_std"),
            (
                r#"{"size": {"shortest_edge": 9, "longest_edge": 3}}"#,
                "9 to 3",
            ),
        ] {
            let preparation: Preparation = serde_json::from_str(json).unwrap();
            let error = preparation.check().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
