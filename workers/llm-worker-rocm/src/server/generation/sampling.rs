//! How to choose tokens, and the limits of a request: the fields that all APIs have in common.

use super::bias::LogitBias;
use crate::engine::api::{SamplerOrder, SamplingOptions, MAX_TOP_LOGPROBS};
use crate::samplers::SamplerSettings;
use crate::server::app::AppOptions;
use crate::tokenizer::Tokenizer;
use schemars::JsonSchema;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;
use worker::http::{json, ApiError};
use worker::ids;

/// Most stop strings of a request, and the longest one in bytes: each token is compared with all of them.
const MAX_STOPS: usize = 64;
const MAX_STOP_BYTES: usize = 1024;
/// Most answers to one request.
pub const MAX_CHOICES: usize = 128;

/// One or several.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub enum Texts {
    /// One text.
    One(String),
    /// Several.
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextsVisitor)
    }
}

struct TextsVisitor;

impl<'de> Visitor<'de> for TextsVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text or a list of texts")
    }

    fn visit_str<E>(self, text: &str) -> Result<Texts, E> {
        Ok(Texts::One(text.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Texts, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = seq.next_element()? {
            if texts.len() >= MAX_STOPS {
                return Err(A::Error::custom(format!(
                    "a list of more than {MAX_STOPS} texts"
                )));
            }
            texts.push(text);
        }
        Ok(Texts::Many(texts))
    }
}

impl Texts {
    /// All of them.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        }
    }
}

/// How a stream behaves.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
pub struct StreamOptions {
    /// Whether a last chunk tells what the request took.
    pub include_usage: Option<bool>,
}

/// An adapter and how much of it.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub struct AdapterFields {
    /// Its number.
    pub id: usize,
    /// What its part is multiplied by.
    pub scale: f32,
}

/// The fields that all APIs have in common, under OpenAI's names; where OpenAI has none, under those of llama.cpp's
/// server and vLLM.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct SamplingFields {
    /// The model's name; may be left out.
    pub model: Option<String>,
    /// Whether the answer comes as server-sent events.
    pub stream: Option<bool>,
    /// How the stream behaves.
    pub stream_options: Option<StreamOptions>,
    /// Answers to give.
    #[serde(alias = "n_cmpl")]
    pub n: Option<usize>,
    /// llama.cpp's name of `max_tokens`, which counts for more than that.
    pub n_predict: Option<i64>,
    /// Most tokens of an answer; absent or -1 is as many as the context takes.
    pub max_tokens: Option<i64>,
    /// The newer name of `max_tokens`.
    pub max_completion_tokens: Option<i64>,
    /// Texts that end the answer and are not part of it.
    pub stop: Option<Texts>,
    /// 0 always takes the most likely token; higher is more varied.
    pub temperature: Option<f32>,
    /// Only the most likely tokens that together reach this probability; 1 is off.
    pub top_p: Option<f32>,
    /// Only this many of the most likely tokens; 0 is off.
    pub top_k: Option<i64>,
    /// Only tokens at least this fraction as likely as the most likely one; 0 is off.
    pub min_p: Option<f32>,
    /// Only the tokens whose surprise is nearest to the expected one and that together reach this probability; 1 is
    /// off.
    pub typical_p: Option<f32>,
    /// Makes recent tokens less likely, see `repeat_last_n`; 1 is off.
    #[serde(alias = "repetition_penalty")]
    pub repeat_penalty: Option<f32>,
    /// How many recent tokens, the prompt's included, `repeat_penalty` looks at; -1 is all.
    pub repeat_last_n: Option<i64>,
    /// Taken from a token's logit for each time that it was generated in this answer; tokens of the prompt do not
    /// count.
    pub frequency_penalty: Option<f32>,
    /// Taken from a token's logit if it was generated in this answer; tokens of the prompt do not count.
    pub presence_penalty: Option<f32>,
    /// Only tokens whose logit is at most so many standard deviations below the largest; 0 or less is off.
    pub top_n_sigma: Option<f32>,
    /// How often all tokens that reach `xtc_threshold` are left out but the least likely of them; 0 is off.
    pub xtc_probability: Option<f32>,
    /// The probability that counts as likely for that.
    pub xtc_threshold: Option<f32>,
    /// Makes tokens less likely that would go on with a repetition; 0 is off.
    pub dry_multiplier: Option<f32>,
    /// By how much each further token of a repetition counts more.
    pub dry_base: Option<f32>,
    /// Repetitions up to this length are not punished.
    pub dry_allowed_length: Option<usize>,
    /// How many recent tokens, the prompt's included, are looked at for repetitions; -1 is all, 0 is off.
    pub dry_penalty_last_n: Option<i64>,
    /// Texts that no repetition goes across.
    pub dry_sequence_breakers: Option<Texts>,
    /// The temperature goes up and down by so much, as the model is less or more sure; 0 is off.
    pub dynatemp_range: Option<f32>,
    /// What the share of the largest entropy is raised to for that.
    pub dynatemp_exponent: Option<f32>,
    /// Mirostat's version, 1 or 2, in place of all samplers but penalties and temperature; 0 is off.
    pub mirostat: Option<u32>,
    /// The surprise in bits that Mirostat aims at.
    pub mirostat_tau: Option<f32>,
    /// How fast Mirostat learns.
    pub mirostat_eta: Option<f32>,
    /// The probability of tokens that is aimed at (adaptive-p); below 0 is off.
    pub adaptive_target: Option<f32>,
    /// How much earlier tokens count for that, up to 0.99.
    pub adaptive_decay: Option<f32>,
    /// The order of samplers, by names or by letters in one text; those that are missing are off.
    pub samplers: Option<Texts>,
    /// Added to logits, by token: a map, or a list of pairs. A token is its number, or a text, which is all of that text's
    /// tokens; `false` in place of a number rules it out.
    pub logit_bias: Option<LogitBias>,
    /// The same seed gives the same answer; absent, null or negative is random, and told in the answer.
    pub seed: Option<i64>,
    /// Goes on after the token that ends an answer (for benchmarks).
    pub ignore_eos: Option<bool>,
    /// Most guesses at next tokens in a step, where the server guesses; 0 is none. Changes the time that an answer
    /// takes, not the answer.
    #[serde(rename = "speculative.n_max")]
    pub speculative_n_max: Option<usize>,
    /// Gives up after this many milliseconds; at most as long as the server allows.
    pub timeout_ms: Option<u64>,
    /// Whether a stream tells how much of the prompt is computed, as `prompt_progress`.
    pub return_progress: Option<bool>,
    /// Whether each chunk of a stream has `timings`.
    pub timings_per_token: Option<bool>,
    /// Whether answers in OpenAI's form tell what the model was given, as `__verbose`.
    pub verbose: Option<bool>,
    /// Whether answers list their tokens as numbers.
    pub return_tokens: Option<bool>,
    /// A grammar that the answer must follow: Lark, or GBNF if it has a rule `root ::=`.
    pub grammar: Option<String>,
    /// Whether the answer follows `grammar` (or its schema) only from where it comes to one of `grammar_triggers` on.
    pub grammar_lazy: Option<bool>,
    /// What begins a lazy grammar: `{"type": "word" | "pattern" | "pattern_full", "value": …}` or `{"type": "token",
    /// "token": …}`. llama.cpp's numbers of the types, 1, 2, 3 and 0, will do.
    #[serde(default, deserialize_with = "json::optional_values")]
    pub grammar_triggers: Option<Vec<Value>>,
    /// Control tokens that are text in answers, and that literals of a grammar in GBNF may be.
    pub preserved_tokens: Option<Texts>,
    /// A JSON schema that the answer must follow.
    #[serde(default, deserialize_with = "json::value")]
    pub json_schema: Option<Value>,
    /// The model's adapters that are added, by their numbers in `/lora-adapters`; those that are missing are not. Absent,
    /// the model's name tells: an adapter's, alone or behind the model's and a colon.
    pub lora: Option<Vec<AdapterFields>>,
    /// The answer's form: `{"type": "text" | "json_object" | "json_schema", …}`.
    #[serde(default, deserialize_with = "json::value")]
    pub response_format: Option<Value>,
}

