//! A line of the input as a request, or what is wrong with it.

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::cmp::Ordering;
use std::ops::Range;

/// The routes that a line may name, each with whether its requests go through the engine's queue; those of the others
/// are computed one after the other.
const URLS: [(&str, bool); 6] = [
    ("/v1/chat/completions", true),
    ("/v1/completions", true),
    ("/v1/responses", true),
    ("/v1/messages", true),
    ("/v1/embeddings", false),
    ("/v1/rerank", false),
];
/// Longest `custom_id` in bytes.
pub const MAX_ID_BYTES: usize = 512;

/// The routes that a line may name.
pub fn urls() -> impl Iterator<Item = &'static str> {
    URLS.iter().map(|(url, _)| *url)
}

/// What stands for a `custom_id`: 128 bits of its SHA-256.
pub type IdHash = u128;

/// The hash of a `custom_id`.
pub fn hash_of(custom_id: &str) -> IdHash {
    let digest = Sha256::digest(custom_id.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    IdHash::from_le_bytes(bytes)
}

/// A request.
#[derive(Debug, Clone)]
pub struct Item {
    /// The line's number, from 1.
    pub number: u64,
    /// What the client calls it.
    pub custom_id: String,
    /// The route.
    pub url: &'static str,
    /// Whether it goes through the engine's queue.
    pub is_queued: bool,
    /// The line.
    text: Vec<u8>,
    body: Range<usize>,
    /// Where the parts of the body are that prompts are made of, in the order of their prompts.
    prompt: Vec<Range<usize>>,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The line's number, from 1.
    pub line: u64,
    /// The request's `custom_id`, if it has one.
    pub custom_id: Option<String>,
    /// A word for programs.
    pub code: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// The field at fault.
    pub param: Option<&'static str>,
}

impl Fault {
    /// A fault of a line whose request is not known.
    pub fn new(line: u64, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            line,
            custom_id: None,
            code,
            message: message.into(),
            param: None,
        }
    }
}

/// A line's fields.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    custom_id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    url: Option<&'a RawValue>,
    #[serde(borrow)]
    body: Option<&'a RawValue>,
}

/// The fields of a body that concern a batch.
#[derive(Deserialize)]
struct BodyFields<'a> {
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    query: Option<&'a RawValue>,
}

/// A JSON text, if the value is one.
fn text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// Where a part of `whole` lies in it.
fn place(whole: &[u8], part: &RawValue) -> Range<usize> {
    let start = part.get().as_ptr() as usize - whole.as_ptr() as usize;
    start..start + part.get().len()
}

