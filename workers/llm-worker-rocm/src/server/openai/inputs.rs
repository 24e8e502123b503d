//! What is to become vectors: texts, tokens, both in one, and objects with them, one or several.

use crate::embedding::EmbeddingModel;
use crate::engine::api::Failure;
use crate::server::error::{from_failure, from_worker};
use schemars::JsonSchema;
use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use worker::http::ApiError;
use worker::Error;

/// Most texts of a request, as with OpenAI.
pub const MAX_INPUTS: usize = 2048;
/// Most parts of a text that is given in parts.
const MAX_PARTS: usize = 4096;

/// One text, as tokens or parts, or several.
///
/// Read element by element: a list of a million tokens takes their 4 million bytes.
#[derive(Debug, Clone, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum EmbeddingInputs {
    /// One text.
    One(EmbeddingInput),
    /// Several.
    Many(Vec<EmbeddingInput>),
}

/// A text.
#[derive(Debug, Clone, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum EmbeddingInput {
    /// As it is.
    Text(String),
    /// Its tokens, those around it included.
    Tokens(Vec<u32>),
    /// Texts and tokens in turn, without tokens around them but those that are given.
    Parts(Vec<EmbeddingPart>),
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, JsonSchema)]
#[schemars(untagged)]
pub enum EmbeddingPart {
    /// Text.
    Text(String),
    /// Tokens.
    Tokens(Vec<u32>),
}

impl EmbeddingInputs {
    /// The tokens of each text. One that is too long is cut if `cut` says so.
    ///
    /// # Errors
    /// 400 for none or too many texts, and for one that is empty or too long.
    pub fn tokens(self, model: &EmbeddingModel, cut: bool) -> Result<Vec<Vec<u32>>, ApiError> {
        let inputs = match self {
            Self::One(input) => vec![input],
            Self::Many(inputs) => inputs,
        };
        let count = inputs.len();
        if !(1..=MAX_INPUTS).contains(&count) {
            let reason = format!("input: {count} texts; 1 to {MAX_INPUTS} are possible");
            return Err(ApiError::field("input", reason));
        }
        let inputs = inputs.into_iter().enumerate();
        let tokens = inputs.map(|(index, input)| {
            let tokens = input.tokens(model).map_err(|e| from_worker(&e))?;
            let most = model.max_tokens();
            match tokens.len() {
                0 => Err(ApiError::field("input", format!("input {index} is empty"))),
                count if count <= most => Ok(tokens),
                _ if cut => Ok(model.cut(tokens)),
                count => {
                    let (prompt, context) = (count, most);
                    let error = from_failure(&Failure::TooLong { prompt, context });
                    Err(ApiError {
                        param: Some("input".to_string()),
                        message: format!(
                            "input {index} is too large: at least {count} tokens, and this model takes {most}; shorten it, or send truncate: true"
                        ),
                        ..error
                    })
                }
            }
        });
        tokens.collect()
    }
}

impl EmbeddingInput {
    fn tokens(self, model: &EmbeddingModel) -> Result<Vec<u32>, Error> {
        match self {
            // One more than fit tell that it is too long.
            Self::Text(text) => model.tokens(&text, model.max_tokens() + 1),
            Self::Tokens(tokens) => Ok(tokens),
            Self::Parts(parts) => {
                let mut tokens = Vec::new();
                for part in parts {
                    match part {
                        EmbeddingPart::Text(text) => tokens.extend(model.plain_tokens(&text)?),
                        EmbeddingPart::Tokens(own) => tokens.extend(own),
                    }
                }
                Ok(tokens)
            }
        }
    }

    /// A text of parts that is as simple as they allow.
    fn of_parts(mut parts: Vec<EmbeddingPart>) -> Self {
        match parts.pop() {
            Some(EmbeddingPart::Tokens(tokens)) if parts.is_empty() => Self::Tokens(tokens),
            Some(last) => {
                parts.push(last);
                Self::Parts(parts)
            }
            None => Self::Tokens(Vec::new()),
        }
    }
}

