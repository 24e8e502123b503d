//! What became of a line, as a line of the output.

use super::line::{Fault, IdHash, Item};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use worker::ids::uuid;

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Its HTTP status.
    pub status: u16,
    /// What it is called in the server's log.
    pub request_id: Option<String>,
    /// When the same request may succeed, if the answer says so.
    pub retry_after: Option<Duration>,
    /// Its body, mostly JSON.
    pub body: Vec<u8>,
}

/// Tokens of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Of the prompt.
    pub prompt: u64,
    /// Of the prompt, those that were known from another one.
    pub cached: u64,
    /// Of the answer.
    pub completion: u64,
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// It was answered, perhaps with an error.
    Answered(Arc<Item>, Reply),
    /// It was no request that could be asked.
    Faulty(Fault),
    /// It was not asked, for a reason that has nothing to do with it.
    Unasked {
        /// What the client calls it.
        custom_id: String,
        /// A word for programs.
        code: &'static str,
        /// Why.
        message: String,
    },
}

/// An outcome as it is written.
pub struct Written {
    /// The line, with its end.
    pub line: Vec<u8>,
    /// Whether the request succeeded.
    pub is_success: bool,
    /// What it took.
    pub tokens: Tokens,
}

#[derive(Serialize)]
struct LineOut<'a> {
    id: String,
    custom_id: Option<&'a str>,
    response: Option<ResponseOut<'a>>,
    error: Option<ErrorOut<'a>>,
}

#[derive(Serialize)]
struct ResponseOut<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct ErrorOut<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    param: Option<&'a str>,
    /// What tells errors of a line from those of a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

impl Outcome {
    /// The outcome as a line.
    pub fn written(&self) -> Written {
        let error = |custom_id, error| LineOut {
            id: new_id(),
            custom_id,
            response: None,
            error: Some(error),
        };
        match self {
            Self::Answered(item, reply) => {
                let body = as_json(&reply.body);
                let request_id = match &reply.request_id {
                    Some(id) => Cow::Borrowed(id.as_str()),
                    None => Cow::Owned(format!("req_{}", uuid().simple())),
                };
                let line = line_of(&LineOut {
                    id: new_id(),
                    custom_id: Some(&item.custom_id),
                    response: Some(ResponseOut {
                        status_code: reply.status,
                        request_id: &request_id,
                        body: &body,
                    }),
                    error: None,
                });
                let is_success = is_success(reply.status);
                Written {
                    line,
                    is_success,
                    tokens: match is_success {
                        true => tokens_of(body.get()),
                        false => Tokens::default(),
                    },
                }
            }
            Self::Faulty(fault) => Written {
                line: line_of(&error(
                    fault.custom_id.as_deref(),
                    ErrorOut {
                        code: fault.code,
                        message: &fault.message,
                        param: fault.param,
                        line: Some(fault.line),
                    },
                )),
                is_success: false,
                tokens: Tokens::default(),
            },
            Self::Unasked {
                custom_id,
                code,
                message,
            } => Written {
                line: line_of(&error(
                    Some(custom_id),
                    ErrorOut {
                        code,
                        message,
                        param: None,
                        line: None,
                    },
                )),
                is_success: false,
                tokens: Tokens::default(),
            },
        }
    }
}

/// What lines begin with.
pub(super) const LINE_START: &[u8] = br#"{"id":"batch_req_"#;

fn new_id() -> String {
    format!("batch_req_{}", uuid().simple())
}

fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

