//! What a model was given for an answer, for those who look for a mistake.

use crate::completion::TextToken;
use crate::server::app::App;
use crate::server::backend::TextModel;
use crate::server::generation::{Prompt, SamplingFields};
use crate::server::native::reply::spelled;
use crate::server::native::settings;
use serde_json::{json, Map, Value};
use worker::http::ApiError;

/// What `__verbose` tells, with the names of llama.cpp's server.
pub struct Verbose {
    /// The text of each prompt, control tokens spelled out.
    prompts: Vec<String>,
    per_prompt: usize,
    settings: Map<String, Value>,
}

impl Verbose {
    /// For a request with these prompts, if it or the server wants it told.
    ///
    /// # Errors
    /// 400 for a setting that is none.
    pub fn of<'a>(
        app: &App,
        model: &TextModel,
        fields: &SamplingFields,
        prompts: impl Iterator<Item = &'a Prompt>,
    ) -> Result<Option<Self>, ApiError> {
        if !fields.verbose.unwrap_or(app.options.verbose) {
            return Ok(None);
        }
        let tokenizer = &model.tokenizer;
        let options = fields.sampling(&app.options.sampling, tokenizer, 0)?;
        let most = fields.most_tokens(&app.options, true)?;
        let own = Default::default();
        let text = |prompt: &Prompt| spelled(tokenizer, prompt.tokens.iter().copied());
        Ok(Some(Self {
            prompts: prompts.map(text).collect(),
            per_prompt: fields.choices()?,
            settings: settings::of_request(fields, &own, &options, most, tokenizer),
        }))
    }

    /// What is told of an answer, whose tokens are these as far as they are kept.
    pub fn json(&self, model: &TextModel, index: usize, seed: u64, tokens: &[TextToken]) -> Value {
        let mut settings = self.settings.clone();
        let seed = seed.wrapping_add(index as u64);
        settings.insert("seed".to_string(), json!(seed));
        let ids = tokens.iter().map(|token| token.id);
        json!({
            "prompt": self.prompts.get(index / self.per_prompt),
            "content": spelled(&model.tokenizer, ids.clone()),
            "tokens": ids.collect::<Vec<_>>(),
            "generation_settings": settings,
        })
    }
}
