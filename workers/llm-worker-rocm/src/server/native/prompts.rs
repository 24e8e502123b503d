//! What a prompt can be in llama.cpp's API: a text, tokens, both in one list, a text with pictures and sounds, or several
//! of these.

use crate::engine::media::{Media, MediaItem};
use crate::jinja::Rendered;
use crate::media::{PICTURE_MARK, SOUND_MARK};
use crate::server::backend::TextModel;
use crate::server::error::from_worker;
use crate::server::generation::check_length;
use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::fmt::Formatter;
use std::sync::Arc;
use worker::http::ApiError;

/// Most prompts of a request.
const MAX_PROMPTS: usize = 256;
/// Most texts of a prompt that is a list of texts and tokens.
const MAX_TEXTS: usize = 4096;
/// Most pictures and sounds of a prompt.
const MAX_MEDIA: usize = 64;
/// What stands for a picture or a sound in a text.
pub const MEDIA_MARK: &str = "<__media__>";

/// One or several prompts: texts, tokens, lists of both, or `{"prompt_string": …, "multimodal_data": [base64, …]}`.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(with = "Value")]
pub struct Prompts {
    /// Each of them.
    pub all: Vec<PromptInput>,
    /// Whether they came as a list, which is answered by a list.
    pub is_list: bool,
}

/// A prompt as it came.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptInput {
    parts: Vec<Part>,
    /// Pictures and sounds in base64, in the order of their marks.
    media: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
enum Part {
    Text(String),
    Tokens(Vec<u32>),
}

/// Tokens, and the pictures and sounds among them.
pub type PromptTokens = (Vec<u32>, Option<Arc<Media>>);

impl PromptInput {
    /// Its tokens. The one that begins a text is added where it begins with text, if `begins` says so.
    ///
    /// # Errors
    /// 400 for a text that the vocabulary cannot express or that is too long, and for pictures and sounds that the model
    /// does not take or that are none.
    pub fn tokens(&self, model: &TextModel, begins: bool) -> Result<PromptTokens, ApiError> {
        if !self.media.is_empty() {
            return self.with_media(model, begins);
        }
        let mut tokens = Vec::new();
        for (index, part) in self.parts.iter().enumerate() {
            match part {
                Part::Text(text) => {
                    check_length(model, text)?;
                    let encoded = model.tokenizer.encode(text, begins && index == 0);
                    tokens.extend(encoded.map_err(|e| of_prompt(e.to_string()))?);
                }
                Part::Tokens(own) => tokens.extend(own),
            }
        }
        Ok((tokens, None))
    }

    fn with_media(&self, model: &TextModel, begins: bool) -> Result<PromptTokens, ApiError> {
        let [Part::Text(text)] = &self.parts[..] else {
            let reason = "pictures and sounds stand in a text, not among tokens";
            return Err(of_prompt(reason.to_string()));
        };
        let processor = model.pictures().map_err(|e| of_prompt(e.message))?;
        let places = text.matches(MEDIA_MARK).count();
        if places != self.media.len() || places > MAX_MEDIA {
            return Err(of_prompt(format!(
                "{} pictures and sounds, and {places} times {MEDIA_MARK} in the text; at most {MAX_MEDIA} of each",
                self.media.len()
            )));
        }
        check_length(model, text)?;
        let mut marked = Rendered {
            text: String::new(),
            input: Vec::new(),
        };
        let mut items: Vec<Arc<MediaItem>> = Vec::new();
        for (index, piece) in text.split(MEDIA_MARK).enumerate() {
            if let Some(data) = index.checked_sub(1).and_then(|i| self.media.get(i)) {
                let address = format!("data:image/*;base64,{data}");
                let load = || {
                    let bytes = model.sources.load(&address)?;
                    match is_sound(&bytes) {
                        true => Ok((SOUND_MARK, processor.sound(&bytes)?)),
                        false => {
                            let limits = &model.sources.limits;
                            Ok((PICTURE_MARK, processor.picture(&bytes, limits)?))
                        }
                    }
                };
                let (mark, item) = load().map_err(|e| as_prompt(from_worker(&e)))?;
                marked.text.push_str(mark);
                items.push(item);
            }
            marked.text.push_str(piece);
        }
        let prompt = processor.prompt(&marked, &items, &model.tokenizer, begins);
        let (tokens, media) = prompt.map_err(|e| as_prompt(from_worker(&e)))?;
        Ok((tokens, Some(Arc::new(media))))
    }

