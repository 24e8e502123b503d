//! Probabilities of tokens in OpenAI's two forms.

use crate::completion::TextToken;
use crate::engine::api::PromptToken;
use crate::server::backend::TextModel;
use crate::tokenizer::{Detokenizer, Tokenizer};
use serde_json::{json, Map, Value};

/// In the form of chats; null where no probabilities were asked for. The token that ends an answer is not part of it.
pub fn of_chat(model: &TextModel, tokens: &[TextToken]) -> Value {
    if tokens.iter().all(|token| token.logprob.is_none()) {
        return Value::Null;
    }
    let tokenizer = &model.tokenizer;
    let entry = |token: u32, logprob: f32| {
        let mut map = Map::new();
        map.insert("token".to_string(), json!(token_text(tokenizer, token)));
        map.insert("logprob".to_string(), json!(finite(logprob)));
        // A control token is not text.
        let bytes = match tokenizer.control_text(token) {
            Some(_) => Value::Null,
            None => json!(tokenizer.token_bytes(token)),
        };
        map.insert("bytes".to_string(), bytes);
        map
    };
    let content: Vec<Value> = tokens
        .iter()
        .filter(|token| !tokenizer.is_end(token.id))
        .filter_map(|token| {
            let mut map = entry(token.id, token.logprob?);
            let top = token.top.iter().map(|&(id, logprob)| entry(id, logprob));
            map.insert("top_logprobs".to_string(), top.map(Value::Object).collect());
            Some(Value::Object(map))
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// Where the tokens of a text begin, in characters: a token that goes on with a character begins where that does.
pub struct Places {
    detokenizer: Detokenizer,
    offset: usize,
}

impl Places {
    /// Those of a text's first tokens.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self {
            detokenizer: tokenizer.detokenizer(),
            offset: 0,
        }
    }

    fn next(&mut self, token: u32) -> usize {
        let place = self.offset;
        self.offset += self.detokenizer.push(token).chars().count();
        place
    }

    /// Ends a part of the text: no character goes on behind it.
    pub fn end_part(&mut self) {
        self.offset += self.detokenizer.finish().chars().count();
    }
}

/// Probabilities in the form of plain completions.
#[derive(Default)]
pub struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds the first token of a prompt, which has no probability.
    pub fn push_first(&mut self, tokenizer: &Tokenizer, places: &mut Places, token: u32) {
        self.tokens.push(token_text(tokenizer, token));
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(places.next(token));
    }

    /// Adds a token with its probability and those of the most likely ones, of which it always is one here.
    pub fn push(
        &mut self,
        tokenizer: &Tokenizer,
        places: &mut Places,
        (token, logprob): (u32, f32),
        top: &[(u32, f32)],
    ) {
        let text = token_text(tokenizer, token);
        let mut of_top = Map::new();
        let own = (token, logprob);
        let own = Some(&own).filter(|_| !top.iter().any(|(id, _)| *id == token));
        for (id, logprob) in top.iter().chain(own) {
            // Of several that are written alike, the most likely one.
            let entry = of_top.entry(token_text(tokenizer, *id));
            entry.or_insert_with(|| json!(finite(*logprob)));
        }
        self.tokens.push(text);
        self.token_logprobs.push(Some(finite(logprob)));
        self.top_logprobs.push(Some(of_top));
        self.text_offset.push(places.next(token));
    }

    /// Adds the tokens of an answer, but the one that ends it; `top` is how many of the most likely ones are told.
    pub fn push_answer(
        &mut self,
        tokenizer: &Tokenizer,
        places: &mut Places,
        tokens: &[TextToken],
        top: usize,
    ) {
        for token in tokens.iter().filter(|t| !tokenizer.is_end(t.id)) {
            if let Some(logprob) = token.logprob {
                let top = &token.top[..token.top.len().min(top)];
                self.push(tokenizer, places, (token.id, logprob), top);
            }
        }
    }

    /// All of them; null if there are none.
    pub fn into_json(self) -> Value {
        if self.tokens.is_empty() {
            return Value::Null;
        }
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// Probabilities of a prompt in vLLM's form: nothing for the first token, and for each further one an object by tokens'
/// numbers. A rank is only told of tokens that are among the `top` most likely ones.
pub fn of_prompt(tokenizer: &Tokenizer, tokens: &[PromptToken], top: usize) -> Value {
    let entry = |token: u32, logprob: f32, rank: Option<usize>| {
        let text = token_text(tokenizer, token);
        json!({"logprob": finite(logprob), "rank": rank, "decoded_token": text})
    };
    let of_token = |token: &PromptToken| {
        let top = token.top.iter().take(top);
        let mut map = Map::new();
        for (rank, (id, logprob)) in (1..).zip(top) {
            map.insert(id.to_string(), entry(*id, *logprob, Some(rank)));
        }
        map.entry(token.token.to_string())
            .or_insert_with(|| entry(token.token, token.logprob, None));
        Value::Object(map)
    };
    std::iter::once(Value::Null)
        .chain(tokens.iter().map(of_token))
        .collect()
}

/// A token as text; half characters show as U+FFFD, control tokens by their names.
fn token_text(tokenizer: &Tokenizer, token: u32) -> String {
    match tokenizer.control_text(token) {
        Some(name) => name.to_string(),
        None => String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned(),
    }
}

/// JSON has no infinity; OpenAI writes this for what is as good as impossible.
fn finite(logprob: f32) -> f32 {
    const IMPOSSIBLE: f32 = -9999.0;
    logprob.max(IMPOSSIBLE)
}