impl SamplingFields {
    /// How to choose the tokens of an answer whose random sequence begins at `seed`.
    ///
    /// # Errors
    /// 400 that names the field; the engine checks the ranges.
    pub fn sampling(
        &self,
        defaults: &SamplingOptions,
        tokenizer: &Tokenizer,
        seed: u64,
    ) -> Result<SamplingOptions, ApiError> {
        // Off is a number on the wire and nothing in the engine.
        let unless = |value: Option<f32>, off: f32, default: Option<f32>| match value {
            Some(value) if value == off => None,
            Some(value) => Some(value),
            None => default,
        };
        let options = SamplingOptions {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: match self.top_k {
                Some(k) => usize::try_from(k).ok().filter(|&k| k > 0),
                None => defaults.top_k,
            },
            top_p: unless(self.top_p, 1.0, defaults.top_p),
            min_p: unless(self.min_p, 0.0, defaults.min_p),
            typical_p: unless(self.typical_p, 1.0, defaults.typical_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(defaults.repeat_penalty),
            repeat_last_n: match self.repeat_last_n {
                Some(n) => usize::try_from(n).unwrap_or(usize::MAX),
                None => defaults.repeat_last_n,
            },
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            logit_bias: match &self.logit_bias {
                Some(bias) => bias.by_token(tokenizer)?,
                None => HashMap::new(),
            },
            seed,
            ..defaults.clone()
        };
        let settings = self.sampler_settings()?;
        let refused = |reason: String| ApiError::field("mirostat", reason);
        settings.applied(options).map_err(refused)
    }

    /// The fields of further samplers.
    fn sampler_settings(&self) -> Result<SamplerSettings, ApiError> {
        let order = self.samplers.clone().map(|names| match names {
            Texts::One(text) => text.parse(),
            Texts::Many(names) => SamplerOrder::of_names(&names),
        });
        Ok(SamplerSettings {
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: self.dry_penalty_last_n,
            dry_sequence_breakers: self.dry_sequence_breakers.clone().map(Texts::into_vec),
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            adaptive_target: self.adaptive_target,
            adaptive_decay: self.adaptive_decay,
            order: order.transpose().map_err(|reason: String| {
                ApiError::field("samplers", format!("samplers: {reason}"))
            })?,
        })
    }

    /// The seed of the first answer: the one asked for, the server's, or a random one.
    pub fn first_seed(&self, default: Option<u64>) -> u64 {
        let asked = match self.seed {
            Some(seed) => u64::try_from(seed).ok(),
            None => default,
        };
        asked.unwrap_or_else(|| ids::seed(ids::JAVASCRIPT_BITS))
    }

    /// Most tokens of an answer; none only if `may_be_none`.
    ///
    /// # Errors
    /// 400 for two different numbers, or a negative one.
    pub fn max_tokens(&self, may_be_none: bool) -> Result<Option<usize>, ApiError> {
        let most = match (self.max_tokens, self.max_completion_tokens) {
            _ if self.n_predict.is_some() => self.n_predict,
            (Some(a), Some(b)) if a != b => {
                let reason = format!("max_tokens {a} and max_completion_tokens {b} contradict");
                return Err(ApiError::field("max_tokens", reason));
            }
            (a, b) => a.or(b),
        };
        match most {
            None | Some(-1) => Ok(None),
            Some(n) => usize::try_from(n)
                .ok()
                .filter(|&n| n > 0 || may_be_none)
                .map(Some)
                .ok_or_else(|| {
                    ApiError::field("max_tokens", format!("max_tokens {n} is not at least 1"))
                }),
        }
    }

    /// Most tokens of an answer: what the request says, or the server's default.
    ///
    /// # Errors
    /// As [`Self::max_tokens`].
    pub fn most_tokens(
        &self,
        options: &AppOptions,
        may_be_none: bool,
    ) -> Result<Option<usize>, ApiError> {
        let given = [self.n_predict, self.max_tokens, self.max_completion_tokens];
        match given.iter().any(Option::is_some) {
            true => self.max_tokens(may_be_none),
            false => Ok(options.max_tokens),
        }
    }

    /// The stop strings.
    ///
    /// # Errors
    /// 400 for too many or too long ones.
    pub fn stops(&self) -> Result<Vec<String>, ApiError> {
        let stops = self.stop.clone().map(Texts::into_vec).unwrap_or_default();
        if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.len() > MAX_STOP_BYTES) {
            return Err(ApiError::field(
                "stop",
                format!("at most {MAX_STOPS} stop strings of at most {MAX_STOP_BYTES} bytes"),
            ));
        }
        Ok(stops)
    }