fn line_of(line: &LineOut) -> Vec<u8> {
    // Texts, numbers and what is JSON already: nothing of it can fail.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

/// A body as JSON without line ends: as it is, or as a text if it is none.
fn as_json(body: &[u8]) -> Box<RawValue> {
    let text = String::from_utf8_lossy(body);
    let is_one_line = !text.contains(['\n', '\r']);
    let as_it_is = is_one_line.then(|| RawValue::from_string(text.clone().into_owned()));
    if let Some(Ok(raw)) = as_it_is {
        return raw;
    }
    let value = serde_json::from_str(&text).unwrap_or_else(|_| Value::from(&*text));
    serde_json::value::to_raw_value(&value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// What an answer says that it took, by the names of any API.
fn tokens_of(body: &str) -> Tokens {
    #[derive(Deserialize)]
    struct Body {
        usage: Option<Usage>,
    }
    #[derive(Default, Deserialize)]
    struct Usage {
        #[serde(alias = "input_tokens")]
        prompt_tokens: Option<u64>,
        #[serde(alias = "output_tokens")]
        completion_tokens: Option<u64>,
        #[serde(alias = "input_tokens_details")]
        prompt_tokens_details: Option<Details>,
        cache_read_input_tokens: Option<u64>,
    }
    #[derive(Default, Deserialize)]
    struct Details {
        cached_tokens: Option<u64>,
    }
    let body: Option<Body> = serde_json::from_str(body).ok();
    let usage = body.and_then(|body| body.usage).unwrap_or_default();
    let details = usage.prompt_tokens_details.unwrap_or_default();
    // Anthropic's prompt is told without what was known.
    let apart = usage.cache_read_input_tokens.unwrap_or(0);
    Tokens {
        prompt: usage.prompt_tokens.unwrap_or(0) + apart,
        cached: details.cached_tokens.unwrap_or(0) + apart,
        completion: usage.completion_tokens.unwrap_or(0),
    }
}

/// What a line of an output is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// A request.
    Request(IdHash),
    /// A line of the input that was none.
    Line(u64),
}

/// What is read of a line of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What it is about.
    pub about: About,
    /// Whether the request succeeded.
    pub is_success: bool,
    /// What it took.
    pub tokens: Tokens,
}

impl Entry {
    /// Reads a line.
    ///
    /// # Errors
    /// Why it is no line of an output.
    pub fn read(line: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct LineIn<'a> {
            custom_id: Option<String>,
            #[serde(borrow)]
            response: Option<ResponseIn<'a>>,
            error: Option<ErrorIn>,
        }
        #[derive(Deserialize)]
        struct ResponseIn<'a> {
            status_code: u16,
            #[serde(borrow)]
            body: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct ErrorIn {
            line: Option<u64>,
        }
        let line: LineIn = serde_json::from_slice(line).map_err(|e| e.to_string())?;
        let of_line = line.error.as_ref().and_then(|error| error.line);
        let about = match (of_line, line.custom_id) {
            (Some(number), _) => About::Line(number),
            (None, Some(id)) => About::Request(super::line::hash_of(&id)),
            (None, None) => return Err("it has no custom_id".to_string()),
        };
        let response = line.response.filter(|_| line.error.is_none());
        let success = response.filter(|response| is_success(response.status_code));
        Ok(Self {
            about,
            is_success: success.is_some(),
            tokens: success
                .and_then(|response| response.body)
                .map_or_else(Tokens::default, |body| tokens_of(body.get())),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::line::hash_of;

    fn answered(status: u16, body: &str) -> Written {
        let line = r#"{"custom_id":"a\"b","method":"POST","url":"/v1/completions","body":{}}"#;
        let item = Item::read(3, line.as_bytes().to_vec(), None).unwrap();
        let reply = Reply {
            status,
            request_id: None,
            retry_after: None,
            body: body.as_bytes().to_vec(),
        };
        Outcome::Answered(Arc::new(item), reply).written()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let body = r#"{"z":1,"a":1.50,"usage":{"prompt_tokens":7,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}"#;
        let written = answered(200, body);
        let text = String::from_utf8(written.line.clone()).unwrap();
        assert!(written.line.starts_with(LINE_START));
        assert!(
            text.contains(body) && text.ends_with("\"error\":null}\n"),
            "{text}"
        );
        let tokens = Tokens {
            prompt: 7,
            cached: 2,
            completion: 5,
        };
        assert_eq!((written.is_success, written.tokens), (true, tokens));
        let entry = Entry::read(&written.line).unwrap();
        assert_eq!(entry.about, About::Request(hash_of("a\"b")));
        assert_eq!((entry.is_success, entry.tokens), (true, tokens));

        let refused = answered(400, r#"{"error":{}}"#);
        assert!(!refused.is_success && !Entry::read(&refused.line).unwrap().is_success);
        let fault = Outcome::Faulty(Fault::new(9, "invalid_json_line", "a\nb")).written();
        let entry = Entry::read(&fault.line).unwrap();
        assert_eq!((entry.about, entry.is_success), (About::Line(9), false));
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"custom_id":null,"response":null,"error":null}"#,
        ] {
            assert!(Entry::read(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_body_stays_in_one_line() {
        for (body, written) in [
            ("{\n \"a\": 1\n}", r#""body":{"a":1}"#),
            ("<html>\n", r#""body":"<html>\n""#),
            ("", r#""body":"""#),
        ] {
            let line = String::from_utf8(answered(502, body).line).unwrap();
            assert!(
                line.contains(written) && line.matches('\n').count() == 1,
                "{line}"
            );
        }
    }

    #[test]
    fn tokens_of_every_api() {
        let of = |body: &str| {
            let tokens = tokens_of(body);
            (tokens.prompt, tokens.cached, tokens.completion)
        };
        let responses = r#"{"usage":{"input_tokens":9,"output_tokens":3,"input_tokens_details":{"cached_tokens":4}}}"#;
        assert_eq!(of(responses), (9, 4, 3));
        let messages =
            r#"{"usage":{"input_tokens":5,"output_tokens":3,"cache_read_input_tokens":4}}"#;
        assert_eq!(of(messages), (9, 4, 3));
        assert_eq!(
            of(r#"{"usage":{"prompt_tokens":2,"total_tokens":2}}"#),
            (2, 0, 0)
        );
        assert_eq!(of("{}"), (0, 0, 0));
    }
}