    fn push_token(&mut self, token: u32) {
        match self.parts.last_mut() {
            Some(Part::Tokens(tokens)) => tokens.push(token),
            _ => self.parts.push(Part::Tokens(vec![token])),
        }
    }

    fn push_text<E: serde::de::Error>(&mut self, text: String) -> Result<(), E> {
        if self.parts.len() >= MAX_TEXTS {
            return Err(E::custom(format!(
                "a prompt of more than {MAX_TEXTS} parts"
            )));
        }
        self.parts.push(Part::Text(text));
        Ok(())
    }
}

fn of_prompt(reason: String) -> ApiError {
    ApiError::field("prompt", format!("prompt: {reason}"))
}

fn as_prompt(error: ApiError) -> ApiError {
    ApiError {
        param: Some("prompt".to_string()),
        ..error
    }
}

/// Whether a file is of one of the formats of sounds: WAV, FLAC, Ogg, MP3.
fn is_sound(bytes: &[u8]) -> bool {
    let riff = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WAVE");
    let begins = [&b"fLaC"[..], b"OggS", b"ID3"];
    let mp3 = matches!(bytes, [0xff, second, ..] if second & 0xe0 == 0xe0 && second & 0x06 != 0);
    riff || mp3 || begins.iter().any(|begin| bytes.starts_with(begin))
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl Prompts {
    fn one(prompt: PromptInput) -> Self {
        Self {
            all: vec![prompt],
            is_list: false,
        }
    }
}

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, tokens, texts and tokens in one list, an object with prompt_string, or a list of these")
    }

    fn visit_str<E>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts::one(PromptInput {
            parts: vec![Part::Text(text.to_string())],
            media: Vec::new(),
        }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Prompts, A::Error> {
        Marked::read(map).map(Prompts::one)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
        // Tokens side by side with texts are one prompt; texts alone are one each.
        let mut mixed = PromptInput::default();
        let (mut has_tokens, mut all) = (false, Vec::new());
        while let Some(element) = seq.next_element()? {
            match element {
                Element::Token(token) => {
                    has_tokens = true;
                    mixed.push_token(token);
                }
                Element::Text(text) => mixed.push_text(text)?,
                Element::Prompt(prompt) => {
                    split(&mut mixed, &mut all);
                    all.push(prompt);
                }
            }
            if has_tokens && !all.is_empty() {
                let reason = "a token stands beside whole prompts";
                return Err(A::Error::custom(reason));
            }
            if all.len() > MAX_PROMPTS {
                let reason = format!("more than {MAX_PROMPTS} prompts");
                return Err(A::Error::custom(reason));
            }
        }
        if has_tokens {
            return Ok(Prompts::one(mixed));
        }
        split(&mut mixed, &mut all);
        match all.len() {
            0 => Err(A::Error::custom("there is no prompt")),
            count if count > MAX_PROMPTS => Err(A::Error::custom(format!(
                "{count} prompts; {MAX_PROMPTS} are the most"
            ))),
            _ => Ok(Prompts { all, is_list: true }),
        }
    }
}

/// Takes texts for prompts of their own.
fn split(mixed: &mut PromptInput, all: &mut Vec<PromptInput>) {
    all.extend(mixed.parts.drain(..).map(|part| PromptInput {
        parts: vec![part],
        media: Vec::new(),
    }));
}

/// An element of a list.
enum Element {
    Text(String),
    Token(u32),
    Prompt(PromptInput),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ElementVisitor)
    }
}

struct ElementVisitor;

impl<'de> Visitor<'de> for ElementVisitor {
    type Value = Element;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, a token, or a prompt")
    }

    fn visit_str<E>(self, text: &str) -> Result<Element, E> {
        Ok(Element::Text(text.to_string()))
    }

    fn visit_u64<E: serde::de::Error>(self, token: u64) -> Result<Element, E> {
        let token = u32::try_from(token);
        token
            .map(Element::Token)
            .map_err(|_| E::custom("it is not a token's number"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Element, A::Error> {
        let Mixed(prompt) = Mixed::deserialize(SeqAccessDeserializer::new(seq))?;
        Ok(Element::Prompt(prompt))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
        Marked::read(map).map(Element::Prompt)
    }
}

/// A text, or texts and tokens in one list.
struct Mixed(PromptInput);

impl<'de> Deserialize<'de> for Mixed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MixedVisitor)
    }
}