    /// How many answers to give.
    ///
    /// # Errors
    /// 400 for none or too many.
    pub fn choices(&self) -> Result<usize, ApiError> {
        let n = self.n.unwrap_or(1);
        if (1..=MAX_CHOICES).contains(&n) {
            Ok(n)
        } else {
            Err(ApiError::field(
                "n",
                format!("n {n} is not from 1 to {MAX_CHOICES}"),
            ))
        }
    }

    /// When to give up.
    pub fn timeout(&self, options: &AppOptions) -> Option<Duration> {
        let asked = self.timeout_ms.map(Duration::from_millis);
        asked.into_iter().chain(options.timeout).min()
    }

    /// Whether the answer is a stream.
    pub fn stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Whether a stream tells how much of the prompt is computed.
    pub fn tells_progress(&self) -> bool {
        self.stream() && self.return_progress.unwrap_or(false)
    }

    /// Control tokens that are text in answers.
    pub fn preserved_tokens(&self) -> Vec<String> {
        let tokens = self.preserved_tokens.clone();
        tokens.map(Texts::into_vec).unwrap_or_default()
    }

    /// Whether the stream ends with usage.
    pub fn include_usage(&self) -> bool {
        let options = self.stream_options.unwrap_or_default();
        options.include_usage.unwrap_or(false)
    }
}

/// Checks how many alternatives a token is reported with.
///
/// # Errors
/// 400 for too many.
pub fn check_top_logprobs(field: &str, top: usize) -> Result<usize, ApiError> {
    if top > MAX_TOP_LOGPROBS {
        let reason = format!("{field} {top} is more than {MAX_TOP_LOGPROBS}");
        return Err(ApiError::field(field, reason));
    }
    Ok(top)
}

/// How many alternatives each token of a prompt is reported with, in vLLM's field.
///
/// # Errors
/// 400 for too many, and for streams, which have no place for them.
pub fn prompt_logprobs(
    asked: Option<i64>,
    fields: &SamplingFields,
) -> Result<Option<usize>, ApiError> {
    const FIELD: &str = "prompt_logprobs";
    let Some(asked) = asked else { return Ok(None) };
    if fields.stream() {
        let reason = "prompt_logprobs and stream exclude each other";
        return Err(ApiError::field(FIELD, reason));
    }
    let top = usize::try_from(asked).map_err(|_| {
        let reason = format!("prompt_logprobs {asked} is not from 0 to {MAX_TOP_LOGPROBS}");
        ApiError::field(FIELD, reason)
    })?;
    check_top_logprobs(FIELD, top).map(Some)
}
