//! The fields of `/completion`, and what they ask of the engine.

use super::prompts::{PromptTokens, Prompts};
use super::reply::{Replies, Told};
use super::settings;
use crate::completion::LineLimits;
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::generation::{check_top_logprobs, PlainText, Prompt, SamplingFields, Wishes};
use schemars::JsonSchema;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use worker::http::ApiError;

/// Most fields that an answer can be cut down to.
const MAX_RESPONSE_FIELDS: usize = 64;

/// The fields of a completion in llama.cpp's API, besides those of [`SamplingFields`].
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct NativeFields {
    /// What to go on from: a text, tokens, texts and tokens in one list, `{"prompt_string", "multimodal_data"}` with
    /// pictures and sounds in base64 for each `<__media__>` of the text, or a list of these.
    pub prompt: Option<Prompts>,
    /// How many alternatives each token is reported with; 0 reports no probabilities.
    #[serde(alias = "logprobs")]
    pub n_probs: Option<usize>,
    /// Whether probabilities are those that the samplers have left.
    pub post_sampling_probs: Option<bool>,
    /// Whether keys and values of an equal beginning are used where they are known; so if absent.
    pub cache_prompt: Option<bool>,
    /// The slot to run in, which is waited for; -1 is any.
    pub id_slot: Option<i64>,
    /// First tokens that stay when the context is shifted; -1 is the prompt.
    pub n_keep: Option<i64>,
    /// Not supported other than 0: tokens that are dropped when the context is shifted, which is half of them.
    pub n_discard: Option<i64>,
    /// A line that is indented by fewer characters ends the answer.
    pub n_indent: Option<usize>,
    /// Not supported above 1: tokens that samplers leave at least.
    pub min_keep: Option<usize>,
    /// Ends the answer after so many milliseconds from its first token, once it has a line feed; 0 or less is off.
    pub t_max_predict_ms: Option<i64>,
    /// The fields that are told of an answer, with slashes for those inside of others; all if empty.
    pub response_fields: Option<Vec<String>>,
}

/// A request that is understood.
pub struct Understood {
    /// The fields that all APIs have.
    pub sampling: SamplingFields,
    /// The prompts.
    pub prompts: Vec<(Prompt, PlainText)>,
    /// How its answers are told.
    pub replies: Replies,
}

impl NativeFields {
    /// What the fields ask for, with prompts that are tokens already.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub fn understand(
        self,
        app: &App,
        model: &Arc<TextModel>,
        mut sampling: SamplingFields,
        prompts: Vec<PromptTokens>,
        is_list: bool,
    ) -> Result<Understood, ApiError> {
        let wishes = self.wishes()?;
        let top_logprobs = match self.n_probs.unwrap_or(0) {
            0 => None,
            count => Some(check_top_logprobs("n_probs", count)?),
        };
        // Nothing is generated where only the prompt is to be known: but for a token that nobody sees.
        let is_silent = sampling.n_predict == Some(0);
        if is_silent {
            sampling.n_predict = Some(1);
        }
        let options = sampling.sampling(&app.options.sampling, &model.tokenizer, 0)?;
        let most = sampling.most_tokens(&app.options, false)?;
        let settings = settings::of_request(&sampling, &self, &options, most, &model.tokenizer);
        let told = |(tokens, _): &PromptTokens| Told::of(&model.tokenizer, tokens);
        let replies = Replies {
            model: model.clone(),
            model_name: app.options.model.clone(),
            prompts: prompts.iter().map(told).collect(),
            per_prompt: sampling.choices()?,
            is_list,
            is_silent,
            settings,
            seed: 0,
            return_tokens: sampling.return_tokens.unwrap_or(false),
            after_sampling: wishes.after_sampling,
            tells_took: sampling.timings_per_token.unwrap_or(false),
            fields: self.response_fields.unwrap_or_default(),
        };
        let prompt = |(tokens, media): PromptTokens| {
            let wishes = Wishes {
                keep: self.n_keep.map(|keep| match usize::try_from(keep) {
                    Ok(keep) => keep,
                    Err(_) => tokens.len(),
                }),
                ..wishes
            };
            let prompt = Prompt {
                media,
                top_logprobs,
                wishes,
                ..Prompt::plain(tokens, &sampling)?
            };
            Ok((prompt, PlainText))
        };
        let prompts = prompts.into_iter().map(prompt);
        Ok(Understood {
            prompts: prompts.collect::<Result<_, ApiError>>()?,
            sampling,
            replies,
        })
    }

    /// What they ask of the engine, but for what depends on the prompt.
    fn wishes(&self) -> Result<Wishes, ApiError> {
        let refuse =
            |field: &str, reason: &str| Err(ApiError::field(field, format!("{field}: {reason}")));
        if self.n_discard.is_some_and(|count| count != 0) {
            return refuse(
                "n_discard",
                "half of the tokens are dropped when the context is shifted, not a number of them; leave it out",
            );
        }
        if self.min_keep.is_some_and(|count| count > 1) {
            return refuse(
                "min_keep",
                "samplers leave one token at least, no more; leave it out",
            );
        }
        if self.n_keep.is_some_and(|keep| keep < -1) {
            return refuse("n_keep", "it is a number of tokens, or -1 for the prompt");
        }
        let fields = self.response_fields.as_ref();
        if fields.is_some_and(|fields| fields.len() > MAX_RESPONSE_FIELDS) {
            let reason = format!("at most {MAX_RESPONSE_FIELDS} are possible");
            return refuse("response_fields", &reason);
        }
        let slot = match self.id_slot {
            None | Some(-1) => None,
            Some(id) => match usize::try_from(id) {
                Ok(id) => Some(id),
                Err(_) => return refuse("id_slot", "it is the number of a slot, or -1 for any"),
            },
        };
        let most_time = self.t_max_predict_ms.and_then(|ms| u64::try_from(ms).ok());
        Ok(Wishes {
            slot,
            afresh: self.cache_prompt == Some(false),
            after_sampling: self.post_sampling_probs.unwrap_or(false),
            keep: None,
            lines: LineLimits {
                min_indent: self.n_indent.unwrap_or(0),
                most_time: most_time.filter(|ms| *ms > 0).map(Duration::from_millis),
            },
        })
    }
}