struct MixedVisitor;

impl<'de> Visitor<'de> for MixedVisitor {
    type Value = Mixed;

    fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text, or a list of texts and tokens")
    }

    fn visit_str<E>(self, text: &str) -> Result<Mixed, E> {
        Ok(Mixed(PromptInput {
            parts: vec![Part::Text(text.to_string())],
            media: Vec::new(),
        }))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Mixed, A::Error> {
        let mut prompt = PromptInput::default();
        while let Some(element) = seq.next_element()? {
            match element {
                Element::Text(text) => prompt.push_text(text)?,
                Element::Token(token) => prompt.push_token(token),
                Element::Prompt(_) => {
                    return Err(A::Error::custom("a list within a prompt's list"))
                }
            }
        }
        Ok(Mixed(prompt))
    }
}

/// A prompt with pictures and sounds.
#[derive(Deserialize)]
struct Marked {
    prompt_string: Mixed,
    #[serde(default)]
    multimodal_data: Vec<String>,
}

impl Marked {
    fn read<'de, A: MapAccess<'de>>(map: A) -> Result<PromptInput, A::Error> {
        let Self {
            prompt_string: Mixed(prompt),
            multimodal_data,
        } = Self::deserialize(MapAccessDeserializer::new(map))?;
        Ok(PromptInput {
            media: multimodal_data,
            ..prompt
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Vec<PromptInput>, bool), ApiError> {
        let prompts = worker::http::json::parse::<Prompts>(text.as_bytes())?;
        Ok((prompts.all, prompts.is_list))
    }

    fn text(text: &str) -> PromptInput {
        PromptInput {
            parts: vec![Part::Text(text.to_string())],
            media: Vec::new(),
        }
    }

    fn tokens(tokens: &[u32]) -> PromptInput {
        PromptInput {
            parts: vec![Part::Tokens(tokens.to_vec())],
            media: Vec::new(),
        }
    }

    #[test]
    fn what_prompts_may_be() {
        assert_eq!(read(r#""a\n""#).unwrap(), (vec![text("a\n")], false));
        assert_eq!(read("[1, 2]").unwrap(), (vec![tokens(&[1, 2])], false));
        let mixed = PromptInput {
            parts: vec![
                Part::Tokens(vec![1, 2]),
                Part::Text("a".to_string()),
                Part::Tokens(vec![3]),
            ],
            media: Vec::new(),
        };
        assert_eq!(
            read(r#"[1, 2, "a", 3]"#).unwrap(),
            (vec![mixed.clone()], false)
        );
        let several = r#"["b", [1, 2, "a", 3], [4], {"prompt_string": "c"}, "d"]"#;
        let expected = vec![text("b"), mixed, tokens(&[4]), text("c"), text("d")];
        assert_eq!(read(several).unwrap(), (expected, true));
        let marked = r#"{"prompt_string": "a", "multimodal_data": ["b", "c"]}"#;
        let (prompts, is_list) = read(marked).unwrap();
        assert_eq!(prompts[0].media, ["b", "c"]);
        assert!(!is_list);
    }

    #[test]
    fn what_is_no_prompt() {
        for bad in [
            "1",
            "null",
            "{}",
            "[]",
            "[[1], 2]",
            r#"[1, {"prompt_string": "a"}]"#,
            "[[[1]]]",
            "[-1]",
            "[1.5]",
            "[5000000000]",
            r#"{"prompt_string": 1}"#,
            r#"{"prompt_string": "a", "multimodal_data": "b"}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let many = format!("[{}\"a\"]", "\"a\",".repeat(MAX_PROMPTS));
        assert!(read(&many).is_err());
    }

    #[test]
    fn files_of_sounds() {
        for sound in [
            &b"RIFF....WAVEfmt "[..],
            b"ID3\x04",
            b"OggS",
            b"fLaC",
            b"\xff\xfb\x90",
        ] {
            assert!(is_sound(sound), "{sound:?}");
        }
        for other in [
            &b"RIFF....WEBPVP8 "[..],
            b"\x89PNG",
            b"\xff\xd8\xff\xe0",
            b"",
        ] {
            assert!(!is_sound(other), "{other:?}");
        }
    }
}
