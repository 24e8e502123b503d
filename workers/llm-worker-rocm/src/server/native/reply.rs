//! Answers in the form of llama.cpp's `/completion`: whole, or as they come.

use crate::completion::{PromptProgress, StopReason, TextToken, Timings, Took, Usage};
use crate::server::backend::TextModel;
use crate::server::generation::{Answer, End, PlainText, Writer};
use crate::server::openai::wire::{progress_json, timings_json, timings_of};
use crate::tokenizer::Tokenizer;
use serde_json::{json, Map, Value};
use std::sync::Arc;
use worker::http::sse::{self, Encoding, Frame, Protocol};

/// Its streams end without a last frame: that with `"stop": true` says that an answer is complete.
pub const PROTOCOL: Protocol = Protocol {
    encoding: Encoding::Events,
    failure: sse::OPENAI.failure,
    done: None,
};

/// How the answers to a request are told.
pub struct Replies {
    /// What answers.
    pub model: Arc<TextModel>,
    /// What it is called.
    pub model_name: String,
    /// What is told of each prompt.
    pub prompts: Vec<Told>,
    /// How many answers each prompt has.
    pub per_prompt: usize,
    /// Whether answers come as a list.
    pub is_list: bool,
    /// Whether they are told to be empty.
    pub is_silent: bool,
    /// The settings that all have in common.
    pub settings: Map<String, Value>,
    /// The first answer's seed.
    pub seed: u64,
    /// Whether tokens are told of whole answers.
    pub return_tokens: bool,
    /// Whether probabilities are those behind the samplers.
    pub after_sampling: bool,
    /// Whether frames tell what the answer took so far.
    pub tells_took: bool,
    /// The fields that are told; all if empty.
    pub fields: Vec<String>,
}

/// What is told of a prompt.
pub struct Told {
    /// Its text, control tokens spelled out.
    text: String,
    /// Its tokens.
    tokens: usize,
}

impl Told {
    /// That of a prompt's tokens.
    pub fn of(tokenizer: &Tokenizer, tokens: &[u32]) -> Self {
        Self {
            text: spelled(tokenizer, tokens.iter().copied()),
            tokens: tokens.len(),
        }
    }
}

/// The text of tokens, control tokens spelled out.
pub fn spelled(tokenizer: &Tokenizer, tokens: impl Iterator<Item = u32>) -> String {
    let mut text = Vec::new();
    for token in tokens {
        match tokenizer.control_text(token) {
            Some(spelled) => text.extend_from_slice(spelled.as_bytes()),
            None => text.extend_from_slice(tokenizer.token_bytes(token)),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

impl Replies {
    /// All answers, whole: a list where the request had one or wants several answers.
    pub fn whole(&self, answers: &[Answer<PlainText>]) -> Value {
        let all = answers.iter().enumerate().map(|(index, answer)| {
            let (text, tokens) = match self.is_silent {
                true => ("", &[][..]),
                false => (answer.whole.as_str(), &answer.tokens[..]),
            };
            let mut whole = self.last(index, text, tokens, &answer.end);
            if self.return_tokens {
                whole["tokens"] = ids(tokens);
            }
            if tokens.iter().any(|token| token.logprob.is_some()) {
                whole["completion_probabilities"] = self.probabilities(tokens);
            }
            self.cut(whole)
        });
        let mut all: Vec<Value> = all.collect();
        match self.is_list || self.per_prompt > 1 {
            true => Value::Array(all),
            false => all.pop().unwrap_or_default(),
        }
    }

    /// What writes an answer's frames.
    pub fn writer(&self, index: usize) -> FrameWriter<'_> {
        FrameWriter {
            replies: self,
            index,
            slot: None,
            text: String::new(),
            tokens: 0,
            took: None,
        }
    }

    fn prompt(&self, index: usize) -> &Told {
        &self.prompts[(index / self.per_prompt).min(self.prompts.len() - 1)]
    }

    /// What is told at an answer's end; `text` is all of it.
    fn last(&self, index: usize, text: &str, tokens: &[TextToken], end: &End) -> Value {
        let finish = &end.finish;
        let (kind, word) = match &finish.reason {
            StopReason::End => ("eos", ""),
            StopReason::StopString(word) => ("word", word.as_str()),
            StopReason::Length | StopReason::Context => ("limit", ""),
        };
        let prompt = self.prompt(index);
        let predicted = match self.is_silent {
            true => 0,
            false => finish.usage.completion_tokens,
        };
        let mut settings = self.settings.clone();
        settings.insert("seed".to_string(), json!(self.seed + index as u64));
        json!({
            "index": index,
            "content": text,
            "tokens": [],
            "id_slot": finish.slot,
            "stop": true,
            "model": self.model_name,
            "tokens_predicted": predicted,
            "tokens_evaluated": prompt.tokens,
            "generation_settings": settings,
            "prompt": prompt.text,
            "has_new_line": text.contains('\n'),
            "truncated": finish.truncated,
            "stop_type": kind,
            "stopping_word": word,
            // The last token of an answer is not computed.
            "tokens_cached": (prompt.tokens + tokens.len()).saturating_sub(1),
            "timings": timings_json(finish),
        })
    }

    /// The fields of an answer that are asked for.
    fn cut(&self, whole: Value) -> Value {
        if self.fields.is_empty() {
            return whole;
        }
        let mut cut = Map::new();
        for field in &self.fields {
            let found = field
                .split('/')
                .try_fold(&whole, |value, key| value.get(key));
            if let Some(found) = found {
                cut.insert(field.clone(), found.clone());
            }
        }
        Value::Object(cut)
    }

    fn probabilities(&self, tokens: &[TextToken]) -> Value {
        let (one, top) = match self.after_sampling {
            true => ("prob", "top_probs"),
            false => ("logprob", "top_logprobs"),
        };
        let entry = |id: u32, logprob: f32| {
            let tokenizer = &self.model.tokenizer;
            let bytes = match tokenizer.control_text(id) {
                Some(text) => text.as_bytes(),
                None => tokenizer.token_bytes(id),
            };
            let number = match self.after_sampling {
                true => logprob.exp(),
                // JSON has no infinity.
                false => logprob.max(f32::MIN),
            };
            json!({"id": id, "token": whole_text(bytes), "bytes": bytes, one: number})
        };
        let told = tokens.iter().filter_map(|token| {
            let mut told = entry(token.id, token.logprob?);
            let others = token.top.iter().map(|(id, logprob)| entry(*id, *logprob));
            told[top] = others.collect();
            Some(told)
        });
        told.collect()
    }
}

/// What a prompt took that is computed so far.
fn took_so_far(progress: &PromptProgress) -> Took {
    // Where nothing is computed nothing has taken time.
    let began = progress.computed > progress.cached;
    let prefill = Some(progress.elapsed).filter(|_| began).unwrap_or_default();
    Took {
        usage: Usage {
            prompt_tokens: progress.computed,
            cached_tokens: progress.cached,
            ..Usage::default()
        },
        timings: Timings {
            prefill,
            ..Timings::default()
        },
        ..Took::default()
    }
}

/// The whole characters at the beginning of some bytes.
fn whole_text(bytes: &[u8]) -> &str {
    let first = bytes.utf8_chunks().next();
    first.map_or("", |chunk| chunk.valid())
}

fn ids(tokens: &[TextToken]) -> Value {
    tokens.iter().map(|token| token.id).collect()
}

/// Writes the frames of an answer.
pub struct FrameWriter<'a> {
    replies: &'a Replies,
    index: usize,
    slot: Option<usize>,
    text: String,
    tokens: usize,
    /// What the answer took so far, if that is to be told.
    took: Option<Took>,
}

impl FrameWriter<'_> {
    /// A frame before the last.
    fn frame(&self, text: &str, tokens: &[TextToken]) -> Value {
        json!({
            "index": self.index,
            "content": text,
            "tokens": ids(tokens),
            "stop": false,
            "id_slot": self.slot,
            "tokens_predicted": self.tokens,
            "tokens_evaluated": self.replies.prompt(self.index).tokens,
        })
    }
}