/// Adds a part; tokens join those before them.
fn add<E: serde::de::Error>(parts: &mut Vec<EmbeddingPart>, part: EmbeddingPart) -> Result<(), E> {
    if let (Some(EmbeddingPart::Tokens(tokens)), EmbeddingPart::Tokens(more)) =
        (parts.last_mut(), &part)
    {
        tokens.extend(more);
        return Ok(());
    }
    if parts.len() >= MAX_PARTS {
        return Err(E::custom(format!("a text of more than {MAX_PARTS} parts")));
    }
    parts.push(part);
    Ok(())
}

impl<'de> Deserialize<'de> for EmbeddingInputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(InputsVisitor)
    }
}

impl<'de> Deserialize<'de> for EmbeddingInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Element::deserialize(deserializer)? {
            Element::Part(EmbeddingPart::Text(text)) => Ok(Self::Text(text)),
            Element::Part(EmbeddingPart::Tokens(_)) => {
                Err(D::Error::custom("a token alone is no text"))
            }
            Element::Input(input) => Ok(input),
        }
    }
}

/// An element of a list: a text or a token, which may be a part of one, or a text by itself.
enum Element {
    Part(EmbeddingPart),
    Input(EmbeddingInput),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct InputsVisitor;

impl<'de> Visitor<'de> for InputsVisitor {
    type Value = EmbeddingInputs;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, a list of tokens and texts, an object with a text, or a list of these")
    }