impl Item {
    /// Reads a line. `only` is the one route that is allowed, if not all are.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(number: u64, line: Vec<u8>, only: Option<&str>) -> Result<Self, Fault> {
        let fault = |code, message: String| Fault::new(number, code, message);
        let fields: Fields = serde_json::from_slice(&line).map_err(|e| {
            fault(
                "invalid_json_line",
                format!("it is not a JSON object of a request: {e}"),
            )
        })?;
        let missing = |name: &'static str, message: String| Fault {
            param: Some(name),
            ..fault("missing_required_parameter", message)
        };
        let custom_id = fields
            .custom_id
            .and_then(text)
            .ok_or_else(|| missing("custom_id", "custom_id: a text is needed".to_string()))?;
        if custom_id.is_empty() || custom_id.len() > MAX_ID_BYTES {
            let message = format!(
                "custom_id: {} bytes; 1 to {MAX_ID_BYTES} are possible",
                custom_id.len()
            );
            return Err(Fault {
                param: Some("custom_id"),
                ..fault("invalid_custom_id", message)
            });
        }
        let of_request = |code, param: &'static str, message: String| Fault {
            custom_id: Some(custom_id.clone()),
            param: Some(param),
            ..fault(code, message)
        };
        match fields.method.map(|method| text(method).unwrap_or_default()) {
            Some(method) if method == "POST" => {}
            Some(method) => {
                let message = format!("method {method:?}: POST is the only one");
                return Err(of_request("invalid_method", "method", message));
            }
            None => {
                let message = "method: \"POST\" is needed".to_string();
                return Err(of_request("missing_required_parameter", "method", message));
            }
        }
        let url = fields.url.map(|url| text(url).unwrap_or_default());
        let url = url.ok_or_else(|| {
            let message = "url: a route is needed".to_string();
            of_request("missing_required_parameter", "url", message)
        })?;
        let known = URLS.iter().find(|(known, _)| *known == url);
        let Some((url, is_queued)) = known.copied() else {
            let all: Vec<&str> = urls().collect();
            let message = format!("url {url:?} is none of {}", all.join(", "));
            return Err(of_request("invalid_url", "url", message));
        };
        if let Some(only) = only.filter(|only| *only != url) {
            let message = format!("url {url:?}: this batch is for {only}");
            return Err(of_request("mismatched_url", "url", message));
        }
        let body = fields.body.ok_or_else(|| {
            let message = "body: an object is needed".to_string();
            of_request("missing_required_parameter", "body", message)
        })?;
        let of_body: BodyFields = serde_json::from_str(body.get()).map_err(|e| {
            of_request(
                "invalid_body",
                "body",
                format!("body: an object is needed: {e}"),
            )
        })?;
        if of_body.stream.is_some_and(|stream| stream.get() == "true") {
            let message = "stream: the answers of a batch are not streamed".to_string();
            return Err(of_request("invalid_body", "stream", message));
        }
        let prompt = [
            of_body.model,
            of_body.tools,
            of_body.system,
            of_body.instructions,
            of_body.messages,
            of_body.prompt,
            of_body.input,
            of_body.query,
        ];
        let prompt = prompt.into_iter().flatten();
        let (body, prompt) = (
            place(&line, body),
            prompt.map(|part| place(&line, part)).collect(),
        );
        Ok(Self {
            number,
            custom_id,
            url,
            is_queued,
            body,
            prompt,
            text: line,
        })
    }

    /// What is posted.
    pub fn body(&self) -> &[u8] {
        &self.text[self.body.clone()]
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.custom_id.len()
    }

    /// What its prompt is made of.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.prompt.iter().map(|part| &self.text[part.clone()])
    }

    /// An order in which requests of equal beginnings are neighbours.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.url
            .cmp(other.url)
            .then_with(|| self.parts().cmp(other.parts()))
            .then_with(|| self.number.cmp(&other.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Item, Fault> {
        Item::read(7, line.as_bytes().to_vec(), None)
    }

    #[test]
    fn a_request_and_its_body() {
        let item = read(
            r#" {"body" : {"prompt": "a\n", "n": 1e0} , "url":"/v1/completions","method":"POST","custom_id":"x\u0041","more":[1]} "#,
        )
        .unwrap();
        assert_eq!(
            (item.custom_id.as_str(), item.url),
            ("xA", "/v1/completions")
        );
        assert_eq!(item.body(), br#"{"prompt": "a\n", "n": 1e0}"#);
        assert!(item.is_queued);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let long = format!(r#"{{"custom_id":"{}"}}"#, "x".repeat(MAX_ID_BYTES + 1));
        for (line, code, param, has_id) in [
            ("", "invalid_json_line", None, false),
            ("[1]", "invalid_json_line", None, false),
            ("{\"custom_id\": \"a\"", "invalid_json_line", None, false),
            ("{} {}", "invalid_json_line", None, false),
            (r#"{"url":"a","url":"b"}"#, "invalid_json_line", None, false),
            ("{}", "missing_required_parameter", Some("custom_id"), false),
            (
                r#"{"custom_id":1}"#,
                "missing_required_parameter",
                Some("custom_id"),
                false,
            ),
            (
                r#"{"custom_id":""}"#,
                "invalid_custom_id",
                Some("custom_id"),
                false,
            ),
            (long.as_str(), "invalid_custom_id", Some("custom_id"), false),
            (
                r#"{"custom_id":"a"}"#,
                "missing_required_parameter",
                Some("method"),
                true,
            ),
            (
                r#"{"custom_id":"a","method":"GET"}"#,
                "invalid_method",
                Some("method"),
                true,
            ),
            (
                r#"{"custom_id":"a","method":"POST"}"#,
                "missing_required_parameter",
                Some("url"),
                true,
            ),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/images"}"#,
                "invalid_url",
                Some("url"),
                true,
            ),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/completions"}"#,
                "missing_required_parameter",
                Some("body"),
                true,
            ),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":[1]}"#,
                "invalid_body",
                Some("body"),
                true,
            ),
            (
                r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"stream":true}}"#,
                "invalid_body",
                Some("stream"),
                true,
            ),
        ] {
            let fault = read(line).unwrap_err();
            assert_eq!((fault.code, fault.param), (code, param), "{line}");
            assert_eq!(fault.custom_id.is_some(), has_id, "{line}");
            assert_eq!(fault.line, 7);
        }
        let line = r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}"#;
        let other = Item::read(1, line.as_bytes().to_vec(), Some("/v1/embeddings"));
        assert_eq!(other.unwrap_err().code, "mismatched_url");
        // Deep nesting must not exhaust the stack.
        let deep = line.replace("{}", &format!("{{\"x\":{}}}", "[".repeat(1 << 20)));
        assert_eq!(read(&deep).unwrap_err().code, "invalid_json_line");
    }

    #[test]
    fn equal_beginnings_are_neighbours() {
        let item = |number, messages: &str, more: &str| {
            let line = format!(
                r#"{{"custom_id":"{number}","method":"POST","url":"/v1/chat/completions","body":{{{more}"messages":{messages}}}}}"#
            );
            Item::read(number, line.into_bytes(), None).unwrap()
        };
        let mut items = [
            item(1, r#"[{"content":"system one"},{"content":"a"}]"#, ""),
            item(2, r#"[{"content":"system two"},{"content":"a"}]"#, ""),
            item(
                3,
                r#"[{"content":"system one"},{"content":"b"}]"#,
                r#""seed":9,"#,
            ),
            item(
                4,
                r#"[{"content":"system two"},{"content":"b"}]"#,
                r#""seed":1,"#,
            ),
        ];
        items.sort_by(Item::compare);
        assert_eq!(items.map(|item| item.number), [1, 3, 2, 4]);
    }
}
