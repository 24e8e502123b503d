//! Probabilities of tokens in OpenAI's two forms.

use crate::completion::TextToken;
use crate::server::backend::TextModel;
use crate::tokenizer::Tokenizer;
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

/// In the form of plain completions; `offset` counts the characters of the answer before these tokens.
pub fn of_text(model: &TextModel, tokens: &[TextToken], mut offset: usize) -> Value {
    let (mut texts, mut chosen, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for token in tokens
        .iter()
        .filter(|token| !model.tokenizer.is_end(token.id))
    {
        let Some(logprob) = token.logprob else {
            return Value::Null;
        };
        let text = token_text(&model.tokenizer, token.id);
        let top: Map<String, Value> = token
            .top
            .iter()
            .map(|&(id, logprob)| (token_text(&model.tokenizer, id), json!(finite(logprob))))
            .collect();
        offsets.push(offset);
        offset += text.chars().count();
        texts.push(text);
        chosen.push(finite(logprob));
        tops.push(top);
    }
    if texts.is_empty() {
        return Value::Null;
    }
    json!({"tokens": texts, "token_logprobs": chosen, "top_logprobs": tops, "text_offset": offsets})
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