    fn visit_str<E>(self, text: &str) -> Result<EmbeddingInputs, E> {
        Ok(EmbeddingInputs::One(EmbeddingInput::Text(text.to_string())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<EmbeddingInputs, A::Error> {
        // With a token among them, the elements are parts of one text.
        let (mut parts, mut inputs) = (Vec::new(), Vec::new());
        let mut has_token = false;
        while let Some(element) = seq.next_element()? {
            match element {
                Element::Part(part) => {
                    has_token |= matches!(part, EmbeddingPart::Tokens(_));
                    match (part, has_token) {
                        (EmbeddingPart::Text(text), false) => {
                            inputs.push(EmbeddingInput::Text(text));
                        }
                        (part, _) => {
                            for input in inputs.drain(..) {
                                match input {
                                    EmbeddingInput::Text(text) => {
                                        add(&mut parts, EmbeddingPart::Text(text))?;
                                    }
                                    _ => return Err(mixed()),
                                }
                            }
                            add(&mut parts, part)?;
                        }
                    }
                }
                Element::Input(_) if has_token => return Err(mixed()),
                Element::Input(input) => inputs.push(input),
            }
            if inputs.len() > MAX_INPUTS {
                return Err(A::Error::custom(format!("more than {MAX_INPUTS} texts")));
            }
        }
        Ok(match has_token {
            true => EmbeddingInputs::One(EmbeddingInput::of_parts(parts)),
            false => EmbeddingInputs::Many(inputs),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EmbeddingInputs, A::Error> {
        of_object(map).map(EmbeddingInputs::One)
    }
}

fn mixed<E: serde::de::Error>() -> E {
    E::custom("tokens stand beside lists or objects; a text's tokens are a list of their own")
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, a token, a list of these, or an object with a text")
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Part(EmbeddingPart::Text(text.to_string())))
    }

    fn visit_u64<E: serde::de::Error>(self, token: u64) -> Result<Element, E> {
        let token = u32::try_from(token);
        let part = token.map(|token| Element::Part(EmbeddingPart::Tokens(vec![token])));
        part.map_err(|_| E::custom("it is not a token's number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
        parts(seq).map(Element::Input)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
        of_object(map).map(Element::Input)
    }
}

/// A list of texts and tokens, as one text.
fn parts<'de, A: SeqAccess<'de>>(mut seq: A) -> Result<EmbeddingInput, A::Error> {
    let mut parts = Vec::new();
    while let Some(element) = seq.next_element()? {
        match element {
            Element::Part(part) => add(&mut parts, part)?,
            Element::Input(_) => return Err(A::Error::custom("a list within a text's list")),
        }
    }
    Ok(EmbeddingInput::of_parts(parts))
}

/// `{"prompt_string": …}` as llama.cpp's server has it, or `{"content": [parts]}` as vLLM has.
fn of_object<'de, A: MapAccess<'de>>(mut map: A) -> Result<EmbeddingInput, A::Error> {
    let mut input = None;
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "prompt_string" => input = Some(map.next_value::<EmbeddingInput>()?),
            "content" => {
                let parts: Vec<ContentPart> = map.next_value()?;
                let mut text = String::new();
                for part in parts {
                    match (part.kind.as_str(), part.text) {
                        ("text", Some(own)) => text += &own,
                        (other, _) => {
                            return Err(A::Error::custom(format!(
                                "content of type {other:?} cannot become a vector here, only text with \"text\" can"
                            )))
                        }
                    }
                }
                input = Some(EmbeddingInput::Text(text));
            }
            "multimodal_data" => {
                return Err(A::Error::custom(
                    "multimodal_data: pictures and sounds cannot become vectors here",
                ))
            }
            _ => {
                map.next_value::<IgnoredAny>()?;
            }
        }
    }
    input.ok_or_else(|| A::Error::custom("an object needs its prompt_string or its content"))
}

/// A part of a message.
#[derive(Deserialize)]
struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, Value};
    use EmbeddingInput as Input;

    fn read(value: Value) -> Result<EmbeddingInputs, ApiError> {
        worker::http::json::from_value(&value)
    }

    fn text(text: &str) -> Input {
        Input::Text(text.to_string())
    }

    #[test]
    fn what_can_become_a_vector() {
        let mixed = Input::Parts(vec![
            EmbeddingPart::Tokens(vec![1, 2]),
            EmbeddingPart::Text("a".to_string()),
            EmbeddingPart::Tokens(vec![3]),
        ]);
        for (value, expected) in [
            (json!("a"), text("a")),
            (json!([1, 2]), Input::Tokens(vec![1, 2])),
            (json!([1, 2, "a", 3]), mixed.clone()),
            (json!({"prompt_string": "a", "other": [1]}), text("a")),
            (
                json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
                text("ab"),
            ),
        ] {
            assert_eq!(read(value).unwrap(), EmbeddingInputs::One(expected));
        }
        // A text before the first token is a part, too.
        let first = read(json!(["a", 1])).unwrap();
        let parts = vec![
            EmbeddingPart::Text("a".to_string()),
            EmbeddingPart::Tokens(vec![1]),
        ];
        assert_eq!(first, EmbeddingInputs::One(Input::Parts(parts)));
        for (value, expected) in [
            (json!([]), vec![]),
            (json!(["a", "b"]), vec![text("a"), text("b")]),
            (
                json!([[], [3]]),
                vec![Input::Tokens(vec![]), Input::Tokens(vec![3])],
            ),
            (
                json!(["a", [1, 2, "a", 3], {"prompt_string": [4]}]),
                vec![text("a"), mixed, Input::Tokens(vec![4])],
            ),
        ] {
            assert_eq!(read(value).unwrap(), EmbeddingInputs::Many(expected));
        }
    }

    #[test]
    fn what_cannot() {
        for bad in [
            json!(1),
            json!(null),
            json!({}),
            json!([-1]),
            json!([5_000_000_000u64]),
            json!([1.5]),
            json!([[["a"]]]),
            json!([1, ["a"]]),
            json!([["a"], 1]),
            json!({"content": "a"}),
            json!({"content": [{"type": "unknown"}]}),
            json!({"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}),
            json!({"prompt_string": "a", "multimodal_data": ["AAAA"]}),
            json!(vec!["a"; MAX_INPUTS + 1]),
        ] {
            read(bad.clone()).expect_err(&bad.to_string());
        }
    }
}