impl Writer<PlainText> for FrameWriter<'_> {
    fn started(&mut self, slot: Option<usize>) -> Vec<Frame> {
        self.slot = slot;
        Vec::new()
    }

    fn progress(&mut self, progress: &PromptProgress) -> Vec<Frame> {
        let mut frame = self.frame("", &[]);
        frame["prompt_progress"] = progress_json(progress);
        if self.replies.tells_took {
            frame["timings"] = timings_of(&took_so_far(progress));
        }
        vec![sse::data(&frame)]
    }

    fn took(&mut self, took: &Took) {
        self.took = Some(*took);
    }

    fn part(&mut self, part: String, tokens: &[TextToken]) -> Vec<Frame> {
        let replies = self.replies;
        if replies.is_silent {
            return Vec::new();
        }
        self.text += &part;
        self.tokens += tokens.len();
        let mut frame = self.frame(&part, tokens);
        if let Some(took) = &self.took {
            frame["timings"] = timings_of(took);
        }
        if tokens.iter().any(|token| token.logprob.is_some()) {
            frame["completion_probabilities"] = replies.probabilities(tokens);
        }
        vec![sse::data(&frame)]
    }

    fn end(&mut self, end: &End, tokens: &[TextToken]) -> Vec<Frame> {
        let replies = self.replies;
        let mut last = replies.last(self.index, &self.text, tokens, end);
        let counted = (replies.prompt(self.index).tokens + self.tokens).saturating_sub(1);
        last["content"] = json!("");
        last["tokens_cached"] = json!(counted);
        vec![sse::data(&replies.cut(last))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_prompt_takes_time_once_something_of_it_is_computed() {
        let after = |computed| {
            let progress = PromptProgress {
                total: 9,
                cached: 4,
                computed,
                elapsed: Duration::from_millis(5),
            };
            let told = timings_of(&took_so_far(&progress));
            (told["prompt_n"].as_u64(), told["prompt_ms"].as_f64())
        };
        assert_eq!(after(4), (Some(0), Some(0.0)));
        assert_eq!(after(7), (Some(3), Some(5.0)));
    }

    #[test]
    fn half_characters_are_left_out() {
        assert_eq!(whole_text("aé".as_bytes()), "aé");
        assert_eq!(whole_text(&"aé".as_bytes()[..2]), "a");
        assert_eq!(whole_text(&[0xff]), "");
    }
}
